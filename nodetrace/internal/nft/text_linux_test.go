package nft

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/nft/wire"
)

// Rules as people write them, for tables of each family.
var written = map[string][]string{
	"ip": {
		"ip saddr 10.0.0.0/8 drop", "ip daddr 10.1.0.0/16 tcp dport 80 accept", "ip daddr != 10.1.2.0/24 reject",
		"ip saddr 10.1.2.3 ip daddr 10.1.2.128/25 counter accept", "ip protocol udp accept",
		"ip daddr & 255.0.255.255 == 10.0.1.12 drop",
		"ip daddr 10.0.0.0-10.0.0.9 drop", "ip saddr { 10.0.0.1, 10.1.0.0/16, 10.2.0.0-10.2.0.9 } drop",
		"ip daddr . tcp dport { 10.0.0.1 . 80, 10.0.0.2 . 443 } accept", "ip dscp cs1 drop", "ip ttl < 9 drop",
		"ip dscp set cs1", "ip ttl set 9", "ip daddr set 10.0.0.1", "reject with icmp admin-prohibited",
		"fib daddr type local accept", "fib saddr . iif oif missing drop", "tcp dport 80 dnat to 10.1.1.12:9999",
		"meta l4proto udp redirect to :9999", "ip daddr 10.0.0.7 dnat to 10.1.1.12",
		"tcp dport 80 dnat to numgen random mod 2 map { 0 : 10.0.0.1, 1 : 10.0.0.2 }",
		"ip daddr vmap { 10.0.0.1 : drop, 10.0.0.2 : accept }", "ct original ip daddr 10.0.0.1 accept",
		"update @s { ip saddr timeout 1m }", "meta l4proto tcp reject with tcp reset",
	},
	"ip6": {
		"ip6 saddr fd00::/8 drop", "ip6 daddr fd00:10::/64 udp dport 53-99 accept", "ip6 hoplimit 9 accept",
		"ip6 dscp cs1 drop", "ip6 dscp set ef", "ip6 hoplimit set 9", "ip6 nexthdr tcp accept", "reject",
		"tcp dport 7 dnat to [fd00::1]:80", "ip6 saddr != { fd00::1, fd00:1::/32 } drop",
		"ct reply ip6 saddr fd00::1 accept",
	},
	"inet": {
		"meta mark & 0x40 == 0x40 drop", "meta mark set 0x80", "ct mark set meta mark",
		"meta mark set meta mark | 0x2", "meta mark set ct mark", "meta mark set meta mark & 0xffff0000 ^ 0x1",
		"ct mark != 0x80 drop", "ct state established,related accept", "ct state != new drop",
		"ct state { new, invalid } drop",
		"ct status dnat accept", "ct direction reply drop", "ct zone 0 drop", "iif lo accept",
		"oifname != \"veth*\" drop",
		"iifname \"lo\" oifname { \"eth0\", \"eth1\" } drop", "oifgroup 7 drop", "meta skuid 1000 drop",
		"meta cgroup 7 drop",
		"meta l4proto { tcp, udp } th dport 80 drop", "tcp dport { 22, 80-90 } accept", "tcp flags syn drop",
		"tcp sport 1-1024 drop", "udp dport != 53 drop", "tcp dport vmap { 80 : drop, 443 : jump other }",
		"limit rate 1/second drop", "limit rate over 10/minute burst 20 packets drop", "quota over 1000 bytes drop",
		"ct count over 9 drop", "meta nfproto ipv6 drop", "meta pkttype broadcast drop", "iiftype ether accept",
		"log prefix \"a b\" group 3", "counter comment \"hello, x\"", "notrack", "jump other", "goto other",
		"ip saddr 10.0.0.0/8 drop", "ip6 daddr fd00::/16 drop", "tcp option maxseg size set 1400",
		"reject with icmpx admin-prohibited", "ip saddr 10.1.1.1 tcp dport 80 reject with tcp reset",
		"meta length 100-200 drop", "meta priority 0x1 drop",
	},
}

// What the walk prints of a rule is what nft takes, and means the same: nft lists a table that is
// loaded from such texts as the first one (NT-16).
func TestTextLoads(t *testing.T) {
	netlab.EnterForTest(t)
	sock, err := wire.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	for family, rules := range written {
		number := map[string]byte{"ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6, "inet": 1}[family]
		for i, rule := range rules {
			hook := "type filter hook prerouting priority -350"
			for _, word := range []string{"dnat", "redirect"} {
				if strings.Contains(rule, word+" to") {
					hook = "type nat hook prerouting priority -100"
				}
			}
			if strings.Contains(rule, "oif") || strings.Contains(rule, "reject") || strings.Contains(rule, "maxseg") {
				hook = "type filter hook forward priority 0"
			}
			table := func(name, rule string) string {
				set := "set s { type ipv4_addr; flags timeout,dynamic; size 9; }"
				return fmt.Sprintf("table %s %s {\n%s\nchain other { }\nchain c { %s;\n%s\n}\n}\n", family, name, set,
					hook, rule)
			}
			name := fmt.Sprintf("t%d", i)
			if out, err := nftRun(table(name, rule)); err != nil {
				t.Errorf("%s: %v: %s", rule, err, out)
				continue
			}
			text := textOf(t, sock, number, name)
			if out, err := nftRun(table("again", text)); err != nil {
				t.Errorf("%q is printed as %q, which nft does not take: %v\n%s", rule, text, err, out)
				continue
			}
			want, have := listed1(t, family, name), listed1(t, family, "again")
			if want = strings.Replace(want, name, "again", 1); want != have {
				t.Errorf("%q is printed as %q:\n%s\nwant\n%s", rule, text, have, want)
			}
			if out, err := nftRun("flush ruleset"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
}

func nftRun(text string) (string, error) {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func listed1(t *testing.T, family, name string) string {
	out, err := exec.Command("nft", "-s", "list", "table", family, name).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// loopback knows the device lo.
type loopback struct{ Node }

func (loopback) LinkName(index uint32) string { return map[uint32]string{1: "lo"}[index] }

// textOf is the text of the only rule of chain c.
func textOf(t *testing.T, sock *wire.Socket, family byte, table string) string {
	t.Helper()
	budget := 10
	w := NewAny(sock, family, table, loopback{}, nil, &budget).w
	w.ctx = context.Background()
	rules, err := w.rules("c")
	if err != nil || len(rules) != 1 {
		t.Fatalf("%d rules: %v", len(rules), err)
	}
	return w.text(&rules[0])
}
