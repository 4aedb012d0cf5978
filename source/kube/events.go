package kube

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"kube-proxy/event"
	"kube-proxy/internal/once"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/source/convert"
)

// Publisher sends events to the API server as events.k8s.io/v1. Make one with [NewPublisher] and
// run it with [Publisher.Run].
//
// What happens again is counted, not sent again: the second time and the thousandth become one
// PATCH of the first event, a minute after it or later, and ever more rarely while it goes on.
// Memory, requests and patience are bounded; what exceeds the bounds is dropped and counted. Each
// namespace has its turn, and so has the Node: a flood in one delays an event in another by one
// event. A namespace whose events the API server refuses for now waits by itself, while the others
// go on.
type Publisher struct {
	log      *slog.Logger
	server   string
	instance string
	pace     pace
	limit    flowcontrol.RateLimiter
	// clients are by kind: where its objects are listed. events is where events go.
	events  rest.Interface
	clients map[string]rest.Interface
	wake    chan struct{} // has a value when there is something new to send or to wait for

	mu      sync.Mutex
	series  map[event.Event]*series // by Event.Series
	held    map[string]int          // how many series regard objects of a namespace; "" is the Node's
	queues  map[string][]*series    // what to send, by namespace; none is empty
	turns   []string                // the namespaces in queues; the first is next
	dropped uint64
	closed  bool

	// The rest belongs to the goroutine of Run.

	failures      int // to reach the API server, in a row
	paused        map[string]deferral
	refused       time.Time // since when every answer was 403
	reported      once.Keys[string]
	reportedDrops uint64
	drops         *ratelimit.Limiter // messages about dropped events
}

// series is one event and its repetitions.
type series struct {
	event event.Event
	name  string // of the API object
	uid   string // of what it regards, once it is known
	first time.Time
	last  time.Time
	count int32
	sent  int32 // the count that the API server knows; 0: nothing
	// queued is when it got its place in the queue; zero: it has none.
	queued time.Time
	next   time.Time // the earliest time for another PATCH
	gap    time.Duration
}

// namespace returns that of the object that s regards, "" for the Node.
func (s *series) namespace() string { return s.event.Regarding.Namespace }

// silent reports whether the API server knows all of s.
func (s *series) silent() bool { return s.queued.IsZero() && s.count == s.sent }

// deferral is how long the events of a namespace wait because the API server refused one.
type deferral struct {
	failures int // in a row
	until    time.Time
}

// pace has the intervals and rates of a Publisher.
type pace struct {
	retryFirst, retryLast time.Duration // after a failure, doubling
	giveUp                time.Duration // what could not be sent for so long is dropped
	refused               time.Duration // 403 is reported after so long: a server that starts refuses everything
	gapFirst, gapLast     time.Duration // between PATCHes of one series, doubling
	forget                time.Duration // what did not happen for so long is no repetition
	request, flush        time.Duration // bounds of one request, and of all requests at the end
	perSecond             float32
	burst                 int
}

var usualPace = pace{
	retryFirst: time.Second, retryLast: time.Minute, giveUp: 15 * time.Minute, refused: 10 * time.Second,
	gapFirst: time.Minute, gapLast: 30 * time.Minute, forget: time.Hour, // an API server keeps events for an hour
	request: 10 * time.Second, flush: 2 * time.Second, perSecond: 1, burst: 25,
}

const (
	controller = "kube-proxy"
	// maxSeries bounds the series that are remembered of all namespaces, and those of the Node,
	// and so the queues.
	maxSeries = 512
	// The API's limits in bytes.
	maxNote, maxInstance = 1024, 128
)

// NewPublisher returns a Publisher for the API server that cfg names. It reads files but does not
// connect.
func NewPublisher(cfg Config) (*Publisher, error) { return newPublisher(cfg, usualPace) }

