package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"kube-proxy/event"
)

// kinds says of what can be regarded how the API calls it.
var kinds = map[string]struct{ version, plural string }{
	event.KindNode:          {core.SchemeGroupVersion.String(), ""},
	event.KindService:       {core.SchemeGroupVersion.String(), "services"},
	event.KindEndpointSlice: {discovery.SchemeGroupVersion.String(), "endpointslices"},
}

// send sends the head of the queues. It returns false if the API server cannot be reached and is to
// be left alone for a while.
func (p *Publisher) send(ctx context.Context, s *series) bool {
	p.mu.Lock()
	now := *s // Publish may go on counting
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.pace.request)
	defer cancel()
	if now.uid == "" || now.sent > 0 {
		uid := p.uidOf(ctx, now.event.Regarding)
		if uid != "" && uid != now.uid && now.sent > 0 {
			now = p.renew(s)
		}
		now.uid = cmp.Or(uid, now.uid)
	}
	err := p.write(ctx, &now)
	again := p.retry(&now, err)
	p.settle(s, &now, err == nil, again)
	if err == nil {
		p.reportDrops()
	}
	if again && unreachable(err) {
		p.failures++
		return false
	}
	p.failures = 0
	p.pauseAfter(s.namespace(), again)
	return true
}

// pauseAfter has a namespace wait after a refusal that may pass, longer each time.
func (p *Publisher) pauseAfter(namespace string, refused bool) {
	if !refused {
		delete(p.paused, namespace)
		return
	}
	n := p.paused[namespace].failures
	p.paused[namespace] = deferral{n + 1, time.Now().Add(p.backoff(n))}
}

// unreachable reports whether a failure is of the connection. An answer is about one namespace: a
// limit or a quota of its own, a webhook that does not answer; and so may be that there was none in
// time.
func unreachable(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) && !errors.Is(err, context.DeadlineExceeded)
}

// settle records the outcome of the head of the queues; now is the part that was sent.
func (p *Publisher) settle(s, now *series, sent, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.uid, s.name = now.uid, now.name
	p.dequeue()
	switch {
	case sent:
		s.sent, s.queued = now.count, time.Time{}
		s.next, s.gap = time.Now().Add(s.gap), min(2*s.gap, p.pace.gapLast)
	case again: // behind the others: one event that the server always fails with must not hold them up
		p.enqueue(s)
	default:
		p.lose(s)
	}
}

// renew ends a series that the API server knows, because what it regards is another object of the
// same name now, and begins one with what has not been sent. It keeps its pace: what is made again
// all the time is no news either.
func (p *Publisher) renew(s *series) series {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.count, s.sent, s.first = s.count-s.sent, 0, s.last
	s.name = objectName(s.event.Regarding.Name)
	return *s
}

// write creates the event, or updates its series. An event that the API server has forgotten
// meanwhile is created again.
func (p *Publisher) write(ctx context.Context, s *series) error {
	namespace := cmp.Or(s.event.Regarding.Namespace, metav1.NamespaceDefault)
	if s.sent > 0 {
		patch, err := json.Marshal(map[string]any{"series": s.api()})
		if err != nil {
			return fmt.Errorf("kube: encode an event: %w", err)
		}
		err = p.events.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("events").Name(s.name).
			MaxRetries(0).Body(patch).Do(ctx).Error()
		if !apierrors.IsNotFound(err) {
			return err
		}
		s.name = objectName(s.event.Regarding.Name)
	}
	o := &events.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: s.name, Namespace: namespace},
		EventTime:           micro(s.first),
		ReportingController: controller, ReportingInstance: p.instance,
		Action: s.event.Action, Reason: s.event.Reason, Note: s.event.Note, Type: string(s.event.Type),
		Regarding: core.ObjectReference{
			APIVersion: kinds[s.event.Regarding.Kind].version, Kind: s.event.Regarding.Kind,
			Namespace: s.event.Regarding.Namespace, Name: s.event.Regarding.Name, UID: types.UID(s.uid),
		},
	}
	if s.count > 1 {
		o.Series = s.api()
	}
	err := p.events.Post().Namespace(namespace).Resource("events").MaxRetries(0).Body(o).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) { // the name is random: an attempt before had reached the server
		return nil
	}
	return err
}

func (s *series) api() *events.EventSeries {
	return &events.EventSeries{Count: s.count, LastObservedTime: micro(s.last)}
}

// micro is a time as precise as the API takes it.
func micro(t time.Time) metav1.MicroTime { return metav1.NewMicroTime(t.Truncate(time.Microsecond)) }

// uidOf returns the UID of an object, by which kubectl describe finds its events; "" if the API
// server does not return it: the event is sent nevertheless. A proxy may list Services and slices,
// but not get them.
func (p *Publisher) uidOf(ctx context.Context, o event.Object) string {
	client := p.clients[o.Kind]
	if client == nil {
		return ""
	}
	body, err := client.Get().Namespace(o.Namespace).Resource(kinds[o.Kind].plural).MaxRetries(0).
		Param("fieldSelector", fields.OneTermEqualSelector(metav1.ObjectNameField, o.Name).String()).
		Param("resourceVersion", "0"). // from the server's cache, not from etcd
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json").
		DoRaw(ctx)
	var list metav1.PartialObjectMetadataList
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil {
		p.log.Debug("Cannot get the UID of an event's object", "object", o.String(), "err", err)
		return ""
	}
	for i := range list.Items {
		if list.Items[i].Name == o.Name && list.Items[i].Namespace == o.Namespace {
			return string(list.Items[i].UID)
		}
	}
	return ""
}

// retry reports whether to send a failed event again, and logs what an operator should know. The
// Source reports that the API server is away.
func (p *Publisher) retry(s *series, err error) bool {
	if !apierrors.IsForbidden(err) {
		p.refused = time.Time{}
	}
	if err == nil {
		return false
	}
	p.log.Debug("Failed to send an event", "event", s.event.String(), "err", err)
	switch {
	case apierrors.HasStatusCause(err, core.NamespaceTerminatingCause):
		return false
	case apierrors.IsForbidden(err):
		if p.refused.IsZero() {
			p.refused = time.Now()
		}
		if time.Since(p.refused) >= p.pace.refused {
			p.reportOnce("403", "we may not send events (403)", err)
		}
		return true
	case apierrors.IsNotFound(err): // the namespace is gone, or the API is too old
		p.reportOnce("404", "the API server does not know where to put one (404)", err)
		return false
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err),
		apierrors.IsUnsupportedMediaType(err), apierrors.IsMethodNotSupported(err):
		p.reportOnce("rejected "+s.event.Reason, "the API server rejects one", err)
		return false
	}
	return true
}

func (p *Publisher) reportOnce(sort, message string, err error) {
	if p.reported.First(sort) {
		p.log.Warn("Dropping events", "reason", message, "server", p.server, "err", err)
	}
}

// backoff returns how long to wait after a failure that has come after so many others.
func (p *Publisher) backoff(failures int) time.Duration {
	wait := p.pace.retryLast
	if failures < 16 {
		wait = min(wait, p.pace.retryFirst<<failures)
	}
	return time.Duration(float64(wait) * (1 + 0.25*rand.Float64()))
}
