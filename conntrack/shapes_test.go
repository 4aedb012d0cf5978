package conntrack

import (
	"fmt"
	"net/netip"
	"testing"

	"kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
	"kube-proxy/test/cputest"
	"kube-proxy/test/kerneltest"
)

// Comparing frontends that share a large set with their successors costs the set once, not once for
// each frontend.
func TestSharedSetsAreLinear(t *testing.T) {
	kerneltest.NotEmulated(t)
	replace := func(n int) func() {
		set := func(more ...lb.Backend) *lb.BackendSet {
			var all []lb.Backend
			for i := range n {
				all = append(all,
					lb.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), 53)})
			}
			return &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.UDP, Scope: lb.Cluster},
				Backends: lb.BackendsOf(append(all, more...)...)}
		}
		changes := func(to *lb.BackendSet) (out []lb.Change) {
			for i := range n {
				f := row(fmt.Sprintf("198.18.%d.%d:53/udp", i>>8, i&255), service, 0)
				f.Routes = []lb.Route{{From: lb.Host, Do: lb.Balance, To: to, Masq: true},
					{From: lb.Anywhere, Do: lb.Balance, To: to}}
				out = append(out, lb.Change{Key: f.Key, New: f})
			}
			return out
		}
		x, after := newIndex(nil), set(lb.Backend{Addr: netip.MustParseAddrPort("100.127.0.1:53")}) // no backend leaves
		one, other := changes(set()), changes(after)
		for _, c := range one {
			x.apply(c)
		}
		x.settle()
		return func() {
			for _, batch := range [][]lb.Change{other, one} { // and it is removed again
				for _, c := range batch {
					x.apply(c)
				}
				x.settle()
			}
		}
	}
	if ratio := cputest.Ratio(replace(100), replace(3200)); ratio > 160 { // 32 is linear, 1024 the square
		t.Errorf("3,200 rows with 3,200 backends cost %.0f times as much as 100 with 100", ratio)
	}
}

var (
	client = netip.MustParseAddrPort("192.0.2.7:40000")
	dns    = netip.MustParseAddrPort("10.96.0.10:53")
	podAP  = netip.MustParseAddrPort(podA)
)

// DP-52 PN-06: an entry costs no memory, whether it is stale or not.
func TestNoAllocs(t *testing.T) {
	x := newIndex(nil)
	x.apply(set(row(vip, service, lb.Cluster, podB)))
	x.apply(set(row("nodeport:30053/udp", service, lb.Cluster, podB)))
	p := x.take(flows, map[netip.Addr]struct{}{client.Addr(): {}})
	e := conntrack.Entry{Orig: conntrack.Tuple{From: client, To: dns, Proto: uint8(lb.UDP)},
		Reply: conntrack.Tuple{From: podAP, To: client, Proto: uint8(lb.UDP)}}
	msg := e.AppendNew(nil, 2)[16:] // behind struct nlmsghdr
	if n := testing.AllocsPerRun(1000, func() {
		if !e.Parse(msg) {
			t.Fatal("no entry")
		}
		if _, stale := p.stale(flow{lb.UDP, e.Orig.To, e.Reply.From, true}); !stale {
			t.Fatal("not stale")
		}
	}); n > 0 {
		t.Errorf("%v allocations for an entry", n)
	}
}
