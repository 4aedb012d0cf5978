//go:build linux

package ipvs

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/lb"
	"kube-proxy/test/golden"
	"kube-proxy/test/scenario"
)

func testLayout(f lb.Family) layout {
	return layout{family: f, scheduler: "rr", sticky: "mh", mark: marks{1 << 14}}
}

// nodeAddresses returns the addresses of node1 in the scenarios' lab.
func nodeAddresses(f lb.Family) []netip.Addr {
	if f == lb.IPv6 {
		return []netip.Addr{netip.MustParseAddr("fd00:18::2")}
	}
	return []netip.Addr{netip.MustParseAddr("172.18.0.2")}
}

// previewText formats a preview as ipvsadm-save -n and ipset save do, with the addresses; it omits
// empty sets.
func previewText(p preview) string {
	var b strings.Builder
	b.WriteString(saveServers(p.ops))
	for _, s := range p.sets {
		if len(s.members) > 0 {
			ipset.Save(&b, s.Set, s.members)
		}
	}
	for _, a := range p.addresses {
		fmt.Fprintf(&b, "address %s\n", a)
	}
	return b.String()
}

// The kernel objects of each scenario's states, in both families: virtual servers, ipsets and
// addresses (DP-31, DP-32, DP-35).
func TestGoldens(t *testing.T) {
	all, err := scenario.LoadDir("../../test/testdata/scenarios")
	must(t, err)
	for _, sc := range all {
		t.Run(sc.Name, func(t *testing.T) {
			var b strings.Builder
			for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
				last := ""
				r := sc.Replay(f)
				for {
					step, ok, err := r.Next()
					must(t, err)
					if !ok {
						break
					}
					text := previewText(previewOf(testLayout(f), nodeAddresses(f), step.Table))
					if text != last {
						fmt.Fprintf(&b, "# %s %s\n%s\n", f, step.State.Name, text)
					}
					last = text
				}
			}
			file := filepath.Join("testdata", "scenarios", sc.Name+".txt")
			golden.Equal(t, file, strings.TrimSuffix(b.String(), "\n"))
		})
	}
}