func newPublisher(cfg Config, pace pace) (*Publisher, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	config, err := cfg.RESTConfig()
	if err != nil {
		return nil, err
	}
	clients, err := Clients(config, events.SchemeGroupVersion, core.SchemeGroupVersion, discovery.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &Publisher{
		log: cfg.Log, server: config.Host, instance: cut(controller+"-"+cfg.NodeName, maxInstance),
		pace: pace, limit: flowcontrol.NewTokenBucketRateLimiter(pace.perSecond, pace.burst),
		events:  clients[0],
		clients: map[string]rest.Interface{event.KindService: clients[1], event.KindEndpointSlice: clients[2]},
		wake:    make(chan struct{}, 1), series: map[event.Event]*series{},
		paused: map[string]deferral{},
		held:   map[string]int{}, queues: map[string][]*series{}, drops: ratelimit.New(cfg.Log, "Events were not sent"),
	}, nil
}

// ProblemEvent returns the event to send about a problem of an object (EV-06); false if there is
// none.
func ProblemEvent(p convert.Problem) (event.Event, bool) {
	if p.Reason != convert.ReasonIncorrectIPVersion {
		return event.Event{}, false
	}
	o := event.Object{Kind: p.Kind, Namespace: p.Name.Namespace, Name: p.Name.Name}
	return event.IncorrectIPVersion(o, p.Field, p.Value, p.What), true
}

// Publish takes an event to send. It does no I/O and never waits; it may be called from any
// goroutine, also before Run. After Run it only counts.
func (p *Publisher) Publish(e event.Event) {
	e.Note = cut(e.Note, maxNote)
	key, now := e.Series(), time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.dropped++
		return
	}
	s := p.series[key]
	if s != nil && s.queued.IsZero() && now.Sub(s.last) > p.pace.forget {
		p.forget(s)
		s = nil
	}
	if s == nil {
		namespace := e.Regarding.Namespace
		if p.full(namespace) && !p.makeRoom(namespace) {
			p.dropped++
			return
		}
		s = &series{event: e, name: objectName(e.Regarding.Name), uid: e.Regarding.UID, first: now,
			gap: p.pace.gapFirst}
		p.series[key] = s
		p.held[namespace]++
		p.due(s, now)
	}
	if s.count < 1<<31-1 {
		s.count++
	}
	s.last = now
	if s.queued.IsZero() && s.count == s.sent+1 {
		p.ring() // Run must now wait for s.next
	}
}

// full reports whether an event in the namespace needs room. Tenants do not take the Node's.
func (p *Publisher) full(namespace string) bool {
	held := p.held[""]
	if namespace != "" {
		held = len(p.series) - held
	}
	return held >= maxSeries
}

// makeRoom gives up one series for a new one in the namespace: a silent one, or else one of the
// namespace that has most. It returns false if that is no other namespace with at least two more.
func (p *Publisher) makeRoom(namespace string) bool {
	sending := p.head()
	var gone *series
	for _, s := range p.series {
		ofNode := s.namespace() == ""
		if ofNode == (namespace == "") && s != sending && (gone == nil || p.cheaper(s, gone)) {
			gone = s
		}
	}
	if gone == nil || !gone.silent() && p.held[gone.namespace()] < p.held[namespace]+2 {
		return false
	}
	if !gone.queued.IsZero() { // the namespace has another in its queue: those that do not wait there come first
		of := gone.namespace()
		p.queues[of] = slices.DeleteFunc(p.queues[of], func(s *series) bool { return s == gone })
	}
	p.lose(gone)
	return true
}

// cheaper reports whether less is lost with a than with b.
func (p *Publisher) cheaper(a, b *series) bool {
	switch heldA, heldB := p.held[a.namespace()], p.held[b.namespace()]; {
	case a.silent() != b.silent():
		return a.silent()
	case heldA != heldB:
		return heldA > heldB
	case a.queued.IsZero() != b.queued.IsZero():
		return a.queued.IsZero()
	}
	return a.last.Before(b.last)
}

// forget removes a series that is in no queue.
func (p *Publisher) forget(s *series) {
	delete(p.series, s.event.Series())
	p.held[s.namespace()]--
	if p.held[s.namespace()] == 0 {
		delete(p.held, s.namespace())
	}
}

// lose forgets a series, and counts what the API server does not know of it.
func (p *Publisher) lose(s *series) {
	p.dropped += uint64(s.count - s.sent)
	p.forget(s)
}

// due has a series sent.
func (p *Publisher) due(s *series, now time.Time) {
	s.queued = now
	p.enqueue(s)
	p.ring()
}

// enqueue puts a series at the end of its namespace's queue.
func (p *Publisher) enqueue(s *series) {
	namespace := s.namespace()
	if len(p.queues[namespace]) == 0 {
		p.turns = append(p.turns, namespace)
	}
	p.queues[namespace] = append(p.queues[namespace], s)
}

