// Package control runs failover: it receives notices, probes endpoints from this node, asks package
// failover what they mean, and has the engines resolve the affected Services again.
//
//	planes ──notice──▶ loop ──due──▶ probe, lookup ──answer──▶ loop ──verdict──▶ Store ──▶ engines ──Applied──▶ rescue
package control

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/failover"
	"kube-proxy/internal/pause"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
)

// Mode is what is done about an unreachable endpoint.
type Mode string

// The modes: nothing is noticed; waiting clients are rescued; new ones also avoid the endpoint.
const (
	Off    Mode = "off"
	Rescue Mode = "rescue"
	Avoid  Mode = "avoid"
)

// Settings may change while the process runs.
type Settings struct {
	Mode Mode
	// Reset ends established connections to endpoints on unreachable nodes.
	Reset bool
}

// Config configures a Controller. All functions are called from goroutines of Run, and must be set.
type Config struct {
	Store *cluster.Store
	// Serves reports whether policy serves the endpoint for the Service, and ServiceOf returns the
	// Service of a frontend, if it has that endpoint.
	Serves    func(cluster.Name, netip.AddrPort) bool
	ServiceOf func(lb.Key) (cluster.Name, bool)
	// Fold folds an event of the Store, and notifies the engines.
	Fold func(cluster.Event)
	// Probe is probe.Run.
	Probe func(ctx context.Context, p failover.Probe, quiet func()) (failover.Result, error)
	// Lookup returns the internal addresses and pod CIDRs of a Node; found is false if none exists.
	Lookup func(ctx context.Context, name string) (addrs []netip.Addr, pods []netip.Prefix, found bool, err error)
	// NodeChanged is called when a node becomes unreachable, with the number of endpoints there, or
	// answers again.
	NodeChanged func(node string, unreachable bool, endpoints int)
	// Avoided is called for each endpoint that became unreachable: the time from the first lost
	// packet to the rules that avoid it.
	Avoided func(took time.Duration)
	Log     *slog.Logger
}

// Controller runs failover. Make one with [New].
type Controller struct {
	cfg     Config
	changed chan struct{} // has a value when settings are new
	applied chan struct{} // has a value when rules that were awaited are in force

	sources  []NoticeSource // of the planes
	rescuers []Rescuer
	avoiders bool // a rescuer is an Avoider

	mu       sync.Mutex
	settings Settings
	state    *failover.State // nil while failover is off
	begun    time.Time       // the origin of the state's times
	awaits   bool            // a rescue waits for rules
	found    time.Duration   // when a pass last rescued a connection
	counts   Counts
}

// Counts are totals since the start of the process.
type Counts struct {
	// Notices by kind, and Probes by result.
	Notices, Probes map[string]uint64
	// Rescued and Reset are connections.
	Rescued, Reset uint64
}

// New returns a Controller that is off.
func New(cfg Config) *Controller {
	c := &Controller{cfg: cfg, changed: make(chan struct{}, 1), applied: make(chan struct{}, 1),
		settings: Settings{Mode: Off}, counts: Counts{Notices: map[string]uint64{}, Probes: map[string]uint64{}}}
	for _, k := range []failover.Kind{failover.Retransmission, failover.Unreachable} {
		c.counts.Notices[k.String()] = 0
	}
	for r := failover.Unknown; r <= failover.NoRoute; r++ {
		if r != failover.Waiting {
			c.counts.Probes[r.String()] = 0
		}
	}
	return c
}

// Add adds the plane of a family, which may be a [NoticeSource] and a [Rescuer], before Run. It
// reports whether the plane is both.
func (c *Controller) Add(plane any) bool {
	source, notices := plane.(NoticeSource)
	rescuer, rescues := plane.(Rescuer)
	if notices && rescues {
		c.sources, c.rescuers = append(c.sources, source), append(c.rescuers, rescuer)
		a, is := plane.(Avoider)
		c.avoiders = c.avoiders || is && a.RescueAvoids()
	}
	return notices && rescues
}

// Able reports whether a plane reports notices.
func (c *Controller) Able() bool { return len(c.sources) > 0 }

// Configure replaces the settings. It may be called at any time from any goroutine.
func (c *Controller) Configure(s Settings) {
	c.mu.Lock()
	c.settings = s
	c.mu.Unlock()
	ring(c.changed)
}

