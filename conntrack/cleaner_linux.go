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
	// Cleaned, if not nil, is called after each pass with its duration and the number of deleted
	// entries (MT-18), by the goroutine of [Cleaner.Run].
	Cleaned func(took time.Duration, deleted int)
}

// Cleaner deletes flows whose backend left. It is an engine.Observer and an engine.NodeObserver.
type Cleaner struct {
	cfg    Config
	kernel kernel
	close  func()
	wake   chan struct{} // has a value when something is suspect
	// A pass is of all namespaces together, and so are the messages.
	passes, failures *ratelimit.Limiter

	mu    sync.Mutex
	index *index
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
	// A pass costs as much as the table is long. A pause of this many times its duration limits
	// endless changes to a quarter of one CPU.
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
	work := false
	for _, change := range changes {
		work = c.index.apply(change) || work
	}
	c.index.settle()
	c.mu.Unlock()
	c.wakeIf(work)
}

func (c *Cleaner) wakeIf(work bool) {
	if !work {
		return
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
	work := c.index.answerAt(n.NodePorts)
	c.mu.Unlock()
	c.wakeIf(work)
}

// Run is the worker. It ends with ctx, after the current pass, and closes the table. Call it once.
func (c *Cleaner) Run(ctx context.Context) {
	defer c.close()
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })()
	retry := firstRetry
	wake, again := c.wake, (<-chan time.Time)(nil)
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
			if !pause.For(ctx, delay) {
				return
			}
		case <-again:
		}
		took, failed := c.clean(work)
		if !failed {
			retry, again = firstRetry, nil
		} else {
			again = time.After(retry)
			retry = min(2*retry, lastRetry)
		}
		if !pause.For(ctx, pauseFactor*took) {
			return
		}
	}
}

// clean is one pass. Keys that failed in it stay suspect.
func (c *Cleaner) clean(ctx context.Context) (took time.Duration, failed bool) {
	start := time.Now()
	p, err := c.plan(ctx)
	if failed = err != nil; failed && c.failures.Allow("") {
		c.cfg.Log.Error("Failed to delete old conntrack entries of NodePorts, retrying", "err", err)
	}
	var n tally
	var retry []lb.Key
	var first error
	for _, proto := range []lb.Proto{lb.UDP, lb.SCTP, lb.TCP} {
		if !p.asks(proto) {
			continue
		}
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
	c.note(p, retry)
	if first != nil {
		failed = true
		if c.failures.Allow("") {
			c.cfg.Log.Error("Failed to delete stale conntrack entries, retrying", "keys", len(retry), "err", first)
		}
	}
	if n.deleted > 0 && c.passes.Allow("") {
		c.cfg.Log.Info("Deleted stale conntrack entries", "deleted", n.deleted, "of", n.seen, "took", took)
	}
	if c.cfg.Cleaned != nil && len(p.keys) > 0 {
		c.cfg.Cleaned(took, n.deleted)
	}
	return took, failed
}

// plan takes the suspect keys. Without the addresses of this machine, NodePorts stay suspect.
func (c *Cleaner) plan(ctx context.Context) (*plan, error) {
	c.mu.Lock()
	need := c.index.hasNodePort()
	c.mu.Unlock()
	var locals map[netip.Addr]struct{}
	var err error
	if need { // not under the lock: Applied must not wait for the kernel
		locals, err = c.kernel.locals(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index.take(locals), err
}

// note makes keys suspect again that failed in the pass.
func (c *Cleaner) note(p *plan, retry []lb.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range retry {
		c.index.retry(k, p)
	}
}
