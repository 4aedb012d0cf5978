//go:build linux

package cleanup

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	leftovers "kube-proxy/plane/ipvs"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// upstreamOverIPVS imitates the first write of upstream's mode ipvs over existing objects: it adds
// the addresses, sends all new clients to the real server behind its virtual servers, and writes
// its chains in nat (DP-31, DP-33). It does not use marks or mangle.
func upstreamOverIPVS(t *testing.T, to []netip.AddrPort, real netip.AddrPort) {
	t.Helper()
	run(t, "", "ip", "link", "show", leftovers.Device)
	h := openIPVS(t)
	for _, at := range to {
		run(t, "", "ip", "addr", "replace", at.Addr().String()+"/32", "dev", leftovers.Device)
		s := &ipvs.Service{SchedName: "rr", AddressFamily: unix.AF_INET, Netmask: 0xffffffff,
			Address: net.IP(at.Addr().AsSlice()), Port: at.Port(), Protocol: unix.IPPROTO_TCP}
		if !h.IsServicePresent(s) {
			must(t, h.NewService(s))
		}
		want := &ipvs.Destination{Address: net.IP(real.Addr().AsSlice()), Port: real.Port(), Weight: 1,
			AddressFamily: unix.AF_INET}
		dests, err := h.GetDestinations(s)
		if err != nil {
			t.Fatal(err)
		}
		has := slices.ContainsFunc(dests, func(d *ipvs.Destination) bool { return d.Address.Equal(want.Address) })
		if !has { // first, so that a real server always has a weight
			must(t, h.NewDestination(s, want))
		}
		for _, d := range dests {
			if d.Address.Equal(want.Address) {
				continue
			}
			d.Weight = 0 // its connections continue (DP-34)
			must(t, h.UpdateDestination(s, d))
		}
	}
	run(t, `*nat
:KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-A KUBE-SERVICES ! -s 10.1.0.0/16 -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MASQUERADE
COMMIT
`, "iptables-nft-restore", "--noflush")
	for _, jump := range [][2]string{{"PREROUTING", "KUBE-SERVICES"}, {"OUTPUT", "KUBE-SERVICES"},
		{"POSTROUTING", "KUBE-POSTROUTING"}} {
		run(t, "", "iptables-nft", "-t", "nat", "-A", jump[0], "-j", jump[1])
	}
}

