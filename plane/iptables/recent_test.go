//go:build linux

package iptables

import (
	"regexp"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// xt_recent keeps clients in one list for each endpoint of a Service. The list has the name of the
// endpoint's chain and sends clients to that chain only (SV-18, SV-25). So leftovers in a list
// never lead to another Service, and clients of one Service do not displace those of another, also
// if Services share endpoints.
func TestRecentListsAreOfOneEndpoint(t *testing.T) {
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		w := planetest.World{Family: fam}
		tab := &lb.Table{Node: w.Node()}
		for i := range 3 {
			tab.Replace(w.Full(i, 0, 4, 2, time.Hour))
		}
		text, err := Render(Config{Family: fam}, tab)
		if err != nil {
			t.Fatal(err)
		}
		asked := regexp.MustCompile(`(?m)^-A KUBE-(?:SVC|SVL)-(\S+) .*--rcheck .*--name (\S+) .*-j (\S+)$`).
			FindAllStringSubmatch(string(text), -1)
		service := map[string]string{} // by list
		for _, m := range asked {
			if m[2] != m[3] {
				t.Errorf("list %s leads to %s", m[2], m[3])
			}
			service[m[2]] = m[1]
		}
		if len(asked) != 3*(4+2) || len(service) != 3*4 {
			t.Errorf("%d rules ask %d lists, want 18 and 12: one for each endpoint of each Service\n%s", len(asked),
				len(service), text)
		}
		set := regexp.MustCompile(`(?m)^-A (\S+) .*--set --name (\S+) `).FindAllStringSubmatch(string(text), -1)
		for _, m := range set {
			if m[1] != m[2] {
				t.Errorf("chain %s fills list %s", m[1], m[2])
			}
		}
		if len(set) != len(service) {
			t.Errorf("%d chains fill lists, want %d", len(set), len(service))
		}
	}
}
