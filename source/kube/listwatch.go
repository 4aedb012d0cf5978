package kube

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/metrics"

	"kube-proxy/source/convert"
)

// listWatch lists and watches one resource, and gives records instead of API objects.
//
// It also notices an API server that now has an older copy of the data, such as a restored backup. Such a
// server may accept a watch from a version that it has not reached yet, and then be silent about all that
// differs. So after a stream that broke early the server is asked for its version before the next one; if
// that is older than ours, or if an older version comes down a stream, everything is listed again.
type listWatch struct {
	resource *resource
	client   rest.Interface
	codec    runtime.ParameterCodec
	reporter *convert.Reporter
	outage   *outage
	streams  *streams
	giveUp   context.CancelCauseFunc

	mu sync.Mutex
	// suspect: the last stream broke, so the server may be another one now.
	suspect bool
	// forget: the version that the Reflector remembers is of no use.
	forget bool
}

const (
	// slack is how much earlier or later than announced the server may end a stream.
	slack = 30 * time.Second
	// listTimeout bounds a LIST or one of its pages.
	listTimeout = 5 * time.Minute
)

// failed tells of an error and passes it on.
func (l *listWatch) failed(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if l.resource.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) {
		l.outage.over(l.resource.plural)
		l.giveUp(err)
		return err
	}
	l.set(&l.suspect, true)
	l.outage.failed(l.resource.plural, err)
	return err
}

func (l *listWatch) set(flag *bool, to bool) (was bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, *flag = *flag, to
	return was
}

func (l *listWatch) get(flag *bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *flag
}

func (l *listWatch) request(opts metav1.ListOptions) *rest.Request {
	opts.LabelSelector, opts.FieldSelector = l.resource.labels, l.resource.field
	return l.client.Get().Resource(l.resource.plural).VersionedParams(&opts, l.codec)
}

func (l *listWatch) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	if opts.Continue == "" && l.get(&l.forget) {
		opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
	}
	list, err := l.read(ctx, opts)
	if err != nil {
		return nil, l.failed(ctx, err)
	}
	l.outage.over(l.resource.plural)
	l.set(&l.suspect, false)
	l.set(&l.forget, false)
	return list, nil
}

func (l *listWatch) read(ctx context.Context, opts metav1.ListOptions) (*recordList, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	request := l.request(opts)
	// The client measures requests whose answer it decodes itself, but not those that stream.
	defer func(start time.Time) {
		metrics.RequestLatency.Observe(ctx, http.MethodGet, *request.URL(), time.Since(start))
	}(time.Now())
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	list := &recordList{}
	list.ListMeta, err = decodeList(body, l.resource, func(o apiObject) {
		list.Items = append(list.Items, l.resource.record(o, l.reporter))
	})
	return list, err
}

func (l *listWatch) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	initial := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	switch {
	case initial && l.streams.no.Load():
		return nil, errNoStreaming
	case initial && l.get(&l.forget):
		opts.ResourceVersion = ""
	case !initial && l.get(&l.suspect):
		if err := l.compare(ctx, opts.ResourceVersion); err != nil {
			return nil, l.failed(ctx, err)
		}
	}
	lifetime := listTimeout
	if opts.TimeoutSeconds != nil {
		lifetime = time.Duration(*opts.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, lifetime+slack)
	opts.Watch = true
	in, err := l.request(opts).Watch(ctx)
	if err != nil {
		if !initial || !l.streams.refused(err) { // that is no failure: a LIST follows
			err = l.failed(ctx, err)
		}
		cancel()
		return nil, err
	}
	s := &stream{
		listWatch: l, in: in, cancel: cancel, initial: initial,
		out: make(chan watch.Event, 64), stopped: make(chan struct{}),
		end: time.Now().Add(lifetime - slack),
	}
	if !initial {
		s.floor = number(opts.ResourceVersion)
	}
	go s.pump(ctx)
	return s, nil
}