func ring(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Run runs failover, as configured, until ctx ends. What was avoided is in use again then.
func (c *Controller) Run(ctx context.Context) {
	for {
		for c.Settings().Mode == Off {
			select {
			case <-ctx.Done():
				return
			case <-c.changed:
			}
		}
		c.on(ctx)
		if ctx.Err() != nil {
			return
		}
	}
}

// Settings returns the settings.
func (c *Controller) Settings() Settings {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settings
}

// Applied is part of engine.Observer: rules are in force.
func (c *Controller) Applied([]lb.Change) {
	c.mu.Lock()
	awaits := c.awaits
	c.mu.Unlock()
	if awaits {
		ring(c.applied)
	}
}

// Status returns what does not answer, and whether failover is on.
func (c *Controller) Status() (s failover.Status, mode Mode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == nil {
		return s, Off
	}
	return c.state.Status(time.Since(c.begun)), c.settings.Mode
}

// Counts returns the totals.
func (c *Controller) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.counts
	out.Notices, out.Probes = maps.Clone(c.counts.Notices), maps.Clone(c.counts.Probes)
	return out
}

// table is the Store with what policy serves.
type table struct {
	*cluster.Store
	serves func(cluster.Name, netip.AddrPort) bool
}

func (t table) Serves(name cluster.Name, at netip.AddrPort) bool { return t.serves(name, at) }

// run is failover from the time when it is switched on until it is switched off.
type run struct {
	*Controller
	ctx     context.Context
	working sync.WaitGroup
	wake    chan struct{} // has a value when the state has changed

	unreachable cluster.Unreachable // as the Store has it
	rescue      map[failover.Endpoint]waiting
	waited      []time.Duration                // of endpoints that became unreachable, until the rules are in force
	since       time.Duration                  // of waited
	lost        map[failover.Endpoint]struct{} // whose connections are reset
	resets      bool                           // lost follows what is unreachable
	avoids      time.Duration                  // until then, rules avoid in mode rescue for an Avoider

	rescuing, resetting *batch
}

func (c *Controller) on(ctx context.Context) {
	c.cfg.Store.IndexEndpoints(true)
	c.mu.Lock()
	c.begun = time.Now()
	c.state, c.found = failover.New(table{c.cfg.Store, c.cfg.Serves}, rand.Float64), -rescueFor
	c.mu.Unlock()
	ctx, end := context.WithCancel(ctx)
	r := &run{Controller: c, ctx: ctx, wake: make(chan struct{}, 1), rescue: map[failover.Endpoint]waiting{},
		rescuing: newBatch(), resetting: newBatch()}
	c.cfg.Log.Info("Failover is on", "mode", string(c.Settings().Mode))
	for _, s := range c.sources {
		r.working.Go(func() {
			if err := s.Run(ctx, r.notice); err != nil && ctx.Err() == nil {
				c.cfg.Log.Error("Failed to receive notices of unanswered packets; failover does not work", "err", err)
			}
		})
	}
	r.working.Go(func() {
		r.work(r.rescuing, "rescue waiting connections", Rescuer.Rescue, func(n uint64) {
			r.counts.Rescued += n
			r.found = r.now()
		})
	})
	r.working.Go(func() {
		r.work(r.resetting, "reset connections to unreachable nodes", Rescuer.ResetConnections,
			func(n uint64) { r.counts.Reset += n })
	})
	r.loop()
	end()
	r.working.Wait()
	c.mu.Lock()
	c.state, c.awaits = nil, false
	c.mu.Unlock()
	r.fold(cluster.Unreachable{})
	c.cfg.Store.IndexEndpoints(false)
}

// now is the time of the state.
func (c *Controller) now() time.Duration { return time.Since(c.begun) }

// notice takes a notice of a plane.
func (r *run) notice(n failover.Notice) {
	service, ok := r.serviceOf(n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Notices[n.Kind.String()]++
	if ok {
		r.state.Notice(r.now(), n, service)
		ring(r.wake)
	}
}

// serviceOf returns the Service of the client's packet; false if policy does not serve the
// endpoint.
func (r *run) serviceOf(n failover.Notice) (cluster.Name, bool) {
	if n.Frontend.IsValid() {
		name, ok := r.cfg.ServiceOf(lb.Key{Addr: n.Frontend.Addr(), Port: n.Frontend.Port(), Proto: n.Proto})
		if ok && (r.cfg.Serves(name, n.Endpoint) || r.known(n.Endpoint)) {
			return name, true
		}
	}
	for _, name := range r.cfg.Store.WithAddr(n.Endpoint.Addr(), maxSearched) {
		if r.cfg.Serves(name, n.Endpoint) || r.known(n.Endpoint) {
			return name, true
		}
	}
	return cluster.Name{}, false
}

// maxSearched is how many Services with the endpoint's address a notice without a frontend is
// compared with.
const maxSearched = 8

// known reports whether the endpoint was served until it was avoided.
func (r *run) known(at netip.AddrPort) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Knows(at)
}

