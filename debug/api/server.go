package api

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

const (
	// maxConnections is the number of connections open at once; others wait for one to end.
	maxConnections = 64
	// headerWait is how long the header of a question may take, and how long a connection may be
	// idle.
	headerWait = 5 * time.Second
	// maxHeader is how long it may be, in bytes.
	maxHeader = 16 << 10
	// again is how often opening a socket is retried, and how often an open one is checked for
	// replacement.
	again = 5 * time.Second
	// farewell is how long questions in hand may take at the end.
	farewell = 2 * time.Second
)

// Server answers questions at a unix socket, on Windows a named pipe. Make one with [NewServer].
type Server struct {
	http *http.Server
	log  *slog.Logger
	move chan struct{} // has a value when path was changed

	mu   sync.Mutex
	path string
}

// NewServer returns a server that answers at path, once it runs; "" for nowhere.
func NewServer(h http.Handler, path string, log *slog.Logger) *Server {
	return &Server{
		http: &http.Server{
			Handler: h, ReadHeaderTimeout: headerWait, IdleTimeout: headerWait, MaxHeaderBytes: maxHeader,
			ErrorLog: noLog(),
		},
		log: log, move: make(chan struct{}, 1), path: path,
	}
}

// noLog is the log of an HTTP server without a line per failed request.
func noLog() *log.Logger { return slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) }

// Listen changes the path, "" for nowhere. It returns at once, and may be called from any
// goroutine.
func (s *Server) Listen(path string) {
	s.mu.Lock()
	s.path = path
	s.mu.Unlock()
	select {
	case s.move <- struct{}{}:
	default:
	}
}

func (s *Server) wanted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.path
}

// Run serves until ctx ends. If the socket cannot be opened it logs that once, and retries: the
// rest of the proxy works without.
func (s *Server) Run(ctx context.Context) {
	var serving sync.WaitGroup
	var open *socket
	reported := ""
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		path := s.wanted()
		if open != nil && (open.path != path || !open.ours()) {
			open.close()
			open = nil
		}
		if open == nil && path != "" {
			l, err := openSocket(path)
			switch {
			case err != nil && err.Error() != reported:
				reported = err.Error()
				s.log.Warn("Admin socket unavailable, retrying", "path", path, "err", err)
			case err == nil:
				reported, open = "", l
				s.log.Info("Admin socket listening", "socket", path)
				serving.Go(func() { s.serve(l) })
			}
		}
		select {
		case <-ctx.Done():
			s.end(open)
			serving.Wait()
			return
		case <-s.move:
		case <-tick.C:
		}
	}
}

func (s *Server) serve(l *socket) {
	err := s.http.Serve(netutil.LimitListener(l, maxConnections))
	if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		s.log.Warn("Admin socket failed, reopening it", "path", l.path, "err", err)
	}
	l.broke.Store(true)
}

// end takes the socket away first: the next process can have it at once.
func (s *Server) end(open *socket) {
	if open != nil {
		open.remove()
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close() // slower clients are cut off
	}
	if open != nil {
		open.close()
	}
}
