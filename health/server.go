package health

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"kube-proxy/lb"
)

// Config says what a [Server] knows. All functions are called from several goroutines at once.
type Config struct {
	// Families are the families that the proxy serves, each with how it stands now.
	Families map[lb.Family]func() State
	// SyncPeriod is the sync period of the running mode; it may change. Nil, or a period that is not above 0,
	// means 30 s.
	SyncPeriod func() time.Duration
	// NodeEligible says whether this node's Node object is known, and whether load balancers may use the node:
	// it is not being deleted, and has no taint ToBeDeletedByClusterAutoscaler (HT-06). Nil means that there
	// are no Node objects, and the node is eligible.
	NodeEligible func() (known, eligible bool)
	// Answered is told of each answer on /healthz, /livez and /readyz (MT-15). It may be nil.
	Answered func(path string, code int)
	// OnListenFailed is told that the address cannot be bound: once, not at each try, until it can or the
	// error is another. It may be nil.
	OnListenFailed func(at netip.AddrPort, err error)
	// Log is where failures are logged; nil logs nothing.
	Log *slog.Logger
}

// Server is the proxy's health server; the package comment has its paths. Make one with [New].
type Server struct {
	cfg      Config
	made     time.Time
	draining atomic.Bool
	http     *http.Server
	open     opener
	changed  chan struct{} // has a value when Run should look

	mu   sync.Mutex
	wish wish
	at   netip.AddrPort // where it listens; not valid if nowhere
}

// wish is where to listen.
type wish struct {
	at       netip.AddrPort
	hardFail bool
}

// retryListen is the time from one try to bind the address to the next (HT-07).
const retryListen = 5 * time.Second

// New returns a server that listens nowhere yet.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, made: time.Now().UTC(), changed: make(chan struct{}, 1)}
	s.http = newHTTP(s, cfg.Log)
	s.open = opener{listen, s.http.Serve, cfg.Log}
	return s
}

// newHTTP returns the server behind any number of listeners. Probes are small and quick; whoever is not, is
// cut off.
func newHTTP(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       20 * time.Second,
		WriteTimeout:      20 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn), // such as no more file descriptors

		DisableGeneralOptionsHandler: true, // any method (HT-10)
	}
}

// Listen says where to listen from now on; the zero AddrPort means nowhere. An unspecified address, of either
// family, means all addresses of both, where the kernel has both (CF-14). The new address is bound before the
// old one is let go, unless one of them contains the other: then a connection may be refused in between.
//
// An address that cannot be bound is tried again every 5 s, while the old one serves; with hardFail the first
// failure ends [Server.Run] with an error (HT-07). Listen does not block.
func (s *Server) Listen(at netip.AddrPort, hardFail bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wish = wish{at, hardFail}
	s.ring()
}

func (s *Server) ring() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Addr returns where the server listens; it is not valid if it does nowhere.
func (s *Server) Addr() netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// Drain makes /readyz and /healthz fail from now on, because the process is about to end (PR-07). /livez stays
// as it is. Go on for as long as load balancers need to notice, then end [Server.Run].
func (s *Server) Drain() { s.draining.Store(true) }

// Run serves until ctx is done, and lets requests under way finish. It returns an error only where the address
// of a [Server.Listen] with hardFail cannot be bound. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	b := &binding{by: &s.open, lost: s.ring}
	defer s.end(b)
	said := ""
	for {
		w := s.take()
		err := s.rebind(ctx, b, w.at)
		if ctx.Err() != nil {
			return nil
		}
		var retry <-chan time.Time
		switch {
		case err == nil:
			said = ""
		case w.hardFail:
			s.failed(w.at, err, "health server does not listen")
			return fmt.Errorf("health server: %w", err)
		default:
			if said != err.Error() {
				said = err.Error()
				s.failed(w.at, err, "health server does not listen, trying again every 5 s")
			}
			retry = time.After(retryListen)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case <-retry:
		}
	}
}

// take returns what is wished, of which the ring, if it has come, tells nothing more.
func (s *Server) take() wish {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.changed:
	default:
	}
	return s.wish
}

func (s *Server) failed(at netip.AddrPort, err error, what string) {
	s.cfg.Log.Error(what, "address", at.String(), "err", err)
	if s.cfg.OnListenFailed != nil {
		s.cfg.OnListenFailed(at, err)
	}
}

// rebind listens at the address and nowhere else.
func (s *Server) rebind(ctx context.Context, b *binding, at netip.AddrPort) error {
	var want []place
	if at.IsValid() {
		want = []place{{"tcp", at}}
	}
	err := b.rebind(ctx, want)
	is := b.first()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case is == s.at:
	case is.IsValid():
		s.cfg.Log.Info("health server listens", "address", is.String())
	default:
		s.cfg.Log.Info("health server listens no more", "address", s.at.String())
	}
	s.at = is
	return err
}

func (s *Server) end(b *binding) {
	b.close()
	s.mu.Lock()
	s.at = netip.AddrPort{}
	s.mu.Unlock()
	shutDown(s.http)
}

// shutDown lets requests finish, but nobody make the process stay.
func shutDown(h *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if h.Shutdown(ctx) != nil {
		_ = h.Close() // what is left does not answer
	}
}
