package status

import (
	"cmp"
	"log/slog"
	"net"
	"net/http"
)

// FillMetrics is [NewMetrics] with defaults for all that a test leaves out.
func FillMetrics(cfg MetricsConfig) *Metrics {
	if cfg.Changes == nil {
		cfg.Changes = func() (uint64, uint64) { return 0, 0 }
	}
	if cfg.EventsDropped == nil {
		cfg.EventsDropped = func() uint64 { return 0 }
	}
	if cfg.Overridden == nil {
		cfg.Overridden = func() bool { return false }
	}
	if cfg.Connected == nil {
		cfg.Connected = func() bool { return true }
	}
	if cfg.NodeProblems == nil {
		cfg.NodeProblems = func() map[NodeProblem]int { return nil }
	}
	if cfg.Snapshot == nil {
		cfg.Snapshot = func() Snapshot { return Snapshot{} }
	}
	if cfg.Conntrack == nil {
		cfg.Conntrack = func() (uint64, uint64, bool) { return 0, 0, false }
	}
	if cfg.Failover == nil {
		cfg.Failover = func() Failover { return Failover{} }
	}
	if cfg.Refused == nil {
		cfg.Refused = func(string) int { return 0 }
	}
	if cfg.PortsTaken == nil {
		cfg.PortsTaken = func() (int, int) { return 0, 0 }
	}
	if cfg.NotOK == nil {
		cfg.NotOK = func(int, func(string, string, string, int)) {}
	}
	return NewMetrics(cfg)
}

// FillServer is [NewServer] with defaults for all that a test leaves out.
func FillServer(cfg ServerConfig) *Server {
	if cfg.Config == nil {
		cfg.Config = func() (any, error) { return map[string]any{}, nil }
	}
	if cfg.Flags == nil {
		cfg.Flags = func() map[string]string { return nil }
	}
	if cfg.Health == nil {
		cfg.Health = func() http.Handler { return nil }
	}
	if cfg.Verbosity == nil {
		cfg.Verbosity, cfg.SetVerbosity = func() int { return 0 }, func(int) {}
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return NewServer(cfg)
}

// Addr returns the listen address, with the port that the system chose for port 0; nil without a
// listener.
func (s *Server) Addr() net.Addr {
	if a := s.listener.Addr(); a.IsValid() {
		return net.TCPAddrFromAddrPort(a)
	}
	return nil
}
