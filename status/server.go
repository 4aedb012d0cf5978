package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ServerConfig says what a Server shows. The functions are called for each request, from any goroutine, so that they
// show what holds now. Metrics must be set.
type ServerConfig struct {
	Metrics *Metrics
	// Mode is the mode that runs, for /proxyMode.
	Mode string
	// Version is the Kubernetes version that this proxy stands in for, as "v1.37.2", for /statusz.
	Version string
	// Started is when the process started; zero means when the Server was made.
	Started time.Time
	// Config returns the configuration as something that encoding/json writes, for /configz; nil leaves it out.
	Config func() (any, error)
	// Flags returns the command line's flags, each with its value, for /flagz; nil means none.
	Flags func() map[string]string
	// Health returns what answers /healthz, /livez and /readyz where the address is that of the health server too, as up to
	// v1.13 (S0); nil, or a nil handler, where it is not.
	Health func() http.Handler
	// Off are paths of HT-22 and HT-25 that feature gates have turned off: they are answered with 404.
	Off []string
	// Machine names the host and its present life for /statusz, by what they are called; nil leaves them out.
	Machine map[string]string
	// Verbosity and SetVerbosity get and set the verbosity of the log, for /debug/flags/v; nil leaves it out.
	Verbosity    func() int
	SetVerbosity func(int)
	// Profiling says whether /debug is there; see [Server.SetProfiling].
	Profiling bool

	// Addr is the address to listen on; the zero one means none, until [Server.Listen] gives one (FL-09).
	Addr netip.AddrPort
	// HardFail: [Server.Run] fails if it cannot listen on Addr at once. Else it tries again every 5 s (HT-07).
	HardFail bool
	// Log is where the address and failures are told; nil means slog.Default().
	Log *slog.Logger
}

// retryPeriod is the time between two tries to listen (HT-07).
const retryPeriod = 5 * time.Second

// reopenAfter is how long a listener that broke stays closed: its cause, such as a lack of memory, may last.
const reopenAfter = time.Second

// Server is the metrics server (HT-20 to HT-27). Make one with [NewServer], and run it with [Server.Run].
type Server struct {
	cfg       ServerConfig
	handler   http.Handler
	profiling atomic.Bool
	wake      chan struct{} // has a value when the address changed

	mu   sync.Mutex
	want netip.AddrPort
	open *opened // nil where nothing is open
}

// opened is an address that is listened on.
type opened struct {
	addr   netip.AddrPort
	listen net.Listener
	server *http.Server
}

// NewServer returns a server that does not listen yet.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Started.IsZero() {
		cfg.Started = time.Now()
	}
	s := &Server{cfg: cfg, wake: make(chan struct{}, 1), want: cfg.Addr}
	s.profiling.Store(cfg.Profiling)
	s.handler = s.routes()
	return s
}

// SetProfiling says whether /debug is there. It may be called at any time from any goroutine.
func (s *Server) SetProfiling(on bool) { s.profiling.Store(on) }

// Listen changes the address; the zero one closes the server. It returns at once, and may be called at any time from
// any goroutine. The old address is open until the new one is; if the new one cannot be had, for as long as that takes.
func (s *Server) Listen(addr netip.AddrPort) {
	s.mu.Lock()
	s.want = addr
	s.mu.Unlock()
	s.ring()
}

func (s *Server) ring() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Addr returns what is listened on, with the port that the system chose if port 0 was asked for; nil if nothing is.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		return nil
	}
	return s.open.listen.Addr()
}

// Run serves until ctx ends, and then returns nil after the requests in hand, or some seconds. With HardFail it
// returns an error if the first address cannot be listened on. It must be called once.
func (s *Server) Run(ctx context.Context) error {
	defer func() { shut(s.take(nil)) }()
	said := ""
	for first := true; ; first = false {
		err := s.settle(ctx)
		if err != nil && first && s.cfg.HardFail {
			return err
		}
		var again <-chan time.Time
		if err != nil {
			again = time.After(retryPeriod)
			if said != err.Error() {
				s.cfg.Log.Error("no metrics server there, trying again", "every", retryPeriod, "err", err)
			}
			said = err.Error()
		} else {
			said = ""
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-again:
		}
	}
}

// settle listens where it should.
func (s *Server) settle(ctx context.Context) error {
	s.mu.Lock()
	want, open := s.want, s.open
	s.mu.Unlock()
	switch {
	case open == nil && !want.IsValid(), open != nil && open.addr == want:
		return nil
	case !want.IsValid():
		shut(s.take(nil))
		s.cfg.Log.Info("metrics server closed")
		return nil
	}
	l, err := listen(ctx, want)
	if errors.Is(err, syscall.EADDRINUSE) && open != nil && open.addr.Port() == want.Port() {
		// It may be ourselves who are in the way: with one port, all addresses exclude each single one.
		shut(s.take(nil))
		if l, err = listen(ctx, want); err != nil {
			if back, again := listen(ctx, open.addr); again == nil {
				s.serve(open.addr, back)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("metrics server: %w", err)
	}
	old := s.serve(want, l)
	s.cfg.Log.Info("metrics server listens", "addr", l.Addr())
	shut(old)
	return nil
}

func listen(ctx context.Context, addr netip.AddrPort) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(ctx, "tcp", addr.String())
}

// serve has a listener served, and returns what was open before.
func (s *Server) serve(addr netip.AddrPort, l net.Listener) (old *opened) {
	o := &opened{addr: addr, listen: l, server: &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 10 * time.Second, // profiles may take as long as they are asked to, what precedes them not
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}}
	old = s.take(o)
	go func() {
		if err := o.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.cfg.Log.Error("metrics server broke, opening it again", "addr", addr, "err", err)
			s.mu.Lock()
			if s.open == o {
				s.open = nil
			}
			s.mu.Unlock()
			time.AfterFunc(reopenAfter, s.ring)
		}
	}()
	return old
}

// take puts another one in the place of what is open, and returns that; nil if nothing is.
func (s *Server) take(o *opened) (old *opened) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.open = s.open, o
	return old
}

// closeWait is how long requests in hand may go on after their address was closed.
const closeWait = 3 * time.Second

// shut stops listening, and waits a while for the requests in hand.
func shut(o *opened) {
	if o == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	if o.server.Shutdown(ctx) != nil {
		o.server.Close()
	}
}
