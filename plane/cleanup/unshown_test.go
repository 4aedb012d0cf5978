//go:build linux

package cleanup

import (
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/plane/userspace/redirect"
	"kube-proxy/test/planetest"
)

// TestTablesThatIptablesCannotShow (TN-70): another program adds rules that iptables cannot print,
// and iptables-save omits the tables. --cleanup and a change of modes remove the rules of a mode
// that writes by iptables. Audits and restarts there have TestTableThatIptablesCannotShow of mode
// iptables and TestChainsUnshown of mode ipvs.
func TestTablesThatIptablesCannotShow(t *testing.T) {
	needsAll(t)
	users := map[string]func(*testing.T, lb.Family){
		"iptables": func(t *testing.T, fam lb.Family) { start(t, []lb.Family{fam}, openIPTables(xtables.NFT)) },
		"userspace": func(t *testing.T, fam lb.Family) {
			p := startUserspace(t, fam, func(c redirect.Config) (redirect.Redirector, error) {
				return redirect.NewIPTables(c)
			})
			must(t, p.Close())
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
					start(t, fam)
					planetest.HideTables(t, fam)
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
