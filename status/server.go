package status

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"kube-proxy/internal/listen"
)

// ServerConfig configures a Server. Metrics, Log and all functions must be set; functions are
// called for each request, from any goroutine, so that they return current values.
type ServerConfig struct {
	Metrics *Metrics
	// Mode is the mode that runs, for /proxyMode.
	Mode string
	// Version is the Kubernetes version that this proxy replaces, as "v1.37.2", for /statusz.
	Version string
	// Started is when the process started; zero means when the Server was made.
	Started time.Time
	// Config returns the configuration as something that encoding/json writes, for /configz.
	Config func() (any, error)
	// Flags returns the command line's flags, each with its value, for /flagz.
	Flags func() map[string]string
	// Health returns the handler of /healthz, /livez and /readyz if the health server has the same
	// address, as up to v1.13 (S0); nil if it does not.
	Health func() http.Handler
	// Off are paths of HT-22 and HT-25 that feature gates have turned off: they are answered with
	// 404.
	Off []string
	// Machine has the identifiers of the host and its boot for /statusz, by label; nil leaves them
	// out.
	Machine map[string]string
	// Verbosity and SetVerbosity get and set the verbosity of the log, for /debug/flags/v.
	Verbosity    func() int
	SetVerbosity func(int)
	// Profiling enables /debug; see [Server.SetProfiling].
	Profiling bool

	// Addr is the address to listen on; the zero one means none, until a call of [Server.Listen]
	// (FL-09).
	Addr netip.AddrPort
	// Node is the node's name, which requests for profiles may name as Host.
	Node string
	// HardFail: [Server.Run] fails if it cannot listen on Addr at once. Else it tries again every 5
	// s (HT-07).
	HardFail bool
	// Log is where the address and failures are logged.
	Log *slog.Logger
}

// Server is the metrics server (HT-20 to HT-27). Make one with [NewServer], and run it with
// [Server.Run].
type Server struct {
	cfg       ServerConfig
	handler   http.Handler
	profiling atomic.Bool
	open      func(context.Context, listen.Address) (net.Listener, error)
	listener  *listen.Mover
	crowd     *listen.ConnLimit // of the connections to all addresses
	ending    sync.WaitGroup    // on requests in hand to addresses that were closed
}

// NewServer returns a server that does not listen yet.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Started.IsZero() {
		cfg.Started = time.Now()
	}
	s := &Server{cfg: cfg, open: listen.Open}
	s.profiling.Store(cfg.Profiling)
	s.handler = s.routes()
	s.crowd = &listen.ConnLimit{Most: listen.OwnShare().Connections, Full: func(closed int) {
		cfg.Log.Warn("Too many connections, closing the longest idle ones", "server", "metrics server", "closed",
			closed)
	}}
	s.listener = listen.NewMover(listen.Config{
		Open: func(ctx context.Context, p listen.Address) (net.Listener, error) {
			l, err := s.open(ctx, p)
			if err != nil {
				return nil, fmt.Errorf("metrics server: %w", err)
			}
			return l, nil
		},
		Serve: s.serve,
		Broke: func(at netip.AddrPort, err error) {
			cfg.Log.Error("Metrics server failed, reopening it", "addr", at, "err", err)
		},
		Failed: s.failed,
		Moved:  s.moved,
	})
	s.listener.Move(cfg.Addr, cfg.HardFail)
	return s
}

// SetProfiling enables or disables /debug. It may be called at any time from any goroutine.
func (s *Server) SetProfiling(on bool) { s.profiling.Store(on) }

// Listen changes the address; the zero one closes the server. It returns at once, and may be called
// at any time from any goroutine. The old address stays open until the new one is bound, however
// long that takes.
func (s *Server) Listen(addr netip.AddrPort) { s.listener.Move(addr, false) }

// Run serves until ctx ends, and then returns nil after the requests in hand, or some seconds. With
// HardFail it returns an error if the first address cannot be listened on. It must be called once.
func (s *Server) Run(ctx context.Context) error {
	defer s.ending.Wait()
	return s.listener.Run(ctx)
}

// closeWait is how long open requests may continue after their address was closed.
const closeWait = 3 * time.Second

// serve answers on one listener. Each listener has its own HTTP server, which ends with it, so that
// no connection to a closed address stays in use.
func (s *Server) serve(l net.Listener) error {
	h := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 10 * time.Second, // profiles may take as long as requested, headers may not
		WriteTimeout:      time.Minute,      // pprof adds the time that a profile takes
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    listen.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
	s.crowd.Bound(h)
	err := h.Serve(l)
	s.ending.Go(func() { listen.ShutDown(h, closeWait) })
	return err
}

func (s *Server) failed(_ netip.AddrPort, err error, again bool) {
	if again { // else Run returns it
		s.cfg.Log.Error("Metrics server cannot listen, retrying", "every", listen.RetryEvery, "err", err)
	}
}

func (s *Server) moved(_, to netip.AddrPort) {
	if to.IsValid() {
		s.cfg.Log.Info("Metrics server listening", "addr", to)
	} else {
		s.cfg.Log.Info("Metrics server closed")
	}
}
