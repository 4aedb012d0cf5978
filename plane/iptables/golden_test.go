//go:build linux

package iptables

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/golden"
	"kube-proxy/test/planetest"
)

// goldens returns tables whose rendering is in testdata.
func goldens() map[string]*lb.Table {
	w := planetest.World{Family: lb.IPv4}
	all := &lb.Table{Node: w.Node()}
	all.Replace(w.Full(1, 10, 2, 1, 3*time.Hour))
	all.Replace(w.ClusterIP(2, 0, 0))
	all.Replace(healthCheck("ns/svc-3", 32100))
	checks := &lb.Table{Node: w.Node()}
	for i := range 40 { // DP-08
		checks.Replace(healthCheck(fmt.Sprintf("ns/svc-%d", i), 32100+i))
	}
	interfaces := &lb.Table{Node: lb.Node{Pods: lb.Detector{InterfacePrefix: "veth"},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}}
	interfaces.Replace(w.Full(1, 10, 2, 1, 0))
	w6 := planetest.World{Family: lb.IPv6}
	six := &lb.Table{Node: w6.Node()}
	six.Replace(w6.Full(1, 10, 2, 1, 3*time.Hour))
	return map[string]*lb.Table{"shop": shopTable(), "every-kind": all, "interface-prefix": interfaces, "ipv6": six,
		"tree": w.Table(40, 1), "health-checks": checks}
}

// healthCheck returns a frontend for the port on which the node reports a Service's endpoints.
func healthCheck(service string, port int) (lb.Owner, []*lb.Frontend) {
	return lb.Owner{Name: service}, []*lb.Frontend{{Key: lb.Key{Port: uint16(port), Proto: lb.TCP}, Service: service,
		Kind: lb.HealthCheck, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}}}
}

// The rendering equals testdata, and both back ends accept it: the rules that jump to our chains
// (DP-01), and their content (DP-03 to DP-08, DP-10).
func TestRender(t *testing.T) {
	for name, table := range goldens() {
		t.Run(name, func(t *testing.T) {
			f, tool := lb.IPv4, "iptables-"
			if name == "ipv6" {
				f, tool = lb.IPv6, "ip6tables-"
			}
			got, err := Render(Config{Family: f}, table)
			if err != nil {
				t.Fatal(err)
			}
			golden.Equal(t, filepath.Join("testdata", name+".rules"), string(got))
			eachBackend(t, func(t *testing.T, b xtables.Backend) {
				inNetns(t)
				run(t, string(got), tool+string(b)+"-restore", "--noflush", "--test")
				run(t, string(got), tool+string(b)+"-restore", "--noflush")
			})
		})
	}
}

// Chain names equal upstream's (DP-02): other software may compute them.
func TestNamesDP02(t *testing.T) {
	u := portID{"ns1/svc1:p80", lb.TCP}
	for _, c := range []struct{ got, want string }{
		{u.chain(xtables.ClusterChain), "KUBE-SVC-XPGD46QRK7WJZT7O"},
		{u.chain(xtables.EndpointChain, "10.180.0.1:80"), "KUBE-SEP-SXIVWICOYRO3J4NJ"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
}

// DP-12: with more than 1,000 endpoints, rules of endpoints have no comments, whatever the history;
// rules that jump to services keep theirs.
func TestLargeClusterHasNoEndpointCommentsDP12(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	note := regexp.MustCompile(`-A KUBE-(SEP-.*--comment|SVC-.*--comment "ns/svc-\d+:http ->)`)
	for services, want := range map[int]bool{100: true, 101: false} {
		text, err := Render(Config{Family: lb.IPv4}, w.Table(services, 10))
		if err != nil {
			t.Fatal(err)
		}
		if got := note.Match(text); got != want {
			t.Errorf("%d endpoints: rules of endpoints have comments: %t", services*10, got)
		}
		if n := strings.Count(string(text), `cluster IP" -j KUBE-SVC-`); n != services {
			t.Errorf("%d rules that lead to services have comments, want %d", n, services)
		}
	}
	// The change that makes the cluster large, and later ones, omit the comments.
	var wrote string
	hole := &blackHole{fail: func(stdin []byte, _ []string) error { wrote = string(stdin); return nil }}
	p := newPlane(t, Config{Family: lb.IPv4, Runner: hole})
	table := w.Table(100, 10)
	reset(t, p, table)
	for i := range 3 {
		replace(t, p, table)(w.ClusterIP(200+i, 5000+i, 1))
		if note.MatchString(wrote) {
			t.Errorf("service %d: rules of endpoints have comments", i)
		}
	}
	replace(t, p, table)(w.ClusterIP(7, 5000, 11)) // one whose rules had comments
	if note.MatchString(wrote) {
		t.Errorf("a service that changes keeps the comments of its endpoints:\n%s", wrote)
	}
}

// Each rule that sets, clears or matches the masquerading bit of the packet mark uses the bit that
// the configuration names (CF-20).
func TestMasqueradeBit(t *testing.T) {
	want, err := Render(Config{Family: lb.IPv4}, shopTable())
	if err != nil {
		t.Fatal(err)
	}
	for _, bit := range []int{0, 3, 31} {
		got, err := Render(Config{Family: lb.IPv4, MasqueradeBit: &bit}, shopTable())
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(string(want), "0x4000", fmt.Sprintf("%#x", 1<<bit)); string(got) != want {
			t.Errorf("bit %d:\n%s\nwant:\n%s", bit, got, want)
		}
	}
}
