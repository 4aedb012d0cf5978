//go:build linux

package cleanup

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/plane/userspace"
	"kube-proxy/plane/userspace/redirect"
	"kube-proxy/test/planetest"
)

// TestSwitchUserspace (PR-08): a node changes from mode iptables to userspace, from there to
// nftables, and back. Loops of requests see no failure, and the next mode's first write removes the
// previous mode's objects. Connections that the kernel translated live on.
func TestSwitchUserspace(t *testing.T) {
	needsRoot(t)
	needs(t, "iptables-nft", "ip6tables-nft", "nft")
	for name, make := range map[string]func(redirect.Config) (redirect.Redirector, error){
		"nftables": func(c redirect.Config) (redirect.Redirector, error) { return redirect.NewNFTables(c) },
		"iptables": func(c redirect.Config) (redirect.Redirector, error) { return redirect.NewIPTables(c) },
	} {
		t.Run(name, func(t *testing.T) {
			lab := netlab.ForTest(t, netlab.Options{})
			lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
			var ways []netlab.Way
			for _, fam := range bothFamilies {
				_, vip, nodePort := planetest.Shop(fam)
				for _, w := range []netlab.Way{{From: "pod3", To: vip}, {From: "node1", To: vip},
					{From: "client", To: nodePort}} {
					w.Requests = true
					ways = append(ways, w)
				}
			}
			lab.On("node1", func() { start(t, bothFamilies, openIPTables(xtables.NFT)) })
			traffic := lab.Traffic(ways...)
			defer traffic.Stop()
			traffic.More()
			for _, next := range []struct {
				now  now
				open func(lb.Family) (opened, error)
			}{{now{mode: "nftables"}, openNFTables}, {now{mode: "iptables", backends: same(xtables.NFT)},
				openIPTables(xtables.NFT)}} {
				var proxies []*userspace.Plane
				lab.On("node1", func() {
					for _, fam := range bothFamilies {
						proxies = append(proxies, startUserspace(t, fam, make))
					}
				})
				traffic.More()
				lab.On("node1", func() {
					if (now{mode: "userspace"}).clean(t) == "" {
						t.Error("nothing of the mode before was removed")
					}
				})
				traffic.More()
				lab.On("node1", func() { start(t, bothFamilies, next.open) })
				traffic.More()
				lab.On("node1", func() {
					r := next.now.clean(t)
					if !strings.Contains(r, redirect.TableName) && !strings.Contains(r, "of mode userspace") {
						t.Errorf("removed: %s", r)
					}
				})
				traffic.More()
				lab.On("node1", func() {
					for _, p := range proxies { // as a process that ends
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						p.Drain(ctx)
						cancel()
						if err := p.Close(); err != nil {
							t.Error(err)
						}
					}
				})
				traffic.More()
			}
		})
	}
}

// startUserspace writes the shop's rules as a new process would.
func startUserspace(t *testing.T, fam lb.Family, make func(redirect.Config) (redirect.Redirector,
	error)) *userspace.Plane {
	t.Helper()
	c, err := make(redirect.Config{Family: fam, Mark: 1 << 14})
	if err != nil {
		t.Fatal(err)
	}
	cfg := userspace.Config{Family: fam, Redirector: c}
	cfg.Relay.Mark = 1 << 14
	p, err := userspace.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tab, _, _ := planetest.Shop(fam)
	must(t, errOf(p.Reset(t.Context(), tab)))
	return p
}

// TestUserspaceStale: a running mode removes the rules that redirected packets in another way
// before, and keeps its own.
func TestUserspaceStale(t *testing.T) {
	needsRoot(t)
	lab := netlab.ForTest(t, netlab.Options{NoNode2: true})
	lab.On("node1", func() {
		old, err := redirect.NewIPTables(redirect.Config{Family: lb.IPv4})
		if err != nil {
			t.Fatal(err)
		}
		a := redirect.Entry{Key: lb.Key{Addr: netip.MustParseAddr("10.96.0.99"), Port: 80, Proto: lb.TCP},
			Routes: []redirect.Route{{From: lb.Anywhere, Port: 40080}}}
		if _, err := old.Reset(t.Context(), lb.Node{}, []redirect.Entry{a}); err != nil {
			t.Fatal(err)
		}
		old.Close()
		modes := all.Modes()
		m := modes[slices.IndexFunc(modes, func(m mode.Mode) bool { return m.Name == "userspace" })]
		p, err := m.New(mode.Settings{Family: lb.IPv4, MasqueradeBit: 14})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		tab, _, _ := planetest.Shop(lb.IPv4)
		must(t, errOf(p.Reset(t.Context(), tab)))
		r, err := Others(t.Context(), modes, m, mode.Removal{Families: []lb.Family{lb.IPv4}})
		if err != nil || len(r.Removed) == 0 || !strings.Contains(r.Removed[0], "chains") {
			t.Errorf("%+v, %v", r, err)
		}
		if n, err := p.Audit(t.Context(), true); n != 0 || err != nil {
			t.Errorf("its own was removed: %d repaired, %v", n, err)
		}
	})
}