// loop does what is due until failover is switched off.
func (r *run) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.changed:
			if r.Settings().Mode == Off {
				r.cfg.Log.Info("Failover is off")
				return
			}
		case <-r.wake:
		case <-r.applied:
			r.inForce()
		case <-timer.C:
		}
		r.mu.Lock()
		now := r.now()
		work := r.state.Due(now)
		verdict := r.state.Verdict(now)
		r.mu.Unlock()
		r.begin(work)
		next := min(work.Next, now+time.Minute, r.follow(now, verdict))
		timer.Reset(max(next-r.now(), time.Millisecond))
	}
}

// begin starts probes and lookups.
func (r *run) begin(work failover.Work) {
	for _, p := range work.Probes {
		r.working.Go(func() { r.probe(p) })
	}
	for _, name := range work.Lookups {
		r.working.Go(func() { r.lookUp(name) })
	}
}

func (r *run) probe(p failover.Probe) {
	result, err := r.cfg.Probe(r.ctx, p, func() { r.answer(p.At, failover.Waiting) })
	if err != nil { // it proves nothing of the endpoint
		r.cfg.Log.Error("Failed to probe an endpoint", "endpoint", p.At.String(), "err", err)
		result = failover.Unknown
	}
	r.answer(p.At, result)
	r.mu.Lock()
	r.counts.Probes[result.String()]++
	r.mu.Unlock()
}

func (r *run) answer(at netip.AddrPort, result failover.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.Answer(r.now(), at, result)
	ring(r.wake)
}

// lookupTimeout is how long the source may take to return a Node.
const lookupTimeout = 3 * time.Second

