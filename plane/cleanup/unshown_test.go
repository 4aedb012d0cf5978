//go:build linux

package cleanup

import (
	"context"
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/userspace/redirect"
	"kube-proxy/test/planetest"
)

// audited is a plane for a test that only needs audits.
type audited interface {
	Audit(ctx context.Context, full bool) (int, error)
}

// TestTablesThatIptablesCannotShow (TN-70): another program adds rules that iptables cannot print,
// and iptables-save omits the tables. A mode that writes by iptables adds no rule at an audit or a
// restart, and --cleanup and a change of modes remove all of it.
func TestTablesThatIptablesCannotShow(t *testing.T) {
	needsAll(t)
	users := map[string]func(*testing.T, lb.Family) audited{
		"iptables": func(t *testing.T, fam lb.Family) audited {
			p, err := iptables.New(iptables.Config{Family: fam, Backend: xtables.NFT})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { p.Close() })
			tab, _, _ := planetest.Shop(fam)
			must(t, errOf(p.Reset(t.Context(), tab)))
			return p
		},
		"userspace": func(t *testing.T, fam lb.Family) audited {
			p := startUserspace(t, fam, func(c redirect.Config) (redirect.Redirector, error) {
				return redirect.NewIPTables(c)
			})
			t.Cleanup(func() { p.Close() })
			return p
		},
	}
	removals := map[string]func(*testing.T, lb.Family) (mode.Report, error){
		"cleanup": func(t *testing.T, _ lb.Family) (mode.Report, error) {
			return Run(t.Context(), all.Modes(), mode.Removal{})
		},
		"mode change": func(t *testing.T, fam lb.Family) (mode.Report, error) {
			return now{mode: "nftables", families: []lb.Family{fam}}.others(t.Context())
		},
	}
	for user, start := range users {
		for removal, remove := range removals {
			for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
				t.Run(user+"/"+removal+"/"+fam.String(), func(t *testing.T) {
					inNetns(t)
					p := start(t, fam)
					planetest.HideTables(t, fam)
					want := len(planetest.Leading(t, fam))
					for range 2 {
						p.Audit(t.Context(), true)
						if n := len(planetest.Leading(t, fam)); n != want {
							t.Fatalf("%d lines name our chains, and after an audit %d", want, n)
						}
					}
					start(t, fam)
					if n := len(planetest.Leading(t, fam)); n != want {
						t.Errorf("%d lines name our chains, and after a restart %d", want, n)
					}
					r, err := remove(t, fam)
					if err != nil || len(r.Left) > 0 {
						t.Errorf("left %q, %v", r.Left, err)
					}
					for _, line := range planetest.Leading(t, fam) {
						if removal == "cleanup" || !isFirewall(line) {
							t.Errorf("left: %s", line)
						}
					}
				})
			}
		}
	}
}

// isFirewall reports whether a line names KUBE-FIREWALL, which a running mode leaves to the
// kubelet.
func isFirewall(line string) bool { return strings.Contains(line, "KUBE-FIREWALL") }
