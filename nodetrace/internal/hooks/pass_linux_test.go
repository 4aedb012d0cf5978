package hooks

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// load runs a program with rules as its input, in this network namespace.
func load(t testing.TB, rules, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s\n%s", name, strings.Join(args, " "), err, out, rules)
	}
}

// opened opens the packet filter of this network namespace until the test ends.
func opened(t testing.TB, family lb.Family) *Snapshot {
	t.Helper()
	s, err := Open(t.Context(), family)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

const firewall = `
table inet fw {
	set s { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 192.0.2.1-192.0.2.7 }; }
	map vm { type ipv4_addr . inet_service : verdict; flags interval; elements = { 10.0.0.0/8 . 80-90 : jump other }; }
	chain other {
		tcp flags & (fin|syn|rst|ack) == syn meta mark set 0x7 return
	}
	chain pre {
		type filter hook prerouting priority -150
		ip daddr . tcp dport vmap @vm
		meta mark 7 limit rate 1/second accept
		ct state new ip saddr @s tcp dport { 22, 80-82 } ip daddr 10.0.0.0/9 drop comment "no web"
	}
}
table ip nat {
	chain pre {
		type nat hook prerouting priority -100
		ip daddr 10.200.0.1 tcp dport 80 dnat to numgen random mod 2 map { 0 : 10.1.0.1, 1 : 10.1.0.2 }
		ip daddr 10.201.0.1 dnat to 10.201.0.1
		ip daddr 10.203.0.1 dnat to 10.1.0.8
	}
	chain translated {
		type filter hook prerouting priority 0
		ip daddr 10.201.0.1 ct status dnat drop
	}
}
table ip rival {
	chain pre {
		type nat hook prerouting priority -100
		ip daddr 10.203.0.1 dnat to 10.1.0.9
	}
}
`

// Rules of nftables and of both kinds of iptables decide in their order, and the answer names the
// rule. Of two nat chains of one priority the order is unknown (NT-14).
func TestPass(t *testing.T) {
	netlab.EnterForTest(t)
	load(t, firewall, "nft", "-f", "-")
	load(t, "", "iptables-legacy", "-A", "FORWARD", "-p", "tcp", "-m", "multiport", "--dports", "80,443",
		"-j", "REJECT")
	load(t, "", "iptables-nft", "-A", "FORWARD", "-p", "udp", "-m", "multiport", "--dports", "80,443", "-j", "DROP")
	load(t, "", "iptables-nft", "-P", "INPUT", "DROP")
	load(t, "", "iptables-legacy", "-t", "nat", "-A", "PREROUTING", "-p", "udp", "-d", "10.202.0.1", "-j", "DNAT",
		"--to-destination", "10.1.0.1-10.1.0.2")
	s := opened(t, lb.IPv4)
	for _, c := range []struct {
		hook  Hook
		proto lb.Proto
		to    string
		ways  []string
	}{
		{Prerouting, lb.TCP, "10.1.1.1:80", []string{`drop by table inet fw, chain pre, rule 3 ` +
			`"ct state new ip saddr @s tcp dport { 22, 80-82 } ip daddr 10.0.0.0/9 drop comment \"no web\"", ` +
			`not evaluated: table inet fw, chain pre, rule 2 ` +
			`"meta mark 0x7 limit rate 1/second burst 5 packets accept"`}},
		{Prerouting, lb.UDP, "10.1.1.1:80", []string{"to 10.1.1.1:80"}},
		{Prerouting, lb.TCP, "10.200.0.1:80", []string{"to 10.1.0.1:80 mark 7", "to 10.1.0.2:80 mark 7"}},
		{Prerouting, lb.TCP, "10.201.0.1:90", []string{"to 10.201.0.1:90 mark 7"}},
		{Prerouting, lb.UDP, "10.202.0.1:53", []string{`to 10.202.0.1:53, not evaluated: ` +
			`table nat of iptables-legacy, chain PREROUTING, rule 1 ` +
			`"-d 10.202.0.1/32 -p udp -j DNAT --to-destination 10.1.0.1-10.1.0.2"`}},
		{Prerouting, lb.UDP, "10.203.0.1:53", []string{`to 10.1.0.9:53, not evaluated: ` +
			`table ip rival, chain pre and table ip nat, chain pre, translate at one priority, in an unknown order`}},
		{Forward, lb.TCP, "10.1.1.1:443", []string{`reject by table filter of iptables-legacy, chain FORWARD, rule 1 ` +
			`"-p tcp -m multiport --dports 80,443 -j REJECT --reject-with icmp-port-unreachable"`}},
		{Forward, lb.UDP, "10.1.1.1:443",
			[]string{`drop by table ip filter, chain FORWARD, rule 1 "-p udp -m multiport --dports 80,443 -j DROP"`}},
		{Input, lb.UDP, "10.1.1.1:53", []string{"drop by table ip filter, chain INPUT, policy drop"}},
	} {
		ways, err := s.Pass(t.Context(), c.hook, Packet{Proto: c.proto,
			From: netip.MustParseAddrPort("10.0.0.1:999"), To: netip.MustParseAddrPort(c.to), In: "lo", Out: "lo"})
		if err != nil {
			t.Fatal(err)
		}
		if got := describe(ways); strings.Join(got, "\n") != strings.Join(c.ways, "\n") {
			t.Errorf("%s %s %s:\n%s\nwant\n%s", c.hook, c.proto, c.to, strings.Join(got, "\n"),
				strings.Join(c.ways, "\n"))
		}
	}
}

// describe says each way as text.
func describe(ways []Way) (all []string) {
	for _, w := range ways {
		text := "to " + w.To.String()
		if w.Verdict != "" {
			text = string(w.Verdict) + " by " + w.By.String()
		} else if w.Mark != 0 {
			text += " mark 7"
		}
		for _, r := range w.NotEvaluated {
			text += ", not evaluated: " + r.String()
		}
		all = append(all, text)
	}
	return all
}
