package plane_test

import (
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

// row returns a frontend of a Service with so many backends.
func row(service string, port uint16, backends int) *lb.Frontend {
	var all []lb.Backend
	for i := range backends {
		all = append(all, lb.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, 0, byte(i)}), 80)})
	}
	set := &lb.BackendSet{Backends: lb.BackendsOf(all...)}
	key := lb.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: port, Proto: lb.TCP}
	return &lb.Frontend{Service: service, Key: key, Routes: []lb.Route{{To: set}}}
}

// A Reset writes what the kernel serves. It writes the rest if that is little, else none of it, and
// the frontends of a Service stay together.
func TestPostpone(t *testing.T) {
	served := row("a", 1, 9)
	rows := []*lb.Frontend{row("b", 2, 1), served, row("c", 3, 1), row("b", 4, 1)}
	serves := func(f *lb.Frontend) bool { return f == served }
	ports := func(rows []*lb.Frontend) (all []uint16) {
		for _, k := range plane.Keys(rows) {
			all = append(all, k.Port)
		}
		return all
	}
	for _, c := range []struct {
		most       int
		now, later []uint16
	}{
		{6, []uint16{2, 1, 3, 4}, nil},
		{5, []uint16{1}, []uint16{2, 4, 3}},
	} {
		now, later := plane.Postpone(nil, slices.Values(rows), c.most, serves)
		if !slices.Equal(ports(now), c.now) || !slices.Equal(ports(later), c.later) {
			t.Errorf("at most %d: now %v, later %v; want %v and %v", c.most, ports(now), ports(later), c.now, c.later)
		}
	}
}

// Dropped names each key once, in order, however often the kernel has it.
func TestDropped(t *testing.T) {
	all := planetest.World{Family: lb.IPv4}.Table(3, 1).Sorted()
	kept, gone, also := all[0], all[2].Key, all[1].Key
	want := &lb.Table{}
	want.Replace(lb.Owner{Name: kept.Service}, []*lb.Frontend{kept})
	got := plane.Dropped(slices.Values([]lb.Key{gone, kept.Key, also, gone}), want)
	if !slices.Equal(got, []lb.Key{also, gone}) {
		t.Errorf("dropped %v, want %v and %v", got, also, gone)
	}
}
