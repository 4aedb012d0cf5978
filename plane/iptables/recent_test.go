//go:build linux

package iptables

import (
	"regexp"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// What xt_recent remembers of a client lies in a list of one endpoint of one Service, named as the endpoint's chain, and
// leads to that chain alone (SV-18, SV-25). So whatever is left in a list leads to no other Service, and the clients of one
// Service push none of another out, also where Services share their endpoints.
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
		asked := regexp.MustCompile(`(?m)^-A KUBE-(?:SVC|SVL)-(\S+) .*--rcheck .*--name (\S+) .*-j (\S+)$`).FindAllStringSubmatch(string(text), -1)
		service := map[string]string{} // by list
		for _, m := range asked {
			if m[2] != m[3] {
				t.Errorf("list %s leads to %s", m[2], m[3])
			}
			service[m[2]] = m[1]
		}
		if len(asked) != 3*(4+2) || len(service) != 3*4 {
			t.Errorf("%d rules ask %d lists, want 18 and 12: one for each endpoint of each Service\n%s", len(asked), len(service), text)
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