// compare asks the server for its present version, and fails as for a version that the server has forgotten
// if that is older than ours.
func (l *listWatch) compare(ctx context.Context, ours string) error {
	list, err := l.read(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	l.outage.over(l.resource.plural)
	l.set(&l.suspect, false)
	if theirs := number(list.ResourceVersion); theirs != 0 && theirs < number(ours) {
		return l.older(theirs, number(ours))
	}
	return nil
}

func (l *listWatch) older(theirs, ours uint64) *apierrors.StatusError {
	l.set(&l.forget, true)
	l.outage.older(l.resource.plural, theirs, ours)
	return apierrors.NewResourceExpired("the API server has an older copy of the data")
}

// number reads a version. API servers of our four kinds count; 0 if this one does not.
func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// stream is a watch whose objects are records.
type stream struct {
	*listWatch
	in      watch.Interface
	out     chan watch.Event
	cancel  context.CancelFunc
	stop    sync.Once
	stopped chan struct{}
	// end is the earliest time at which the server should end the stream.
	end time.Time
	// initial: the objects that exist already are being sent, in any order of versions.
	initial bool
	// floor is the version that all events to come must be newer than; 0 if unknown.
	floor uint64
}

// Stop ends the stream. It may be called more than once.
func (s *stream) Stop() {
	s.stop.Do(func() {
		close(s.stopped)
		s.cancel()
		s.in.Stop()
	})
}

// ResultChan returns the events.
func (s *stream) ResultChan() <-chan watch.Event { return s.out }

// pump converts until the stream ends. A stream that says something, or stays open for a while, is a sign
// that the server is well; that it was accepted is not, since client-go also "opens" streams to servers that
// hang up at once.
func (s *stream) pump(ctx context.Context) {
	defer close(s.out)
	defer s.Stop()
	well := time.NewTimer(time.Second)
	defer well.Stop()
	for {
		select {
		case <-s.stopped:
			return
		case <-well.C:
			s.outage.over(s.resource.plural)
		case ev, ok := <-s.in.ResultChan():
			if !ok {
				if time.Now().Before(s.end) {
					s.set(&s.suspect, true)
				}
				return
			}
			if ev.Type == watch.Error && s.initial && s.streams.refused(apierrors.FromObject(ev.Object)) {
				s.pass(ev)
				return
			}
			out := s.convert(ctx, ev)
			if out.Type != watch.Error && well.Stop() {
				s.outage.over(s.resource.plural)
			}
			if !s.pass(out) {
				return
			}
		}
	}
}

// pass gives an event to the Reflector, and reports whether that still wants more.
func (s *stream) pass(ev watch.Event) bool {
	select {
	case s.out <- ev:
		return true
	case <-s.stopped:
		return false
	}
}

func (s *stream) convert(ctx context.Context, ev watch.Event) watch.Event {
	if ev.Type == watch.Error {
		s.set(&s.suspect, true) // the Reflector stops the stream before its end can be seen
		if err := apierrors.FromObject(ev.Object); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			s.failed(ctx, err)
		}
		return ev
	}
	object, err := s.resource.check(ev.Object)
	if err != nil {
		s.failed(ctx, err)
		status := apierrors.NewInternalError(err).Status()
		return watch.Event{Type: watch.Error, Object: &status}
	}
	version := number(object.GetResourceVersion())
	if !s.initial && version != 0 && version < s.floor {
		status := s.older(version, s.floor).Status()
		return watch.Event{Type: watch.Error, Object: &status}
	}
	var rec *record
	switch ev.Type {
	case watch.Bookmark:
		rec = &record{version: object.GetResourceVersion(), annotations: object.GetAnnotations()}
		if s.initial && rec.annotations[metav1.InitialEventsAnnotationKey] == "true" {
			s.initial, s.floor = false, version
			s.set(&s.suspect, false)
			s.set(&s.forget, false)
		}
	case watch.Deleted:
		rec = &record{version: object.GetResourceVersion()}
		rec.name.Namespace, rec.name.Name = object.GetNamespace(), object.GetName()
	default:
		rec = s.resource.record(object, s.reporter)
	}
	return watch.Event{Type: ev.Type, Object: rec}
}
