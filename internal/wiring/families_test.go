//go:build linux

package wiring

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/config"
	"kube-proxy/lb"
)

// Both families are served, and the primary one is that of a specific --bind-address, else IPv4
// (PR-02, CF-13).
func TestPrimaryFamily(t *testing.T) {
	for addr, primary := range map[string]lb.Family{"0.0.0.0": lb.IPv4, "::": lb.IPv4, "192.0.2.1": lb.IPv4,
		"2001:db8::1": lb.IPv6} {
		got := Families(&config.Config{BindAddress: netip.MustParseAddr(addr)}, slog.New(slog.DiscardHandler))
		if len(got) != 2 || got[0] != primary || !slices.Contains(got, lb.IPv4) || !slices.Contains(got, lb.IPv6) {
			t.Errorf("--bind-address %s: %v, want %v first, then the other", addr, got, primary)
		}
	}
}
