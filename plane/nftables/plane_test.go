//go:build linux

package nftables

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

func name(w planetest.World, i int) string { o, _ := w.ClusterIP(i, 0, 0); return o.Name }

// The messages and bytes of a change do not depend on the number of services. The serving state
// beside the routes costs none (DP-50).
func TestCostOfAChange(t *testing.T) {
	cost := func(n int) (endpoint, service Stats) {
		w := planetest.World{Family: lb.IPv4}
		tab := w.Table(n, 10)
		p := started(t, w, tab)
		before := p.Stats()
		o, f := w.ClusterIP(n/2, n/2*10, 10)
		set := f[0].Set(lb.Cluster)
		all := slices.Collect(set.Backends.All())
		all[8].Addr = netip.AddrPortFrom(all[8].Addr.Addr(), 8081) // of ten, one on another node
		slices.SortFunc(all, lb.Backend.Compare)
		set.Backends = lb.BackendsOf(all...)
		apply(t, p, planetest.Changes(tab.Replace(o, f)))
		endpoint = p.Stats().minus(before)
		before = p.Stats()
		apply(t, p, planetest.Changes(tab.Replace(w.ClusterIP(n, n*10, 10))))
		service = p.Stats().minus(before)
		o, f = w.ClusterIP(n, n*10, 10)
		f[0].Serving = w.Set(f[0].Service, lb.Serving, n*10, 11)
		apply(t, p, planetest.Changes(tab.Replace(o, f)))
		if s := p.Stats().minus(before); s != service {
			t.Errorf("another endpoint that serves was sent: %+v, before %+v", s, service)
		}
		return endpoint, service
	}
	var small, large [2]Stats
	done := make(chan struct{})
	go func() { small[0], small[1] = cost(100); close(done) }()
	<-done
	large[0], large[1] = cost(2_000)
	if small != large {
		t.Errorf("with 100 services %+v, with 2,000 %+v", small, large)
	}
	if m := small[0].Messages; m != 2 {
		t.Errorf("one endpoint's change took %d messages, want 2: one element goes, one comes", m)
	}
	if m := small[1].Messages; m != 5 {
		t.Errorf("a new service took %d messages, want 5: class, set id, shape, backends, cluster IP", m)
	}
}

func (s Stats) minus(o Stats) Stats {
	return Stats{s.Batches - o.Batches, s.Failures - o.Failures, s.Messages - o.Messages, s.Bytes - o.Bytes}
}

// The nft program, also that of Debian 12, can list our table.
func TestListing(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(3, 2)
		tab.Replace(w.Full(10, 500, 5, 2, 0))
		tab.Replace(w.Full(11, 600, 5, 0, 3*time.Hour))
		started(t, w, tab)
		out := runNFT(t, "list ruleset")
		for _, want := range []string{
			w.Addr(10, 1).String() + " . tcp . 80 : 0x",
			"meta mark | 0x00000008 . " + rule.IPOf(w.Family).Name() + " saddr & ",
			"@source-ranges return",
			"tcp . 30010 : 0x",
			"map @backends",
			"typeof meta mark . numgen random mod 1 : " + rule.IPOf(w.Family).Name() + " daddr . th dport",
			"0x00000001 . 0 : ",
			"typeof meta mark . numgen random mod 1 : meta priority",
			" . 4 : 0:5",
			"numgen random mod 2",
			"timeout 3h",
			"masquerade fully-random",
			"priority dstnat",
			"typeof numgen random mod 1 . numgen random mod 1",
			"255 . 255",
			"@equal-bytes",
			"ct status dnat",
			"ct original ",
			". ct original proto-dst map @services",
			`comment "set id, slot -> backend"`,
			" : " + w.Addr(100, 500).String() + " . 8080",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("the listing does not show %q", want)
			}
		}
		if t.Failed() {
			t.Log(out)
		}
	})
}
