//go:build linux

package iptables

import (
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// othersRules are rules that our planes do not write. The last ones use unsupported extensions.
const othersRules = `*nat
:OTHERS - [0:0]
:MORE - [0:0]
-A OTHERS -s 10.0.0.0/8 -d 10.1.0.0/20 -i veth+ -p udp -m udp --dport 80:90 -j MORE
-A OTHERS ! -s 10.0.0.0/7 ! -d 10.1.0.1/32 ! -i eth0 -p sctp -m sctp --sport 1:2 ! --dport 80 -j MORE
-A OTHERS ! -p tcp -g MORE
-A OTHERS -p 99 -m comment --comment "it's \"so\" \\" -j RETURN
-A OTHERS -p tcp -m tcp --sport 1:65535 ! --dport 80:90 -m mark ! --mark 0x4000/0x4000 -m comment --comment word -j RETURN
-A OTHERS -m mark --mark 0x1 -m conntrack ! --ctstate INVALID,NEW,RELATED,ESTABLISHED,UNTRACKED,SNAT,DNAT -m addrtype ! --src-type LOCAL --dst-type LOCAL -j MARK --set-xmark 0x4000/0x0
-A OTHERS -m recent --update --seconds 5 --reap --name A-LIST --mask 255.255.255.255 --rsource -j ACCEPT
-A OTHERS -m statistic --mode random ! --probability 0.25000000000
-A OTHERS -p tcp -j DNAT --to-destination 10.1.1.1:80
-A OTHERS -j MASQUERADE
-A OTHERS
COMMIT
*filter
:OTHERS - [0:0]
-A FORWARD -d 10.0.0.0/9 -o eth1 -j REJECT --reject-with icmp-host-prohibited
-A FORWARD -i eth0 -o veth+ -j DROP
-A OTHERS -p tcp -m tcp --tcp-flags SYN SYN -j ACCEPT
-A OTHERS -m limit --limit 5/min -j LOG
-A OTHERS -p tcp -m multiport --dports 80,81 -j ACCEPT
-A OTHERS -m addrtype --dst-type MULTICAST -j DROP
-A OTHERS -m recent --rcheck --hitcount 3 --name A-LIST --mask 255.255.255.255 --rsource -j DROP
COMMIT
`

func othersRulesOf(f lb.Family) string {
	if f == lb.IPv4 {
		return othersRules
	}
	return strings.NewReplacer("10.0.0.0/8", "fd00::/8", "10.1.0.0/20", "fd00:1::/43", "10.0.0.0/7", "fc00::/7",
		"10.1.0.1/32", "fd00::1/128", "10.0.0.0/9", "fd00::/9", "10.1.1.1:80", "[fd00::1]:80", "255.255.255.255",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"icmp-host-prohibited", "icmp6-addr-unreachable").Replace(othersRules)
}

// The reader prints each rule that it reads from the kernel exactly as iptables does; it names
// every unsupported extension, and no other.
func TestRulesAreReadAsIptablesPrintsThem(t *testing.T) {
	eachFamily(t, xtables.NFT, func(t *testing.T, w planetest.World, cfg Config) {
		p := newPlane(t, cfg)
		table := w.Table(40, 2)
		for i := range 12 {
			table.Replace(w.Full(100+i, 300*i, i%4, i%3, time.Duration(i%2)*time.Hour))
		}
		table.Node.Pods = lb.Detector{InterfacePrefix: "veth"}
		reset(t, p, table)
		run(t, othersRulesOf(w.Family), p.Tool.Program+"-restore", "--noflush")
		want, strange := map[xtables.ChainID][]string{}, 0
		if err := p.Lines(t.Context(), func(line xtables.SavedLine) {
			which, _ := xtables.TableNamed(line.Table)
			id := which.Chain(string(line.Chain))
			want[id] = append(want[id], string(line.Rest))
		}); err != nil {
			t.Fatal(err)
		}
		h, err := p.Tool.OpenHolding(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		rules := 0
		for id, lines := range want {
			c, err := h.Chain(id)
			if err == nil && c == nil && xtables.IsBuiltIn(id.Name) && len(lines) == 1 {
				continue // printed in any case
			}
			if err != nil || c == nil {
				t.Errorf("chain %v: %v, %v", id, c, err)
				continue
			}
			if c.Hooked != xtables.IsBuiltIn(id.Name) {
				t.Errorf("chain %v: hooked %t", id, c.Hooked)
			}
			var got []string
			for i, r := range c.Rules {
				rules++
				text := strings.TrimSpace(r.Text)
				if r.Unread {
					strange++
					text = strings.TrimSpace(lines[min(1+i, len(lines)-1)])
				}
				got = append(got, text)
			}
			lines = lines[1:] // the first declares the chain
			for i := range lines {
				lines[i] = strings.TrimSpace(lines[i])
			}
			if !slices.Equal(got, lines) {
				t.Errorf("chain %v:\n%s\niptables prints\n%s", id, strings.Join(got, "\n"), strings.Join(lines, "\n"))
			}
		}
		if strange != 5 || rules < 300 {
			t.Errorf("of %d rules %d are not understood, want 5", rules, strange)
		}
	})
}
