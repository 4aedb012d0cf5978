//go:build linux

package cleanup

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/nftables"
	"kube-proxy/test/planetest"
)

// switches is how often TestSwitchUnderTraffic changes the mode and back with each back end; `make
// switches` uses a high number.
var switches = flag.Int("switches", 2, "changes of the mode to and fro, with each back end")

// PR-08: a node changes from the mode iptables to nftables and back, some times. Loops of requests
// see no failure, and each arrives with the right source address, also while both sets of rules are
// in force. Connections that send all the time live on.
func TestSwitchUnderTraffic(t *testing.T) {
	needsRoot(t)
	needs(t, "iptables-nft", "ip6tables-nft", "nft")
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) {
			if b == xtables.Legacy && !legacyWorks() {
				t.Skip("this machine has no legacy iptables")
			}
			switchUnderTraffic(t, b)
		})
	}
}

// opened is a plane in a new process.
type opened interface {
	planetest.Plane
	Close() error
}

func openIPTables(b xtables.Backend) func(lb.Family) (opened, error) {
	return func(fam lb.Family) (opened, error) { return iptables.New(iptables.Config{Family: fam, Backend: b}) }
}

func openNFTables(fam lb.Family) (opened, error) { return nftables.New(nftables.Config{Family: fam}) }

// start writes the shop's rules as a new process would, and then ends it.
func start(t *testing.T, families []lb.Family, open func(lb.Family) (opened, error)) {
	t.Helper()
	for _, fam := range families {
		p, err := open(fam)
		if err != nil {
			t.Fatal(err)
		}
		tab, _, _ := planetest.Shop(fam)
		if _, err := p.Reset(t.Context(), tab); err != nil {
			t.Error(err)
		}
		p.Close()
	}
}

func switchUnderTraffic(t *testing.T, b xtables.Backend) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	useIPTables := func() { start(t, bothFamilies, openIPTables(b)) }
	useNFTables := func() { start(t, bothFamilies, openNFTables) }
	lab.On("node1", useIPTables)

	var ways []netlab.Way
	for _, fam := range bothFamilies {
		_, vip, nodePort := planetest.Shop(fam)
		// Pods keep their address; all others are masqueraded, including the node's own requests.
		ways = append(ways, netlab.Way{From: "pod3", To: vip, Seen: "pod3"}, netlab.Way{From: "node1", To: vip,
			Seen: "node1"},
			netlab.Way{From: "client", To: nodePort, Seen: "node1"})
	}
	traffic := lab.Traffic(ways...)
	rounds := *switches
	if testing.Short() {
		rounds = 1
	}
	traffic.More()
	for range rounds {
		lab.On("node1", useNFTables)
		traffic.More() // both are in force
		lab.On("node1", func() {
			if r := (now{mode: "nftables"}).clean(t); !strings.Contains(r, "chains of iptables ("+string(b)+", IPv6)") {
				t.Errorf("removed: %s", r)
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
			for _, want := range []string{
				"the nftables table kube-proxy of IPv4\nthe nftables table kube-proxy of IPv6", ""} {
				if r := (now{mode: "iptables", backends: same(b)}).clean(t); r != want {
					t.Errorf("removed: %s, want %s", r, want)
				}
			}
		})
		traffic.More()
		traffic.Open()
	}
	traffic.Stop()
}

// PR-08: a packet begins its way before the new mode's rules exist, and is delayed until those of
// the old mode would be gone. It is translated. A long foreign chain before ours delays it.
func TestSwitchPacketUnderWay(t *testing.T) {
	needsRoot(t)
	needs(t, "iptables-nft", "ip6tables-nft", "nft")
	for _, b := range backends {
		for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
			t.Run(fmt.Sprintf("%s/%s", b, fam), func(t *testing.T) {
				if b == xtables.Legacy && !legacyWorks() {
					t.Skip("this machine has no legacy iptables")
				}
				packetUnderWay(t, b, fam)
			})
		}
	}
}

func packetUnderWay(t *testing.T, b xtables.Backend, fam lb.Family) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	_, vip, _ := planetest.Shop(fam)
	families := []lb.Family{fam}
	lab.On("node1", func() { start(t, families, openIPTables(b)) })
	next := planetest.PutOff(t, lab, fam)
	for _, step := range []struct {
		name string
		open func(lb.Family) (opened, error)
		now  now
	}{
		{"to nftables", openNFTables, now{mode: "nftables", families: families}},
		{"to iptables", openIPTables(b), now{mode: "iptables", families: families, backends: same(b)}},
	} {
		answered := make(chan error)
		go func() {
			reply, err := lab.Dial("node1", netlab.TCP, vip, netlab.DialOptions{})
			if err == nil && reply.Server == netlab.Sink {
				err = errors.New("the sink answered")
			}
			answered <- err
		}()
		next()
		lab.On("node1", func() {
			start(t, families, step.open)
			step.now.clean(t)
		})
		if err := <-answered; err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}
