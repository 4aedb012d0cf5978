package netlab

import (
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
)

// natRules translate port 80 of service addresses to pod1 and port 81 to pod4,
// masquerade what would otherwise not come back, and refuse or drop other ports.
const natRules = `
table inet lab {
	chain translate {
		ip  daddr 10.96.0.1      meta l4proto { tcp, udp, sctp } th dport 80 dnat ip to 10.1.1.11:8080
		ip6 daddr fd00:10:96::1  meta l4proto { tcp, udp, sctp } th dport 80 dnat ip6 to [fd00:10:1:1::11]:8080
		ip  daddr 10.96.0.1      meta l4proto { tcp, udp, sctp } th dport 81 dnat ip to 10.1.2.14:8080
		ip6 daddr fd00:10:96::1  meta l4proto { tcp, udp, sctp } th dport 81 dnat ip6 to [fd00:10:1:2::14]:8080
	}
	chain prerouting { type nat hook prerouting priority -100; jump translate; }
	chain output { type nat hook output priority -100; jump translate; }
	chain postrouting {
		type nat hook postrouting priority 100;
		ip saddr 10.1.1.11 ip daddr 10.1.1.11 masquerade
		ip6 saddr fd00:10:1:1::11 ip6 daddr fd00:10:1:1::11 masquerade
		ip saddr 172.18.0.100 masquerade
		ip6 saddr fd00:18::100 masquerade
	}
	chain untranslated {
		ip  daddr 10.96.0.2     drop
		ip6 daddr fd00:10:96::2 drop
		ip  daddr 10.96.0.0/12 ct direction original ct status ! dnat reject
		ip6 daddr fd00:10:96::/108 ct direction original ct status ! dnat reject
	}
	chain forwarded { type filter hook forward priority 0; jump untranslated; }
	chain sent { type filter hook output priority 0; jump untranslated; }
}
`

// TestNAT runs the lab as a proxy uses it: translated, refused and dropped.
func TestNAT(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("the rules of this test need the nft program: ", err)
	}
	forBoth(t, func(t *testing.T, opts Options) {
		l := newLab(t, opts)
		nft := l.Command(Node1, "nft", "-f", "-")
		nft.Stdin = strings.NewReader(natRules)
		if out, err := nft.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, proto := range []Proto{TCP, UDP, SCTP} {
			t.Run(string(proto), func(t *testing.T) {
				listen(t, l, "pod1", proto, 8080)
				listen(t, l, "pod4", proto, 8080)
				var refusals pace
				for _, from := range []string{"pod1", "pod2", Node1, Client} {
					for _, vip := range []string{"10.96.0.1", "fd00:10:96::1"} {
						translated(t, l, from, proto, netip.MustParseAddr(vip), &refusals)
					}
				}
				refusals.check(t)
			})
		}
	})
}

// translated checks one client and one address of TestNAT.
func translated(t *testing.T, l *Lab, from string, proto Proto, vip netip.Addr, refusals *pace) {
	t.Helper()
	for port, server := range map[uint16]string{80: "pod1", 81: "pod4"} {
		seen := from
		if from == Client || (from == "pod1" && server == "pod1") {
			seen = Node1
		}
		got, err := l.Dial(from, proto, netip.AddrPortFrom(vip, port), DialOptions{})
		if err != nil || got.Server != server || Owner(got.Seen.Addr()) != seen {
			t.Errorf("%s %s → %s:%d: got %+v, %v, want %s seen by %s", proto, from, vip, port, got, err, seen, server)
		}
	}
	refusals.take(func() {
		if _, err := l.Dial(from, proto, netip.AddrPortFrom(vip, 82), DialOptions{}); !errors.Is(err, ErrRefused) {
			t.Errorf("%s %s → %s:82: got %v, want %v", proto, from, vip, err, ErrRefused)
		}
	})
	if err := l.Ping(from, vip, 0); !errors.Is(err, ErrRefused) {
		t.Errorf("ping %s → %s: got %v, want %v", from, vip, err, ErrRefused)
	}
	dropped := netip.AddrPortFrom(vip.Next(), 80)
	if _, err := l.Dial(from, proto, dropped, DialOptions{Timeout: quick}); !errors.Is(err, ErrTimeout) {
		t.Errorf("%s %s → %s: got %v, want %v", proto, from, dropped, err, ErrTimeout)
	}
}
