//go:build linux

package ipvs

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// Which virtual servers are a kube-proxy's, without a kernel that has them.
func TestKnown(t *testing.T) {
	a := netip.MustParseAddr
	k := &known{addrs: map[netip.Addr]bool{a("10.96.0.1"): true}, frontends: map[server]bool{}, nodePorts: map[server]bool{}, local: map[netip.Addr]bool{a("192.0.2.1"): true}}
	k.sets([]*ipset{
		{"KUBE-LOOP-BACK", []entry{{a("10.1.0.1"), unix.IPPROTO_TCP, 8080}}},
		{"KUBE-LOAD-BALANCER-SOURCE-IP", []entry{{a("10.1.0.2"), unix.IPPROTO_TCP, 8080}}},
		{"KUBE-CLUSTER-IP", []entry{{a("10.96.0.2"), unix.IPPROTO_TCP, 80}}},
		{"KUBE-6-EXTERNAL-IP-LOCAL", []entry{{a("2001:db8::7"), unix.IPPROTO_UDP, 53}}},
		{"KUBE-NODE-PORT-LOCAL-UDP", []entry{{port: 30053}}},
		{"KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", []entry{{a("2001:db8::1"), unix.IPPROTO_SCTP, 30090}}},
		{"KUBE-HEALTH-CHECK-NODE-PORT", []entry{{port: 32000}}},
		{"KUBE-IPVS-IPS", []entry{{addr: a("10.96.0.3")}}},
	})
	for s, want := range map[server]bool{
		{a("10.96.0.1"), unix.IPPROTO_TCP, 1}:        true,
		{a("10.96.0.2"), unix.IPPROTO_TCP, 80}:       true,
		{a("10.96.0.2"), unix.IPPROTO_TCP, 81}:       false,
		{a("10.96.0.3"), unix.IPPROTO_UDP, 5}:        true,
		{a("10.1.0.1"), unix.IPPROTO_TCP, 8080}:      false,
		{a("10.1.0.2"), unix.IPPROTO_TCP, 8080}:      false,
		{a("2001:db8::7"), unix.IPPROTO_UDP, 53}:     true,
		{a("192.0.2.1"), unix.IPPROTO_UDP, 30053}:    true,
		{a("192.0.2.1"), unix.IPPROTO_TCP, 30053}:    false,
		{a("192.0.2.1"), unix.IPPROTO_SCTP, 30090}:   true,
		{a("192.0.2.1"), unix.IPPROTO_TCP, 32000}:    false,
		{a("192.0.2.2"), unix.IPPROTO_UDP, 30053}:    false,
		{a("198.51.100.0"), unix.IPPROTO_TCP, 20000}: true,
		{a("198.51.100.0"), unix.IPPROTO_TCP, 20001}: false,
	} {
		if got := k.is(s); got != want {
			t.Errorf("%+v: %t", s, got)
		}
	}
}

// What the kernel's answers mean, from real sets.
func TestListIPSets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("ipset"); err != nil {
		t.Skip(err)
	}
	netlab.EnterForTest(t)
	var many strings.Builder
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		for _, name := range SetNames(fam) {
			typ := "hash:ip,port family inet"
			switch {
			case strings.Contains(name, "NODE-PORT") && !strings.Contains(name, "SCTP-HAS"):
				typ = "bitmap:port range 0-65535"
			case name == "KUBE-IPVS-IPS":
				typ = "hash:ip"
			case fam == lb.IPv6:
				typ += "6"
			}
			fmt.Fprintln(&many, "create", name, typ)
		}
	}
	many.WriteString(`create KUBE-SRC-AAAA hash:ip
add KUBE-NODE-PORT-TCP 30080
add KUBE-6-NODE-PORT-UDP 30053
add KUBE-CLUSTER-IP 10.96.0.10,tcp:80
add KUBE-6-CLUSTER-IP fd00:10:96::10,udp:53
add KUBE-IPVS-IPS 10.96.0.77
add KUBE-NODE-PORT-SCTP-HASH 192.0.2.1,sctp:30090
`)
	for i := range 3000 { // in more than one message
		fmt.Fprintf(&many, "add KUBE-EXTERNAL-IP 10.5.%d.%d,udp:53\n", i/250, i%250)
	}
	restore := exec.Command("ipset", "restore")
	restore.Stdin = strings.NewReader(many.String())
	if out, err := restore.CombinedOutput(); err != nil {
		t.Fatalf("ipset restore: %v\n%s", err, out)
	}
	found := map[string][]entry{}
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		sets, err := listIPSets(fam)
		if err != nil {
			t.Fatal(err)
		}
		if len(sets) != len(SetNames(fam)) {
			t.Errorf("%s: %d sets, want %d", fam, len(sets), len(SetNames(fam)))
		}
		for _, s := range sets {
			found[s.name] = s.entries
		}
	}
	for name, want := range map[string]entry{
		"KUBE-CLUSTER-IP":          {netip.MustParseAddr("10.96.0.10"), unix.IPPROTO_TCP, 80},
		"KUBE-6-CLUSTER-IP":        {netip.MustParseAddr("fd00:10:96::10"), unix.IPPROTO_UDP, 53},
		"KUBE-IPVS-IPS":            {addr: netip.MustParseAddr("10.96.0.77")},
		"KUBE-NODE-PORT-TCP":       {port: 30080},
		"KUBE-6-NODE-PORT-UDP":     {port: 30053},
		"KUBE-NODE-PORT-SCTP-HASH": {netip.MustParseAddr("192.0.2.1"), unix.IPPROTO_SCTP, 30090},
	} {
		if got := found[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s has %v, want %v", name, got, want)
		}
	}
	if n := len(found["KUBE-EXTERNAL-IP"]); n != 3000 {
		t.Errorf("a large set has %d entries", n)
	}
}
