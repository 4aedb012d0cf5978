package conntrack

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"kube-proxy/internal/pause"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
)

// Config configures a Cleaner. Family is required.
type Config struct {
	// Family is the family of the observed engine.
	Family lb.Family
	// Proxied is set if flows end at a proxy on this machine. It reports whether the proxy answers
	// flows of a frontend from that address and port; any goroutine may call it. Only flows of
	// frontends that are removed, begin to balance, or change their Service are checked, and those
	// that would miss the proxy's socket are deleted.
	Proxied func(row lb.Key, from netip.AddrPort) bool
	// Log reports deletions and failures, 20 at once and two a minute after that; nil is
	// slog.Default().
	Log *slog.Logger
	// Cleaned, if not nil, is called after each pass (MT-18), by the goroutine of [Cleaner.Run].
	Cleaned func(Pass)
}

// Pass is the result of one pass over the conntrack table.
type Pass struct {
	Took    time.Duration
	Dumps   int // how often the pass read the kernel's table, once for each protocol
	Deleted int // entries
}

// Cleaner deletes flows whose backend left. It is an engine.Observer and an engine.NodeObserver.
type Cleaner struct {
	cfg    Config
	kernel kernel
	close  func()
	wake   chan struct{} // has a value when there is new work
	// A pass is of all namespaces together, and so are the messages.
	passes, failures *ratelimit.Limiter

	mu     sync.Mutex
	index  *index
	rounds [2]round // by work
}

// round is when the next pass of a kind begins.
type round struct {
	work  bool          // changes wait for the pass
	from  time.Time     // it does not begin before
	retry time.Duration // how long the next failed pass waits; 0 if the last one succeeded
	again time.Time     // when a failed pass is repeated, if no change comes sooner
}

// gap returns the least time between the beginnings of two passes. A pass costs as much as the
// table is long, so all changes in between share one. A client that sent a SYN before the Service
// existed sends it again after 1, 3 and 7 seconds.
func (w work) gap() time.Duration {
	if w == attempts {
		return 3 * time.Second
	}
	return time.Second
}

// due returns when the pass begins; false if there is nothing to do.
func (r *round) due() (at time.Time, ok bool) {
	switch {
	case r.work:
		return r.from, true
	case r.retry == 0:
		return at, false
	case r.again.Before(r.from):
		return r.from, true
	}
	return r.again, true
}

// kernel is the part of table that a Cleaner needs.
type kernel interface {
	locals(ctx context.Context) (map[netip.Addr]struct{}, error)
	forget(ctx context.Context, proto lb.Proto, stale func(flow) (lb.Key, bool), failed func(lb.Key, error)) (tally,
		error)
}

const (
	// delay is how long the worker waits for more after the first change.
	delay = 20 * time.Millisecond
	// A pause of this many times the duration of a pass limits endless changes to a quarter of one
	// CPU.
	pauseFactor = 3
	firstRetry  = time.Second
	lastRetry   = time.Minute
	// grace is the time that the current pass may take after Run was stopped.
	grace = 5 * time.Second
)

// New opens the conntrack table of the calling thread's network namespace, where it needs
// CAP_NET_ADMIN. [Cleaner.Run] closes it.
func New(cfg Config) (*Cleaner, error) {
	t, err := openTable(cfg.Family)
	if err != nil {
		return nil, fmt.Errorf("open the conntrack table for %v: %w", cfg.Family, err)
	}
	return newCleaner(cfg, t, t.close), nil
}

func newCleaner(cfg Config, k kernel, close func()) *Cleaner {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	return &Cleaner{cfg: cfg, kernel: k, close: close, wake: make(chan struct{}, 1), index: newIndex(cfg.Proxied),
		passes:   ratelimit.New(cfg.Log, "Deleted stale conntrack entries"),
		failures: ratelimit.New(cfg.Log, "Failed to delete stale conntrack entries, retrying")}
}

// Applied takes note of changes that are in force. It does no I/O; its time follows the changes.
func (c *Cleaner) Applied(changes []lb.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range changes {
		if c.index.apply(change) {
			c.needs(workOf(change.Key.Proto))
		}
	}
	c.index.settle()
}

