package health

import (
	"cmp"
	"log/slog"
	"net/netip"
	"time"
)

// newServer is [New] with defaults for all that a test leaves out.
func newServer(cfg Config) *Server {
	if cfg.NotReady == nil {
		cfg.NotReady = func() string { return "" }
	}
	if cfg.SyncPeriod == nil {
		cfg.SyncPeriod = func() time.Duration { return 0 }
	}
	if cfg.NodeEligible == nil {
		cfg.NodeEligible = func() (bool, bool) { return true, true }
	}
	if cfg.Waiting == nil {
		cfg.Waiting = func() (time.Time, string) { return time.Time{}, "" }
	}
	if cfg.Answered == nil {
		cfg.Answered = func(string, int) {}
	}
	if cfg.OnListenFailed == nil {
		cfg.OnListenFailed = func(netip.AddrPort, error) {}
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return New(cfg)
}

// newServices is [NewServices] with defaults for all that a test leaves out.
func newServices(cfg ServicesConfig) *Services {
	if cfg.Healthy == nil {
		cfg.Healthy = func() bool { return true }
	}
	if cfg.Addresses == nil {
		cfg.Addresses = func() []netip.Addr { return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} }
	}
	if cfg.OnListenFailed == nil {
		cfg.OnListenFailed = func(string, uint16, error) {}
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return NewServices(cfg)
}

// Addr returns where the server listens; it is not valid if it does nowhere.
func (s *Server) Addr() netip.AddrPort { return s.listener.Addr() }
