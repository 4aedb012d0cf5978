package lb_test

import (
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
)

// A list of backends, with none, one or several ports, answers as a plain slice of them does.
func TestBackendsAreAList(t *testing.T) {
	at := func(addr string) lb.Backend { return lb.Backend{Addr: netip.MustParseAddrPort(addr)} }
	local, unplaced, draining := at("10.0.0.2:80"), at("10.0.0.3:80"), at("10.0.0.4:80")
	local.Local, unplaced.Unplaced, draining.Draining = true, true, true
	lists := [][]lb.Backend{
		nil,
		{at("10.0.0.1:80")},
		{at("10.0.0.1:80"), local, unplaced, draining},
		{at("10.0.0.1:80"), local, unplaced, at("10.0.0.1:81"), at("10.0.0.5:82"), at("10.0.0.6:82")},
		{at("10.0.0.1:80"), at("10.0.0.2:80"), at("10.0.0.1:82")},
	}
	for i, want := range lists {
		b := lb.BackendsOf(want...)
		if got := slices.Collect(b.All()); !slices.Equal(got, want) || b.Len() != len(want) {
			t.Errorf("list %d has the %d backends %v, want %v", i, b.Len(), got, want)
		}
		for range b.All() {
			break // must end the iteration
		}
		for n, is := range want {
			at, indexed := b.Index(is.Addr)
			found, ok := b.Find(is.Addr)
			if b.At(n) != is || at != n || !indexed || found != is || !ok || !b.Has(is.Addr) ||
				!b.HasAddr(is.Addr.Addr()) {
				t.Errorf("list %d, backend %d: got %v, index %d %t, found %v %t; want %v", i, n, b.At(n), at, indexed,
					found, ok, is)
			}
		}
		for _, lacks := range []string{"10.0.0.9:80", "10.0.0.1:79", "10.0.0.5:81", "10.0.0.5:83"} {
			a := netip.MustParseAddrPort(lacks)
			if found, ok := b.Find(a); ok || found != (lb.Backend{}) || b.Has(a) {
				t.Errorf("list %d has %v at %s", i, found, lacks)
			}
		}
		if b.HasAddr(netip.MustParseAddr("10.0.0.9")) {
			t.Errorf("list %d has 10.0.0.9", i)
		}
		for j, other := range lists {
			if o := lb.BackendsOf(other...); b.Equal(&o) != (i == j) {
				t.Errorf("list %d equals list %d: %t", i, j, b.Equal(&o))
			}
		}
		port, endpoints := b.Shared()
		if one := i == 1 || i == 2; endpoints.Len() != len(want) && one || one != (port == 80) {
			t.Errorf("list %d has %d endpoints at one port, %d", i, endpoints.Len(), port)
		}
	}
}
