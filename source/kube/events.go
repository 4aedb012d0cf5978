package kube

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"strings"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"kube-proxy/event"
	"kube-proxy/source/convert"
)

// Publisher sends events to the API server as events.k8s.io/v1. Make one with [NewPublisher] and run it with
// [Publisher.Run].
//
// What happens again is counted, not sent again: the second time and the thousandth become one PATCH of the
// first event, a minute after it or later, and ever more rarely while it goes on. Memory, requests and
// patience are bounded; what exceeds the bounds is dropped and counted.
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
	queue   []*series
	dropped uint64
	closed  bool

	// The rest belongs to the goroutine of Run.

	failures  int       // in a row
	refused   time.Time // since when every answer was 403
	told      map[string]bool
	toldDrops uint64
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

// pace is how patient a Publisher is.
type pace struct {
	retryFirst, retryLast time.Duration // after a failure, doubling
	giveUp                time.Duration // what could not be sent for so long is dropped
	refused               time.Duration // 403 is told after so long: a server that starts refuses everything
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
	// mostSeries bounds the series that are remembered, and so the queue.
	mostSeries = 512
	// The API's limits in bytes.
	mostNote, mostInstance = 1024, 128
)

// NewPublisher returns a Publisher for the API server that cfg names. It reads files but does not connect.
func NewPublisher(cfg Config) (*Publisher, error) { return newPublisher(cfg, usualPace) }

func newPublisher(cfg Config, pace pace) (*Publisher, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	directKlog(cfg.Log)
	config, err := cfg.RESTConfig()
	if err != nil {
		return nil, err
	}
	clients, err := newClients(config, events.SchemeGroupVersion, core.SchemeGroupVersion, discovery.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &Publisher{
		log: cfg.Log, server: config.Host, instance: cut(controller+"-"+cfg.NodeName, mostInstance),
		pace: pace, limit: flowcontrol.NewTokenBucketRateLimiter(pace.perSecond, pace.burst),
		events:  clients[0],
		clients: map[string]rest.Interface{event.KindService: clients[1], event.KindEndpointSlice: clients[2]},
		wake:    make(chan struct{}, 1), series: map[event.Event]*series{}, told: map[string]bool{},
	}, nil
}

// ProblemEvent returns the event to send about a problem of an object (EV-06); false if there is none.
func ProblemEvent(p convert.Problem) (event.Event, bool) {
	if p.Reason != convert.ReasonIncorrectIPVersion {
		return event.Event{}, false
	}
	o := event.Object{Kind: p.Kind, Namespace: p.Name.Namespace, Name: p.Name.Name}
	return event.IncorrectIPVersion(o, p.Field, p.Value, p.What), true
}

// Publish takes an event to send. It does no I/O and never waits; it may be called from any goroutine, also
// before Run. After Run it only counts.
func (p *Publisher) Publish(e event.Event) {
	e.Note = cut(e.Note, mostNote)
	key, now := e.Series(), time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.dropped++
		return
	}
	s := p.series[key]
	if s != nil && s.queued.IsZero() && now.Sub(s.last) > p.pace.forget {
		delete(p.series, key)
		s = nil
	}
	if s == nil {
		if len(p.series) >= mostSeries && !p.makeRoom() {
			p.dropped++
			return
		}
		s = &series{event: e, name: objectName(e.Regarding.Name), uid: e.Regarding.UID, first: now, gap: p.pace.gapFirst}
		p.series[key] = s
		p.enqueue(s, now)
	}
	if s.count < 1<<31-1 {
		s.count++
	}
	s.last = now
	if s.queued.IsZero() && s.count == s.sent+1 {
		p.ring() // Run must now wait for s.next
	}
}

// makeRoom forgets the series that is silent for longest. There is none if all are to be sent.
func (p *Publisher) makeRoom() bool {
	var oldest *series
	for _, s := range p.series {
		if s.queued.IsZero() && s.count == s.sent && (oldest == nil || s.last.Before(oldest.last)) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	delete(p.series, oldest.event.Series())
	return true
}

func (p *Publisher) enqueue(s *series, now time.Time) {
	s.queued = now
	p.queue = append(p.queue, s)
	p.ring()
}

func (p *Publisher) ring() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Dropped is how many events were not sent: because there were too many, because the API server was away for
// too long or refused them, or because the process ended. It may be called at any time.
func (p *Publisher) Dropped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Run sends until ctx ends, and then for two seconds at most what is still waiting. Call it once.
func (p *Publisher) Run(ctx context.Context) {
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
			wait, wake = p.backoff(), nil // what is new has to wait, too
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
		p.enqueue(s, now)
	}
	for len(p.queue) > 0 {
		s := p.queue[0]
		if now.Sub(s.queued) <= p.pace.giveUp {
			return s, 0
		}
		p.drop(s)
	}
	return nil, wait
}

// drop gives up the series at the head of the queue: what of it the API server knows, stays.
func (p *Publisher) drop(s *series) {
	p.queue = p.queue[1:]
	p.dropped += uint64(s.count - s.sent)
	delete(p.series, s.event.Series())
}

// drain sends what is waiting at the end, until ctx ends.
func (p *Publisher) drain(ctx context.Context) {
	p.mu.Lock()
	for _, s := range p.series {
		if s.queued.IsZero() && s.count != s.sent {
			p.enqueue(s, time.Now())
		}
	}
	p.mu.Unlock()
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
	for _, s := range p.queue {
		p.dropped += uint64(s.count - s.sent)
	}
	p.queue, p.series = nil, nil
	p.mu.Unlock()
	p.limit.Stop()
	p.tellDrops()
}

// tellDrops tells of events that are lost, which says little in each single case.
func (p *Publisher) tellDrops() {
	if dropped := p.Dropped(); dropped > p.toldDrops {
		p.log.Warn("events were not sent", "dropped", dropped-p.toldDrops, "server", p.server)
		p.toldDrops = dropped
	}
}

// cut makes s valid UTF-8 of at most so many bytes.
func cut(s string, most int) string {
	const dots = "…"
	if s = strings.ToValidUTF8(s, ""); len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(dots)], "") + dots
}

// objectName returns a name for an event about an object of that name, which must be a DNS name itself.
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