// head returns the series whose turn it is; nil if all is sent. It stays so until dequeue.
func (p *Publisher) head() *series {
	if len(p.turns) == 0 {
		return nil
	}
	return p.queues[p.turns[0]][0]
}

// dequeue removes the head, and puts its namespace behind the others.
func (p *Publisher) dequeue() {
	namespace := p.turns[0]
	p.turns = p.turns[1:]
	if rest := p.queues[namespace][1:]; len(rest) > 0 {
		p.queues[namespace], p.turns = rest, append(p.turns, namespace)
	} else {
		delete(p.queues, namespace)
	}
}

func (p *Publisher) ring() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Dropped is how many events were not sent: because there were too many, because the API server was
// away for too long or refused them, or because the process ended. It may be called at any time.
func (p *Publisher) Dropped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Run sends until ctx ends, and then for two seconds at most what is still waiting. Call it once.
func (p *Publisher) Run(ctx context.Context) {
	ctx = klog.NewContext(ctx, clientLog(p.log))
	defer p.close()
	grace, cancel := context.WithCancel(context.WithoutCancel(ctx)) // ends a while after ctx
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(p.pace.flush, cancel) })()
	for {
		s, wait := p.take(time.Now())
		wake := p.wake
		if s != nil && p.limit.Wait(ctx) == nil {
			if p.send(grace, s) {
				continue
			}
			wait, wake = p.backoff(p.failures-1), nil // what is new has to wait, too
		}
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			p.drain(grace)
			return
		case <-timer:
		case <-wake:
		}
	}
}

// take returns the series to send next, or how long to wait for one; 0 is for ever.
func (p *Publisher) take(now time.Time) (next *series, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.series {
		if !s.queued.IsZero() || s.count == s.sent {
			continue
		}
		if until := s.next.Sub(now); until > 0 {
			if wait == 0 || until < wait {
				wait = until
			}
			continue
		}
		p.due(s, now)
	}
	maps.DeleteFunc(p.paused, func(namespace string, _ deferral) bool { return p.queues[namespace] == nil })
	for i := 0; i < len(p.turns); {
		s := p.queues[p.turns[i]][0]
		old, until := now.Sub(s.queued) > p.pace.giveUp, p.paused[p.turns[i]].until.Sub(now)
		if until > 0 && !old {
			i++
			if wait == 0 || until < wait {
				wait = until
			}
			continue
		}
		p.turns = slices.Insert(slices.Delete(p.turns, i, i+1), 0, s.namespace())
		if !old {
			return s, 0
		}
		p.dequeue()
		p.lose(s)
	}
	return nil, wait
}

// drain sends what is waiting at the end, until ctx ends.
func (p *Publisher) drain(ctx context.Context) {
	p.mu.Lock()
	for _, s := range p.series {
		if s.queued.IsZero() && s.count != s.sent {
			p.due(s, time.Now())
		}
	}
	p.mu.Unlock()
	clear(p.paused) // a last attempt
	for {
		s, _ := p.take(time.Now())
		if s == nil || !p.limit.TryAccept() || !p.send(ctx, s) {
			return
		}
	}
}

func (p *Publisher) close() {
	p.mu.Lock()
	p.closed = true
	for _, queue := range p.queues {
		for _, s := range queue {
			p.dropped += uint64(s.count - s.sent)
		}
	}
	p.series, p.held, p.queues, p.turns = nil, nil, nil, nil
	p.mu.Unlock()
	p.limit.Stop()
	p.reportDrops()
}

// reportDrops reports the number of lost events; a single one means little.
func (p *Publisher) reportDrops() {
	if dropped := p.Dropped(); dropped > p.reportedDrops && p.drops.Allow("") {
		p.log.Warn("Events were not sent", "dropped", dropped-p.reportedDrops, "server", p.server)
		p.reportedDrops = dropped
	}
}

// cut makes s valid UTF-8 of at most so many bytes.
func cut(s string, most int) string {
	const dots = "…"
	s = strings.ToValidUTF8(s, "")
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(dots)], "") + dots
}

// objectName returns a name for an event about an object of that name, which must be a DNS name
// itself.
func objectName(about string) string {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	const most = validation.DNS1123SubdomainMaxLength - 1 - 2*8
	about = strings.TrimRight(about[:min(len(about), most)], ".-")
	if len(validation.IsDNS1123Subdomain(about)) > 0 {
		about = controller
	}
	return about + "." + hex.EncodeToString(random)
}
