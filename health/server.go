package health

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"kube-proxy/internal/listen"
	"kube-proxy/lb"
)

// Config configures a [Server]. All fields must be set; functions are called from several
// goroutines at once.
type Config struct {
	// Families are the served families, each with a function that returns its state.
	Families map[lb.Family]func() State
	// SyncPeriod is the sync period of the running mode; it may change. One that is not above 0
	// means 30 s.
	SyncPeriod func() time.Duration
	// NodeEligible reports whether this node's Node object is known, and whether load balancers may
	// use the node: it is not being deleted, and has no taint ToBeDeletedByClusterAutoscaler
	// (HT-06).
	NodeEligible func() (known, eligible bool)
	// NotReady returns the reason why the node is not ready though its rules are in force; "" if it
	// is.
	NotReady func() string
	// Waiting returns since when the process waits for the right to write rules, and a sentence
	// about the reason; the zero time means that it does not wait.
	Waiting func() (since time.Time, on string)
	// Answered is called for each answer on /healthz, /livez and /readyz (MT-15).
	Answered func(path string, code int)
	// OnListenFailed is called when the address cannot be bound: once, not at each try, until it
	// can or the error is another.
	OnListenFailed func(at netip.AddrPort, err error)
	// Log is where failures are logged.
	Log *slog.Logger
}

// Server is the proxy's health server; the package comment has its paths. Make one with [New].
type Server struct {
	cfg      Config
	made     time.Time
	draining atomic.Bool
	http     *http.Server
	open     func(context.Context, listen.Address) (net.Listener, error)
	listener *listen.Mover
}

// lastWords is how long open requests may continue after the server ends. Probes are quick.
const lastWords = time.Second

// New returns a server that listens nowhere yet.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, made: time.Now(), open: listen.Open}
	s.http = newHTTP("health server", s, cfg.Log)
	s.listener = listen.NewMover(listen.Config{
		Open:   func(ctx context.Context, p listen.Address) (net.Listener, error) { return s.open(ctx, p) },
		Serve:  s.http.Serve,
		Broke:  broke(cfg.Log),
		Failed: s.failed,
		Moved:  s.moved,
	})
	return s
}

// newHTTP returns the server behind any number of listeners. Probes are small and quick; slower
// clients are cut off, and so is the connection that is idle longest when there are too many.
func newHTTP(what string, h http.Handler, log *slog.Logger) *http.Server {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       20 * time.Second,
		WriteTimeout:      20 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    listen.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn), // for example out of file descriptors

		DisableGeneralOptionsHandler: true, // any method (HT-10)
	}
	limit := &listen.ConnLimit{Most: listen.OwnShare().Connections}
	limit.Full = func(closed int) {
		log.Warn("Too many connections, closing the longest idle ones", "server", what, "most", limit.Most, "closed",
			closed)
	}
	limit.Bound(s)
	return s
}

// Listen sets the address, as [listen.Mover.Move] does (CF-14). With hardFail a failed first try
// ends [Server.Run] (HT-07).
func (s *Server) Listen(at netip.AddrPort, hardFail bool) { s.listener.Move(at, hardFail) }

// Drain makes /readyz and /healthz fail from now on, because the process is about to end (PR-07).
// /livez does not change. Continue for as long as load balancers need to notice, then end
// [Server.Run].
func (s *Server) Drain() { s.draining.Store(true) }

// Run serves until ctx is done, and finishes open requests. It returns an error only if the address
// of a [Server.Listen] with hardFail cannot be bound. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	defer listen.ShutDown(s.http, lastWords)
	if err := s.listener.Run(ctx); err != nil {
		return fmt.Errorf("health server: %w", err)
	}
	return nil
}

func (s *Server) failed(at netip.AddrPort, err error, again bool) {
	if since, on := s.cfg.Waiting(); again && !since.IsZero() { // it has the address too
		s.cfg.Log.Info("Health server cannot listen yet", "address", at.String(), "err", err, "reason", on)
		return
	}
	s.cfg.Log.Error("Health server cannot listen", "address", at.String(), "err", err, "again", again)
	s.cfg.OnListenFailed(at, err)
}

func (s *Server) moved(from, to netip.AddrPort) {
	if to.IsValid() {
		s.cfg.Log.Info("Health server listening", "address", to.String())
	} else {
		s.cfg.Log.Info("Health server closed", "address", from.String())
	}
}

// broke returns the function that reports broken listeners.
func broke(log *slog.Logger) func(netip.AddrPort, error) {
	return func(at netip.AddrPort, err error) {
		log.Error("Listener failed, reopening it", "address", at.String(), "err", err)
	}
}