// G4: the way back from our mode ipvs to upstream's, as docs/migrating.md describes it. Upstream's
// virtual servers serve at once, but packets with a mark still meet our last state. Once the chains
// of mangle are empty, they meet upstream's; a loop of requests and open connections see no
// failure. With --cleanup in between nothing of ours is left, and no client is served meanwhile
// (DP-31, DP-33, PR-08).
func TestIPVSTakeBack(t *testing.T) {
	kerneltest.Every(t)
	needsIPVS(t)
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod2", "pod4")
	tab, vip, _ := planetest.Shop(lb.IPv4)
	balancer := netip.MustParseAddrPort("192.0.2.10:80")
	// A load balancer with externalTrafficPolicy Local: a mark sends pods to other backends than
	// other clients.
	backends := slices.Collect(tab.Get(lb.Key{Addr: vip.Addr(), Port: 80, Proto: lb.TCP}).Routes[0].To.Backends.All())
	set := func(scope lb.Scope, all []lb.Backend) *lb.BackendSet {
		return &lb.BackendSet{ID: lb.SetID{Service: "shop/till:http", Proto: lb.TCP, Scope: scope},
			Backends: lb.BackendsOf(all...)}
	}
	anyone, local := set(lb.Cluster, backends),
		set(lb.Local, slices.DeleteFunc(slices.Clone(backends), func(b lb.Backend) bool {
			return !b.Local
		}))
	tab.Replace(lb.Owner{Name: "shop/till"},
		[]*lb.Frontend{{Key: lb.Key{Addr: balancer.Addr(), Port: 80, Proto: lb.TCP}, Service: "shop/till:http",
			Kind: lb.LoadBalancer,
			Routes: []lb.Route{{From: lb.Pods, Do: lb.Balance, To: anyone}, {From: lb.Anywhere, Do: lb.Balance,
				To: local}}}})
	if tab.Get(lb.Key{Addr: balancer.Addr(), Port: 80, Proto: lb.TCP}) == nil {
		t.Fatal("the table does not take the load balancer")
	}
	ours := func() {
		t.Helper()
		setSysctls(t)
		p := openMode(t, map[lb.Family]xtables.Backend{}, lb.IPv4)
		defer p.Close()
		must(t, errOf(planetest.ResetAll(t.Context(), p, tab)))
	}
	// IPVS confuses two connections from one client port to one real server (docs/ipvs.md).
	last := uint16(10000)
	options := func() netlab.DialOptions {
		last++
		return netlab.DialOptions{Timeout: 5 * netlab.DefaultTimeout, Local: netip.AddrPortFrom(netip.IPv4Unspecified(),
			last)}
	}
	served := func(when string, to netip.AddrPort, by ...string) {
		t.Helper()
		for range 4 {
			if r, err := lab.Dial("pod3", netlab.TCP, to, options()); err != nil || !slices.Contains(by, r.Server) {
				t.Errorf("%s: pod3 → %s: %v, %v, want one of %v", when, to, r, err, by)
			}
		}
	}
	both, new := []netip.AddrPort{vip, balancer}, netip.MustParseAddrPort("10.1.1.12:8080")

	lab.On("node1", ours)
	served("ours", vip, "pod1", "pod4")
	served("ours", balancer, "pod1", "pod4")
	open, err := lab.Open("pod3", netlab.TCP, balancer, options())
	if err != nil {
		t.Fatal(err)
	}
	traffic := lab.Traffic(netlab.Way{From: "pod3", To: vip, Seen: "pod3", Port: 20000},
		netlab.Way{From: "pod3", To: balancer, Seen: "pod3", Port: 22000})
	traffic.More()
	lab.On("node1", func() { upstreamOverIPVS(t, both, new) })
	traffic.More()
	served("upstream over ours", vip, "pod2")
	served("upstream over ours, by a mark", balancer, "pod1", "pod4") // the reason for the steps
	lab.On("node1", func() {
		for _, chain := range []string{"KUBE-IPVS-IN", "KUBE-IPVS-OUT"} {
			run(t, "", "iptables-nft", "-t", "mangle", "-F", chain)
		}
	})
	traffic.More()
	traffic.Stop()
	served("the chains of mangle are empty", vip, "pod2")
	served("the chains of mangle are empty", balancer, "pod2")
	if _, err := open.Exchange(); err != nil {
		t.Errorf("a connection by a mark that was open: %v", err)
	}

	// The other way.
	lab.On("node1", func() {
		ours()
		r, err := Run(t.Context(), all.Modes(), mode.Removal{MasqueradeBit: 14})
		if err != nil || len(r.Left) > 0 {
			t.Errorf("left: %q, %v", r.Left, err)
		}
		if left := virtuals(t, openIPVS(t)); len(left) > 0 {
			t.Errorf("virtual servers stay: %q", left)
		}
		if rules := rules(t, "iptables-nft"); strings.Contains(rules, "KUBE-IPVS-") {
			t.Errorf("chains stay:\n%s", rules)
		}
	})
	if r, err := lab.Dial("pod3", netlab.TCP, vip, netlab.DialOptions{}); err == nil {
		t.Errorf("between the two a request is served: %v", r)
	}
	lab.On("node1", func() {
		run(t, "", "ip", "link", "add", leftovers.Device, "type", leftovers.DeviceType)
		upstreamOverIPVS(t, both, new)
	})
	served("after --cleanup", vip, "pod2")
	served("after --cleanup", balancer, "pod2")
}