func (r *run) lookUp(name string) {
	ctx, end := context.WithTimeout(r.ctx, lookupTimeout)
	defer end()
	addrs, pods, found, err := r.cfg.Lookup(ctx, name)
	if err != nil && r.ctx.Err() == nil {
		r.cfg.Log.Warn("Failed to read a Node, so its endpoints are not avoided with it", "node", name, "err", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.Node(r.now(), name, addrs, pods, found && err == nil)
	ring(r.wake)
}

// fold passes what is unreachable now to the engines, if it changed.
func (r *run) fold(u cluster.Unreachable) bool {
	if u.Equal(r.unreachable) {
		return false
	}
	r.unreachable = u
	r.cfg.Fold(cluster.UnreachableSet{Unreachable: u})
	return true
}

// The rescue of waiting clients follows the rules that avoid their endpoint, at the latest after
// rulesTimeout. It is repeated each rescueEvery, more often than clients repeat their packets, so
// that a client that gets an unreachable endpoint again never waits for a second packet there. It
// ends when no client was noticed or rescued for rescueFor.
const (
	rulesTimeout = 250 * time.Millisecond
	rescueEvery  = 400 * time.Millisecond
	rescueFor    = 2 * time.Second
)

// avoidFor is how long an [Avoider] avoids endpoints after the last notice: until each client that
// waited has repeated its packet, at the latest 2 s after the packet that was noticed.
const avoidFor = 2500 * time.Millisecond

// waiting is an endpoint whose clients are to be rescued.
type waiting struct{ next, until time.Duration }

// follow does what a verdict asks for, and returns when it must be called again.
func (r *run) follow(now time.Duration, v failover.Verdict) (next time.Duration) {
	settings := r.Settings()
	if len(v.Rescue) > 0 && r.avoiders {
		r.avoids = now + avoidFor
	}
	if settings.Mode != Avoid && now >= r.avoids {
		v.Unreachable = cluster.Unreachable{}
	}
	if len(v.Waited) > 0 {
		r.waited, r.since = append(r.waited, v.Waited...), now
	}
	if len(v.Rescue) > 0 {
		r.await(true)
	}
	at := now
	if r.fold(v.Unreachable) {
		at += rulesTimeout
	}
	found := r.drop(v.Changed)
	for _, e := range v.Rescue {
		w, waits := r.rescue[e]
		if !waits || v.Changed {
			w.next = at
		}
		r.rescue[e] = waiting{w.next, now + rescueFor}
	}
	for _, n := range v.Down {
		r.down(n)
	}
	if v.Changed || settings.Reset != r.resets {
		r.reset(settings.Reset)
	}
	for _, n := range v.Up {
		r.cfg.Log.Info("Node is no longer unreachable from here", "node", n)
		r.cfg.NodeChanged(n, false, 0)
	}
	next = now + time.Hour
	if r.avoids > now {
		next = r.avoids
	}
	for e, w := range r.rescue {
		if w.next <= now {
			r.rescuing.add(e)
			w.next = now + rescueEvery
		}
		w.until = max(w.until, found+rescueFor)
		r.rescue[e] = w
		if w.until <= now {
			delete(r.rescue, e)
			continue
		}
		next = min(next, w.next)
	}
	r.await(len(r.rescue) > 0)
	return next
}

// drop ends the rescue from endpoints that are reachable after a change, and returns when a pass
// last rescued a connection.
func (r *run) drop(changed bool) (found time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if changed {
		unreachable := r.state.Unreachable()
		maps.DeleteFunc(r.rescue, func(e failover.Endpoint, _ waiting) bool { return !unreachable[e] })
	}
	return r.found
}

// inForce is called when awaited rules are in force.
func (r *run) inForce() {
	now := r.now()
	for e, w := range r.rescue {
		r.rescue[e] = waiting{now, w.until}
	}
	for _, w := range r.waited {
		r.cfg.Avoided(initialRTO + w + now - r.since)
	}
	r.waited = nil
}

// initialRTO is the time after which Linux repeats a SYN (RFC 6298): a notice comes that late.
const initialRTO = time.Second

func (r *run) await(is bool) {
	r.mu.Lock()
	r.awaits = is
	r.mu.Unlock()
}

// down reports an unreachable node.
func (r *run) down(node string) {
	r.mu.Lock()
	endpoints := len(r.state.EndpointsOn(node))
	r.mu.Unlock()
	r.cfg.Log.Warn("Node is unreachable from here", "node", node, "endpoints", endpoints)
	r.cfg.NodeChanged(node, true, endpoints)
}

// reset ends the connections to endpoints that became unreachable with their node, if so
// configured.
func (r *run) reset(on bool) {
	var lost []failover.Endpoint
	if on {
		r.mu.Lock()
		lost = r.state.Lost()
		r.mu.Unlock()
	}
	was := r.lost
	r.resets, r.lost = on, map[failover.Endpoint]struct{}{}
	for _, e := range lost {
		r.lost[e] = struct{}{}
		if _, had := was[e]; !had {
			r.resetting.add(e)
		}
	}
}

// batch collects endpoints for a worker.
type batch struct {
	mu    sync.Mutex
	all   map[failover.Endpoint]struct{}
	ready chan struct{}
}

func newBatch() *batch { return &batch{ready: make(chan struct{}, 1)} }

func (b *batch) add(e failover.Endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[failover.Endpoint]struct{}{}
	}
	b.all[e] = struct{}{}
	ring(b.ready)
}

func (b *batch) take() []failover.Endpoint {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.Collect(maps.Keys(b.all))
	b.all = nil
	return all
}

// A pass reads all connections of the node. With a pause of pauseFactor times its duration after
// each, passes take at most a quarter of one CPU.
const pauseFactor = 3

// work calls do of each Rescuer for the endpoints of a batch until failover ends, and did, under
// the lock, with the number of connections if there are any.
func (r *run) work(b *batch, what string, do func(Rescuer, context.Context, []failover.Endpoint) (int, error),
	did func(n uint64)) {
	failures := ratelimit.New(r.cfg.Log, "Failed to "+what)
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-b.ready:
		}
		endpoints := b.take()
		start := time.Now()
		for _, rescuer := range r.rescuers {
			n, err := do(rescuer, r.ctx, endpoints)
			if err != nil && r.ctx.Err() == nil && failures.Allow("") {
				r.cfg.Log.Error("Failed to "+what, "endpoints", len(endpoints), "err", err)
			}
			if n > 0 {
				r.mu.Lock()
				did(uint64(n))
				r.mu.Unlock()
			}
		}
		if !pause.For(r.ctx, pauseFactor*time.Since(start)) {
			return
		}
	}
}
