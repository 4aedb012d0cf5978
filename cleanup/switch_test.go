package cleanup

import (
	"fmt"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/nftables"
	"kube-proxy/plane/planetest"
)

// PR-08: a node changes from the mode iptables to nftables and back, some times. Loops of requests notice nothing, each
// arrives with the source address that it should have, also while both sets of rules are in force; and connections that
// live on do so, as they are used all the time.
func TestSwitchUnderTraffic(t *testing.T) {
	needsRoot(t)
	needs(t, "iptables-nft", "ip6tables-nft", "nft")
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) {
			if b == iptables.Legacy && !legacyWorks() {
				t.Skip("this machine has no legacy iptables")
			}
			switchUnderTraffic(t, b)
		})
	}
}

func switchUnderTraffic(t *testing.T, b iptables.Backend) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	families := []lb.Family{lb.IPv4, lb.IPv6}
	// Each mode is started as a new process would: with planes of its own.
	type plane interface {
		planetest.Plane
		Close() error
	}
	start := func(open func(fam lb.Family) (plane, error)) {
		for _, fam := range families {
			p, err := open(fam)
			if err != nil {
				t.Fatal(err)
			}
			tab, _, _ := planetest.Shop(fam)
			if err := p.Reset(t.Context(), tab); err != nil {
				t.Error(err)
			}
			p.Close()
		}
	}
	useIPTables := func() {
		start(func(fam lb.Family) (plane, error) { return iptables.New(iptables.Config{Family: fam, Backend: b}) })
	}
	useNFTables := func() {
		start(func(fam lb.Family) (plane, error) { return nftables.New(nftables.Config{Family: fam}) })
	}
	others := func(now Running) Report {
		t.Helper()
		now.Families = families
		r, err := Others(t.Context(), now)
		if err != nil {
			t.Error(err)
		}
		return r
	}
	lab.On("node1", useIPTables)

	var ways []netlab.Way
	for _, fam := range families {
		_, vip, nodePort := planetest.Shop(fam)
		// Pods keep their address; all others are masqueraded, which the node's own requests need not be told from.
		ways = append(ways, netlab.Way{From: "pod3", To: vip, Seen: "pod3"}, netlab.Way{From: "node1", To: vip, Seen: "node1"},
			netlab.Way{From: "client", To: nodePort, Seen: "node1"})
	}
	traffic := lab.Traffic(ways...)
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	traffic.More()
	for range rounds {
		lab.On("node1", useNFTables)
		traffic.More() // both are in force
		lab.On("node1", func() {
			r := others(Running{Mode: "nftables"})
			if len(r.Left) > 0 || !strings.Contains(strings.Join(r.Removed, "\n"), "chains of iptables ("+string(b)+", IPv6)") {
				t.Errorf("%+v", r)
			}
			for _, program := range []string{"iptables-" + string(b), "ip6tables-" + string(b)} {
				for line := range strings.Lines(rules(t, program)) {
					if strings.Contains(line, "KUBE-") && !strings.Contains(line, "KUBE-FIREWALL") {
						t.Errorf("left by %s: %s", program, line)
					}
				}
			}
		})
		traffic.More()
		traffic.Open() // made by nftables
		lab.On("node1", useIPTables)
		traffic.More()
		lab.On("node1", func() {
			r := others(Running{Mode: "iptables", Backends: same(b)})
			want := []string{"the nftables table kube-proxy of IPv4", "the nftables table kube-proxy of IPv6"}
			if fmt.Sprint(r.Removed) != fmt.Sprint(want) || len(r.Left) > 0 {
				t.Errorf("%+v", r)
			}
			if again := others(Running{Mode: "iptables", Backends: same(b)}); len(again.Removed)+len(again.Left) > 0 {
				t.Errorf("a second time: %+v", again)
			}
		})
		traffic.More()
		traffic.Open()
	}
	traffic.Stop()
}