// needs makes a pass due, after a short wait for more changes.
func (c *Cleaner) needs(w work) {
	r := &c.rounds[w]
	if r.work {
		return
	}
	r.work = true
	if soon := time.Now().Add(delay); r.from.Before(soon) {
		r.from = soon
	}
	select {
	case c.wake <- struct{}{}:
	default: // it is awake
	}
}

// NodeApplied records the addresses that answer NodePorts. It does no I/O; if they changed its time
// is proportional to the frontends.
func (c *Cleaner) NodeApplied(n lb.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index.answerAt(n.NodePorts) {
		c.needs(flows)
	}
}

// Run is the worker. It ends with ctx, after the current pass, and closes the table. Call it once.
func (c *Cleaner) Run(ctx context.Context) {
	defer c.close()
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })()
	for {
		next, at, ok := c.next()
		var due <-chan time.Time
		if ok {
			due = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake: // it may be due sooner
			continue
		case <-due:
		}
		if took := c.clean(work, next); !pause.For(ctx, pauseFactor*took) {
			return
		}
	}
}

// next returns the work that is due first; false without work.
func (c *Cleaner) next() (next work, first time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.rounds {
		if at, due := c.rounds[w].due(); due && (!ok || at.Before(first)) {
			next, first, ok = work(w), at, true
		}
	}
	return next, first, ok
}

// clean is one pass. Keys that failed in it stay suspect.
func (c *Cleaner) clean(ctx context.Context, w work) (took time.Duration) {
	start := time.Now()
	p, err := c.plan(ctx, w)
	failed := err != nil
	if failed && c.failures.Allow("") {
		c.cfg.Log.Error("Failed to delete old conntrack entries of NodePorts, retrying", "err", err)
	}
	var n tally
	var retry []lb.Key
	var first error
	dumps := 0
	for _, proto := range w.protos() {
		if !p.asks(proto) {
			continue
		}
		dumps++
		did, err := c.kernel.forget(ctx, proto, p.stale, func(k lb.Key, err error) {
			retry = append(retry, k)
			if first == nil {
				first = fmt.Errorf("%v: %w", k, err)
			}
		})
		n.seen, n.deleted = n.seen+did.seen, n.deleted+did.deleted
		if err != nil {
			first = fmt.Errorf("%v flows: %w", proto, err)
			for k := range p.keys {
				if k.Proto == proto {
					retry = append(retry, k)
				}
			}
		}
	}
	took = time.Since(start)
	if first != nil {
		failed = true
		if c.failures.Allow("") {
			c.cfg.Log.Error("Failed to delete stale conntrack entries, retrying", "keys", len(retry), "err", first)
		}
	}
	c.note(w, start, p, retry, failed)
	if n.deleted > 0 && c.passes.Allow("") {
		c.cfg.Log.Info("Deleted stale conntrack entries", "deleted", n.deleted, "of", n.seen, "took", took)
	}
	if c.cfg.Cleaned != nil && dumps > 0 {
		c.cfg.Cleaned(Pass{Took: took, Dumps: dumps, Deleted: n.deleted})
	}
	return took
}

// plan takes the keys of the pass. Without the addresses of this machine, NodePorts stay suspect.
func (c *Cleaner) plan(ctx context.Context, w work) (*plan, error) {
	c.mu.Lock()
	need := c.index.hasNodePort(w)
	c.mu.Unlock()
	var locals map[netip.Addr]struct{}
	var err error
	if need { // not under the lock: Applied must not wait for the kernel
		locals, err = c.kernel.locals(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rounds[w].work = false // changes from here on need another pass
	return c.index.take(w, locals), err
}

// note records the end of a pass that began at start: keys that failed are suspect again.
func (c *Cleaner) note(w work, start time.Time, p *plan, retry []lb.Key, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range retry {
		c.index.retry(k, p)
	}
	r := &c.rounds[w]
	if from := start.Add(w.gap()); r.from.Before(from) {
		r.from = from
	}
	if !failed {
		r.retry = 0
		return
	}
	r.retry = min(max(2*r.retry, firstRetry), lastRetry)
	r.again = time.Now().Add(r.retry)
}
