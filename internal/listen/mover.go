package listen

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// RetryEvery is the time from one try to bind an address to the next (HT-07).
const RetryEvery = 5 * time.Second

// Config configures a [Mover]. All fields must be set.
type Config struct {
	// Open opens a listener; usually it is [Open].
	Open func(context.Context, Address) (net.Listener, error)
	// Serve accepts until the listener is closed or breaks, and returns why it ended. [Mover.Run]
	// waits for that.
	Serve func(net.Listener) error
	// Broke is called when a listener ends without being closed. It is opened again [ReopenAfter]
	// later.
	Broke func(at netip.AddrPort, err error)
	// Failed is called when an address cannot be bound: once, not at each try, until it can or the
	// error changes. again reports whether the Mover retries; otherwise Run returns the error.
	Failed func(at netip.AddrPort, err error, again bool)
	// Moved receives the old and the new address of the listener. An address that is not valid
	// means none, also after the listener broke.
	Moved func(from, to netip.AddrPort)
}

// Mover keeps a listener at an address that may change at any time. Make one with [NewMover].
type Mover struct {
	cfg     Config
	changed chan struct{} // has a value when Run should look

	mu     sync.Mutex
	target target
	now    *listener
}

// target is where to listen.
type target struct {
	at       netip.AddrPort
	hardFail bool // the next try is the only one
}

// NewMover returns a Mover without an address.
func NewMover(cfg Config) *Mover { return &Mover{cfg: cfg, changed: make(chan struct{}, 1)} }

// Move sets the address; the zero AddrPort means no address. An unspecified address, of either
// family, means all addresses of both, where the kernel has both. The new address is bound before
// the old one is closed, unless one of them contains the other: then a connection may be refused in
// between.
//
// An address that cannot be bound is retried every [RetryEvery], while the old one serves; with
// hardFail the first try must succeed, or it ends [Mover.Run] with an error (HT-07). Move does not
// block, and may be called before Run.
func (m *Mover) Move(at netip.AddrPort, hardFail bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.target = target{at, hardFail}
	m.ring()
}

func (m *Mover) ring() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Addr returns where the listener is, with the port that port 0 became; it is not valid if it is
// nowhere.
func (m *Mover) Addr() netip.AddrPort {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.addr()
}

// Run listens until ctx is done, then closes the listener. It returns when all calls of
// Config.Serve have, with an error of Config.Open only where that was not to fail. Run may be
// called once.
func (m *Mover) Run(ctx context.Context) error {
	b := &Binding{Open: m.cfg.Open, Serve: m.cfg.Serve, Broke: m.cfg.Broke, Reopen: m.ring}
	defer m.end(b)
	said := ""
	for {
		w := m.take()
		err := m.rebind(ctx, b, w.at)
		if ctx.Err() != nil {
			return nil
		}
		var retry <-chan time.Time
		switch {
		case err == nil:
			said = ""
		case w.hardFail:
			m.cfg.Failed(w.at, err, false)
			return err
		default:
			if said != err.Error() {
				said = err.Error()
				m.cfg.Failed(w.at, err, true)
			}
			retry = time.After(RetryEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.changed:
		case <-retry:
		}
	}
}

// take returns the target, and clears the notification if there is one. It reports hardFail once: a
// listener that breaks later is no reason to end.
func (m *Mover) take() target {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.changed:
	default:
	}
	w := m.target
	m.target.hardFail = false
	return w
}

// rebind listens at the address and nowhere else.
func (m *Mover) rebind(ctx context.Context, b *Binding, at netip.AddrPort) error {
	var want []Address
	if at.IsValid() {
		want = []Address{{"tcp", at}}
	}
	was := m.Addr() // and not later: a conflicting listener may be opened again at the same address
	err := b.Rebind(ctx, want)
	m.mu.Lock()
	m.now = b.only()
	is := m.now.addr()
	m.mu.Unlock()
	if was != is {
		m.cfg.Moved(was, is)
	}
	return err
}

func (m *Mover) end(b *Binding) {
	b.Close()
	m.mu.Lock()
	m.now = nil
	m.mu.Unlock()
	b.serving.Wait()
}

// ShutDown lets requests in progress finish, within the limit; then it closes their connections.
func ShutDown(h *http.Server, limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if h.Shutdown(ctx) != nil {
		_ = h.Close() // remaining connections do not answer
	}
}
