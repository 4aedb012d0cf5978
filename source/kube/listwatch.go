package kube

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/metrics"

	"kube-proxy/cluster"
)

// listWatch lists and watches one resource, and gives records instead of API objects.
//
// After a stream that broke early the leader is listed again, which shows the server's version; the
// others continue where they were. A resource that has seen a newer version, or that opens a stream
// before the leader has read one, asks for its own, and is listed again if that is older too, or if
// an older version comes down its stream ([progress], [listWatch.unproven]).
type listWatch struct {
	*Source
	resource *resource
	giveUp   context.CancelCauseFunc
	throttle
}

const (
	// slack is how much earlier or later than announced the server may end a stream.
	slack = 30 * time.Second
	// listTimeout bounds a LIST or one of its pages.
	listTimeout = 5 * time.Minute
)

func (l *listWatch) leads() bool { return l.resource.plural == leader }

// failed reports an error and returns it.
func (l *listWatch) failed(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if l.resource.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) {
		l.outage.over(l.resource.plural)
		l.giveUp(err)
		return err
	}
	l.resource.broken.Store(true)
	l.outage.failed(l.resource.plural, err)
	return err
}

// broke notes the early end of a stream.
func (l *listWatch) broke() {
	l.resource.broken.Store(true)
	if l.leads() {
		l.outage.lost()
	}
}

func (l *listWatch) request(opts metav1.ListOptions) *rest.Request {
	opts.LabelSelector, opts.FieldSelector = l.resource.labels, l.resource.field
	return l.resource.client.Get().Resource(l.resource.plural).VersionedParams(&opts, l.codec).MaxRetries(0)
}

func (l *listWatch) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	if err := l.obey(ctx); err != nil {
		return nil, err
	}
	if err := l.outage.turn(ctx, l.resource.plural); err != nil {
		return nil, err
	}
	if opts.Continue == "" && l.resource.forget.Load() {
		opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
	}
	before, read := l.seen(), l.reading.Load()
	list, err := l.read(ctx, opts)
	if err == nil && number(list.ResourceVersion) == 0 {
		err = fmt.Errorf("kube: list %s: the API server sent resource version %q", l.resource.plural,
			list.ResourceVersion)
	}
	if err != nil {
		return nil, l.failed(ctx, err)
	}
	l.complete(number(list.ResourceVersion), before)
	l.resource.opened.Store(read)
	return list, nil
}

// complete takes note of a complete list at a version, and of what the resources had seen before it
// was asked for.
func (l *listWatch) complete(version uint64, before []uint64) {
	l.resource.forget.Store(false)
	l.resource.at(version)
	l.reached(version, before)
	l.outage.over(l.resource.plural)
}

func (l *listWatch) read(ctx context.Context, opts metav1.ListOptions) (*recordList, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	request := l.request(opts)
	// The client measures requests whose answer it decodes itself, but not those that stream.
	defer func(start time.Time) {
		metrics.RequestLatency.Observe(ctx, http.MethodGet, *request.URL(), time.Since(start))
	}(time.Now())
	defer l.outage.asks(l.resource.plural)()
	body, err := request.Stream(ctx)
	if err != nil {
		l.refused(err)
		return nil, err
	}
	defer body.Close()
	objects := &listing{}
	list := &recordList{Items: []runtime.Object{&record{value: objects}}}
	list.ListMeta, err = decodeList(body, l.resource, func(o apiObject) {
		rec := l.resource.record(o)
		l.report(rec)
		objects.take(watch.Added, rec)
	})
	return list, err
}

// report reports the problems of an object.
func (l *listWatch) report(rec *record) { l.reporter.Report(rec.kind, rec.name, rec.problems) }

func (l *listWatch) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	initial := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if initial && l.noStreaming.Load() {
		return nil, errNoStreaming
	}
	if err := l.rest(ctx, l.resource.broken.Load()); err != nil {
		return nil, err
	}
	if err := l.obey(ctx); err != nil {
		return nil, err
	}
	if err := l.outage.turn(ctx, l.resource.plural); err != nil {
		return nil, err
	}
	before, read := l.seen(), l.reading.Load()
	broken := l.resource.broken.Swap(false)
	again := !initial && broken && l.leads() && !l.noStreaming.Load()
	switch {
	case again: // one object, and the server's version
		initial, opts.SendInitialEvents = true, new(true)
		opts.ResourceVersion, opts.ResourceVersionMatch = "", metav1.ResourceVersionMatchNotOlderThan
	case initial && l.resource.forget.Load():
		opts.ResourceVersion = ""
	case !initial && (l.resource.suspect() || l.unproven(read, number(opts.ResourceVersion), broken)):
		if err := l.compare(ctx, opts.ResourceVersion, before); err != nil {
			return nil, l.failed(ctx, err)
		}
	}
	lifetime := time.Duration(*opts.TimeoutSeconds) * time.Second // a Reflector always sets it
	ctx, cancel := context.WithTimeout(ctx, lifetime+slack)
	opts.Watch = true
	answered := l.outage.asks(l.resource.plural)
	in, err := l.request(opts).Watch(ctx)
	answered()
	if err != nil {
		l.refused(err)
		if !initial || !l.cannotStream(err) { // that is no failure: a LIST follows
			err = l.failed(ctx, err)
		}
		cancel()
		return nil, err
	}
	l.resource.opened.Store(read)
	s := &stream{
		listWatch: l, in: in, cancel: cancel, initial: initial, again: again, before: before, begin: time.Now(),
		out: make(chan watch.Event, 64), end: time.Now().Add(lifetime - slack), floor: number(opts.ResourceVersion),
	}
	go s.pump(ctx)
	return s, nil
}

