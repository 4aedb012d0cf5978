package planetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/nftables"
)

// misled is a plane beside whose rules another program writes others, as if they were its own.
type misled struct {
	Plane
	script string
}

func (p misled) Close() error { return shut(p.Plane) }

func (p misled) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	res, err := p.Plane.Reset(ctx, want)
	if err != nil || p.script == "" {
		return res, err
	}
	if out, err := exec.Command("nft", "add table inet mutant; delete table inet mutant; "+p.script).
		CombinedOutput(); err != nil {
		return res, fmt.Errorf("nft %s: %w: %s", p.script, err, out)
	}
	return res, nil
}

// beside returns a script that adds a rule in front of those of the plane.
func beside(hook, rule string, args ...any) string {
	return fmt.Sprintf("table inet mutant { chain c { type nat hook "+hook+" priority -101; "+rule+"; }; }", args...)
}

// idle repairs nothing.
type idle struct{ misled }

func (idle) Audit(context.Context, bool) (int, error) { return 0, nil }

// A walk must find each of these, in each family. Otherwise a misdirected client would not be
// noticed.
func TestHistoryFinds(t *testing.T) {
	needRoot(t)
	hosts := func(f lb.Family) (pod2, v, s1 string) {
		w := &town{family: f}
		return netlab.Addr("pod2", w.six()).String(), map[lb.Family]string{lb.IPv4: "ip", lb.IPv6: "ip6"}[f],
			w.addr("10.97.0.2", "fd00:10:96::2:2").String()
	}
	for _, c := range []struct {
		name string
		// first is the flaw from the start, restarted the flaw after a restart.
		first, restarted func(f lb.Family) (m mutant, script string)
		idle             bool
		byEndpoint       bool
		want             string
	}{
		{name: "gives numbers of one Service to another after a restart", want: "which is no backend",
			restarted: func(f lb.Family) (mutant, string) {
				// The ports of clients of s1 now belong to a pod of s2.
				pod2, ip, s1 := hosts(f)
				from, to := (&town{family: f}).outsider(0), (&town{family: f}).outsider(5)
				return mutant{},
					beside("prerouting", "%s saddr %s-%s %[1]s daddr %[4]s tcp dport 80 dnat %[1]s to %[5]s",
						ip, from, to, s1, netip.AddrPortFrom(netip.MustParseAddr(pod2), townPort+2))
			}},
		{name: "leaks the clients of one Service to another", want: "which is no backend",
			first: func(f lb.Family) (mutant, string) {
				return mutant{set: func(s lb.BackendSet) lb.BackendSet {
					if s.ID.Service == "town/s1:p" {
						all := append(backendsOf(s),
							lb.Backend{Addr: netip.AddrPortFrom(s.Backends.At(0).Addr.Addr(), townPort+2)})
						slices.SortFunc(all, lb.Backend.Compare)
						s.Backends = lb.BackendsOf(all...)
					}
					return s
				}}, ""
			}},
		{name: "masquerades strangers", want: " saw ",
			first: func(f lb.Family) (mutant, string) {
				pod2, ip, _ := hosts(f)
				return mutant{}, beside("postrouting", "%s daddr %s masquerade", ip, pod2)
			}},
		{name: "translates strangers", want: "answered at",
			first: func(f lb.Family) (mutant, string) {
				pod2, ip, _ := hosts(f)
				return mutant{}, beside("prerouting", "%s daddr %s dnat %[1]s to %[3]s", ip, pod2,
					netlab.Addr("pod3", f == lb.IPv6))
			}},
		{name: "forgets its clients at a restart", want: "which is still there, and now",
			restarted: func(lb.Family) (mutant, string) {
				return mutant{row: func(g lb.Frontend) *lb.Frontend { g.Affinity = 0; return &g }}, ""
			}},
		{name: "forgets its clients at a restart, whom endpoints remember", want: "which is still there, and now",
			byEndpoint: true,
			restarted: func(lb.Family) (mutant, string) {
				return mutant{row: func(g lb.Frontend) *lb.Frontend { g.Affinity = 0; return &g }}, ""
			}},
		{name: "repairs nothing", idle: true, want: "→"},
	} {
		for _, f := range families {
			t.Run(c.name+"/"+f.String(), func(t *testing.T) {
				t.Parallel()
				starts := 0
				cfg := Config{AffinityByEndpoint: c.byEndpoint, New: func(f lb.Family) (Plane, error) {
					starts++
					m, script := mutant{}, ""
					switch {
					case c.first != nil:
						m, script = c.first(f)
					case c.restarted != nil && starts > 1:
						m, script = c.restarted(f)
					}
					p, err := m.of(inKernel)(f)
					if c.idle {
						return idle{misled{p, script}}, err
					}
					return misled{p, script}, err
				}}
				if c.idle {
					cfg.Drift = func(f lb.Family, _ *rand.Rand) error {
						return exec.Command("nft", "flush", "chain", map[lb.Family]string{lb.IPv4: "ip",
							lb.IPv6: "ip6"}[f], nftables.TableName, "nat-frontends").Run()
					}
				}
				for seed := range uint64(4) {
					starts = 0
					h := newHistory(cfg, f, seed)
					h.timeout = 2 * h.timeout / 30
					err := h.run()
					if err == nil {
						continue
					}
					text, _, _ := strings.Cut(err.Error(), "\n")
					if !strings.Contains(text, c.want) { // or a late answer, because the machine is busy
						starts = 0
						err = newHistory(cfg, f, seed).run()
						if err == nil {
							continue
						}
						text, _, _ = strings.Cut(err.Error(), "\n")
					}
					if !strings.Contains(text, c.want) {
						t.Errorf("found something else: %s", text)
					}
					return
				}
				t.Errorf("not found in four walks")
			})
		}
	}
}