// compare asks the server for its present version, and fails as for a version that the server has
// forgotten if that is older than ours.
func (l *listWatch) compare(ctx context.Context, ours string, before []uint64) error {
	list, err := l.read(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	theirs := number(list.ResourceVersion)
	l.reached(theirs, before)
	l.outage.over(l.resource.plural)
	if theirs != 0 && theirs < number(ours) {
		return l.older(theirs, number(ours))
	}
	l.resource.forget.Store(false)
	return nil
}

func (l *listWatch) older(theirs, ours uint64) *apierrors.StatusError {
	l.resource.forget.Store(true)
	l.log.Warn("The API server returned older data, listing again", "server", l.outage.server,
		"resource", l.resource.plural, "version", theirs, "known", ours)
	return apierrors.NewResourceExpired("the API server has an older copy of the data")
}

// number reads a version. API servers count; 0 if the version is no number.
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
	in     watch.Interface
	out    chan watch.Event
	cancel context.CancelFunc // ends pump
	// begin is when the stream was opened, end the earliest time at which the server should end it.
	begin, end time.Time
	// before is what the resources had seen before begin.
	before []uint64
	// initial: the objects that exist already are being sent, in any order of versions.
	initial bool
	// again: the Reflector knows objects already, so it must be notified if the initial ones lack
	// the Node; found reports that they have it.
	again, found bool
	// floor is the version that all events after the initial ones must be newer than.
	floor uint64
}

// Stop ends the stream. It may be called more than once.
func (s *stream) Stop() {
	s.cancel()
	s.in.Stop()
}

// ResultChan returns the events.
func (s *stream) ResultChan() <-chan watch.Event { return s.out }

// pump converts until the stream ends. A stream that says something, or stays open for a while, is
// a sign that the server is well; that it was accepted is not, since client-go also "opens" streams
// to servers that hang up at once.
func (s *stream) pump(ctx context.Context) {
	defer close(s.out)
	defer s.Stop()
	defer func() {
		s.resource.ended.Store(s.reading.Load())
		if s.lived(time.Since(s.begin)) {
			s.outage.early(s.resource.plural)
		}
	}()
	well := time.NewTimer(time.Second)
	defer well.Stop()
	objects, n := &listing{}, 0
	sound := false
	for {
		var doubts <-chan struct{} // a list is read to its end: it is what a doubt asks for
		if !s.initial {
			doubts = s.resource.doubts
		}
		select {
		case <-ctx.Done():
			return
		case <-doubts:
			s.resource.doubt() // the next one compares
			return
		case <-well.C:
			sound = true
			s.outage.over(s.resource.plural)
		case ev, ok := <-s.in.ResultChan():
			if !ok {
				switch {
				case !time.Now().Before(s.end):
				case sound:
					s.broke()
				default:
					s.resource.broken.Store(true)
					s.outage.hungUp(s.resource.plural)
				}
				return
			}
			if ev.Type == watch.Error {
				err := apierrors.FromObject(ev.Object)
				if !s.initial || !s.cannotStream(err) {
					s.failed(ctx, err)
				}
				if s.initial || !utilnet.IsHTTP2ConnectionLost(err) { // else the next one continues here
					s.pass(ctx, ev) // the Reflector lists all again
				}
				return
			}
			out := s.convert(ctx, ev)
			if out.Type != watch.Error && well.Stop() {
				sound = true
				s.outage.over(s.resource.plural)
			}
			if s.again && !s.initial && !s.found {
				s.found = true
				gone := &record{version: out.Object.(*record).version, name: cluster.Name{Name: s.resource.object}}
				if !s.pass(ctx, watch.Event{Type: watch.Deleted, Object: gone}) {
					return
				}
			}
			switch {
			case !s.initial:
				objects = nil // the Reflector has them
			case !s.again && out.Type != watch.Error && out.Type != watch.Bookmark:
				objects.take(out.Type, out.Object.(*record))
				n++
				if n%1000 != 1 { // some events show the Reflector that the stream works
					continue
				}
				out = watch.Event{Type: watch.Added, Object: &record{value: objects}}
			}
			if !s.pass(ctx, out) {
				return
			}
		}
	}
}

// pass gives an event to the Reflector, and reports whether that still wants more.
func (s *stream) pass(ctx context.Context, ev watch.Event) bool {
	select {
	case s.out <- ev:
		return true
	case <-ctx.Done():
		return false
	}
}

// convert returns the event for the Reflector: one with a record, or an error that has it list all
// again.
func (s *stream) convert(ctx context.Context, ev watch.Event) watch.Event {
	rec, err := s.resource.check(ev.Object)
	if err != nil {
		s.failed(ctx, err)
		return watch.Event{Type: watch.Error, Object: &apierrors.NewInternalError(err).ErrStatus}
	}
	version := number(rec.version)
	if version == 0 && (!s.initial || ev.Type == watch.Bookmark) { // the Reflector would repeat it forever
		s.resource.forget.Store(true)
		s.failed(ctx, fmt.Errorf("kube: watch %s: the API server sent resource version %q", s.resource.plural,
			rec.version))
		return watch.Event{Type: watch.Error, Object: &apierrors.NewResourceExpired("no resource version").ErrStatus}
	}
	if !s.initial && version < s.floor {
		return watch.Event{Type: watch.Error, Object: &s.older(version, s.floor).ErrStatus}
	}
	switch {
	case ev.Type != watch.Bookmark && ev.Type != watch.Deleted:
		s.report(rec)
		s.found = true
	case ev.Type == watch.Bookmark && s.initial && rec.last:
		s.initial, s.floor = false, version
		s.complete(version, s.before)
	}
	if !s.initial {
		s.resource.at(version)
	}
	return watch.Event{Type: ev.Type, Object: rec}
}
