//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
	"kube-proxy/internal/netlab"
	"kube-proxy/test/kerneltest"
	"kube-proxy/trace"
)

// nodeFault is something on node1, done by a shell, that decides about packets.
type nodeFault struct {
	name     string
	do, undo string
	from     string // "pod1" if empty
	to       string // the Service of one backend, on pod2, if empty
	expect   trace.NodeVerdict
	by       string // a part of the culprit, or of a rule that was not evaluated
	modes    string // "" for all
	six, udp bool
	port     uint16 // the client's, for trace; 0 for any
}

const (
	one  = "10.96.0.10:80" // pod2
	two  = "10.96.0.20:80" // pod2 and pod4
	sick = "10.96.0.30:80" // without endpoints
)

// asked returns the destination of a fault in trace's syntax, with the address of its family.
func (f nodeFault) asked() (to netip.AddrPort, text string) {
	to = netip.MustParseAddrPort(cmp.Or(f.to, one))
	if f.six {
		b := to.Addr().As4()
		to = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%d", b[3])), to.Port())
	}
	text = to.String()
	if f.udp {
		text += "/udp"
	}
	return to, text
}

func (f nodeFault) proto() netlab.Proto {
	if f.udp {
		return netlab.UDP
	}
	return netlab.TCP
}

// dual is a Service of both families, with a port 80 of TCP and of UDP.
func (n *nodeLab) dual(name string, number int, pods ...string) {
	text := fmt.Sprintf("kind: Service\nmetadata: {name: %s, namespace: lab}\nspec:\n  type: ClusterIP\n"+
		"  clusterIP: 10.96.0.%[2]d\n  clusterIPs: [10.96.0.%[2]d, \"fd00:10:96::%[2]d\"]\n"+
		"  ipFamilies: [IPv4, IPv6]\n  ipFamilyPolicy: RequireDualStack\n  ports:\n"+
		"  - {name: tcp, port: 80}\n  - {name: udp, port: 80, protocol: UDP}\n", name, number)
	for _, family := range []string{"IPv4", "IPv6"} {
		var list []string
		for _, pod := range pods {
			h, _ := netlab.HostByName(pod)
			list = append(list, fmt.Sprintf("{addresses: [%q], nodeName: %s}", h.Addr(family == "IPv6"), h.Node))
		}
		text += fmt.Sprintf("---\nkind: EndpointSlice\nmetadata: {name: %[1]s-%[4]s, namespace: lab, "+
			"labels: {kubernetes.io/service-name: %[1]s}}\naddressType: %[2]s\n"+
			"ports: [{name: tcp, port: 8080}, {name: udp, port: 8080, protocol: UDP}]\nendpoints: [%[3]s]\n",
			name, family, strings.Join(list, ", "), strings.ToLower(family))
	}
	n.apply(name, text)
}

// nft returns a rule in a chain of a separate table.
func nft(family, hook, rule string) (do, undo string) {
	do = fmt.Sprintf(`nft 'table %[1]s firewall { chain c { type filter hook %[2]s; %[3]s; }; }'`, family, hook, rule)
	return do, fmt.Sprintf("nft delete table %s firewall", family)
}

// nodeFaults are faults with a rule of nftables.
func nftFaults() []nodeFault {
	var all []nodeFault
	for _, f := range []struct {
		name, family, hook, rule string
		from, to                 string
		expect                   trace.NodeVerdict
		by                       string
		modes                    string
	}{
		{"drop in forward", "inet", "forward priority 0", "ip daddr 10.1.1.12 drop",
			"", "", trace.Dropped, "table inet firewall, chain c, rule 1", ""},
		{"reject in forward", "inet", "forward priority 10", "tcp dport 8080 reject",
			"", "", trace.Rejected, "rule 1", ""},
		{"policy", "inet", "forward priority 0; policy drop", "ct state established accept; ip saddr 10.1.1.13 accept",
			"", "", trace.Dropped, "policy", ""},
		{"accepted under a policy", "inet", "forward priority 0; policy drop",
			"ct state established accept; ct status dnat accept", "", "", trace.Delivered, "", ""},
		{"the service's address, raw", "ip", "prerouting priority -300", "ip daddr 10.96.0.10 drop",
			"", "", trace.Dropped, "rule 1", ""},
		{"the service's address, after translation", "ip", "prerouting priority 0", "ip daddr 10.96.0.10 drop",
			"", "", trace.Delivered, "", ""},
		{"the reply alone", "inet", "forward priority 0", "ct direction reply tcp sport 8080 drop",
			"", "", trace.Dropped, "rule 1", ""},
		{"the reply alone, prerouting", "ip", "prerouting priority -200", "ip saddr 10.1.1.12 drop",
			"", "", trace.Dropped, "rule 1", ""},
		{"the reply alone, postrouting", "ip", "postrouting priority 300", "ip saddr 10.96.0.10 drop",
			"", "", trace.Dropped, "rule 1", ""},
		{"the client's next packets alone", "inet", "forward priority 0",
			"ct state established ct direction original drop", "", "", trace.Dropped, "rule 1", ""},
		{"a mask with a gap", "ip", "forward priority 0", "ip daddr & 255.0.255.255 == 10.0.1.12 drop",
			"", "", trace.Dropped, "ip daddr & 255.0.255.255 == 10.0.1.12 drop", ""},
		{"one backend", "inet", "forward priority 0", "ip daddr 10.1.2.14 drop", "", two, trace.Dropped, "rule 1", ""},
		{"one backend, rejected", "inet", "forward priority 0", "ip daddr 10.1.1.12 reject",
			"", two, trace.Rejected, "rule 1", ""},
		{"notrack",
			"ip", "prerouting priority -300", "ip daddr 10.96.0.10 notrack", "", "", trace.Dropped, "not translated",
			"nftables iptables"},
		{"output", "inet", "output priority 0", "ip daddr 10.1.1.12 drop",
			"node1", "", trace.Dropped, "rule 1", "nftables iptables"},
		{"output, the service's address", "inet", "output priority -200", "ip daddr 10.96.0.10 drop",
			"node1", "", trace.Dropped, "rule 1", ""},
		{"input does not matter", "inet", "input priority 0", "ip saddr 10.1.1.11 drop",
			"", "", trace.Delivered, "", "nftables iptables"},
		{"input of the reply", "inet", "input priority 0", "tcp sport 8080 drop",
			"node1", "", trace.Dropped, "rule 1", ""},
		{"netdev", "netdev", "ingress device vethpod1 priority 0", "ip daddr 10.96.0.10 drop",
			"", "", trace.Dropped, "rule 1", ""},
		{"from outside", "inet", "prerouting priority -150", "iifname eth0 tcp dport 80 drop",
			"client", "", trace.Dropped, "rule 1", ""},
		{"no backend", "inet", "forward priority 0", "accept", "", sick, trace.Rejected, "", ""},
	} {
		do, undo := nft(f.family, f.hook, f.rule)
		all = append(all, nodeFault{name: f.name, do: do, undo: undo, from: f.from, to: f.to, expect: f.expect,
			by: f.by, modes: f.modes})
	}
	return all
}

// otherFaults returns those of other programs, and combinations.
func otherFaults() []nodeFault {
	iptables := func(rule string) (do, undo string) { return "iptables -I " + rule, "iptables -D " + rule }
	f := func(name, rule, from, to string, expect trace.NodeVerdict, by string) nodeFault {
		do, undo := iptables(rule)
		return nodeFault{name: name, do: do, undo: undo, from: from, to: to, expect: expect, by: by}
	}
	all := []nodeFault{
		f("iptables FORWARD", "FORWARD -p tcp --dport 8080 -j DROP", "", "", trace.Dropped, "FORWARD"),
		f("iptables reject", "FORWARD -d 10.1.1.12 -j REJECT", "", "", trace.Rejected, "FORWARD"),
		f("iptables, the reply", "FORWARD -m conntrack --ctstate ESTABLISHED --ctdir REPLY -j DROP",
			"", "", trace.Dropped, "FORWARD"),
		f("iptables OUTPUT", "OUTPUT -d 10.96.0.10 -j DROP", "node1", "", trace.Delivered, ""),
		{name: "iptables raw", expect: trace.Dropped, by: "PREROUTING",
			do: "iptables -t raw -I PREROUTING -d 10.96.0.10 -j DROP", undo: "iptables -t raw -F PREROUTING"},
		{name: "a rule by mark", expect: trace.Rejected, by: "prohibits",
			do: "ip route add prohibit default table 77; ip rule add fwmark 0x77 table 77 prio 5; " +
				`nft 'table ip firewall { chain c { type filter hook prerouting priority -150; ` +
				`ip saddr 10.1.1.11 meta mark set 0x77; }; }'`,
			undo: "nft delete table ip firewall; ip rule del prio 5; ip route flush table 77"},
		{name: "nothing", do: "true", undo: "true", expect: trace.Delivered},
		{name: "nothing, from the node", do: "true", undo: "true", from: "node1", expect: trace.Delivered},
		{name: "nothing, from outside", do: "true", undo: "true", from: "client", expect: trace.Delivered},
		{name: "nothing, two backends", do: "true", undo: "true", to: two, expect: trace.Delivered},
	}
	return all
}

// familyFaults are faults of IPv6 and of UDP.
func familyFaults() []nodeFault {
	var all []nodeFault
	for _, f := range []struct {
		name, family, hook, rule string
		six, udp                 bool
		from                     string
		expect                   trace.NodeVerdict
		modes                    string
	}{
		{"forward", "inet", "forward priority 0", "ip6 daddr fd00:10:1:1::12 drop", true, false, "", trace.Dropped, ""},
		{"forward", "ip6", "forward priority 0", "udp dport 8080 reject",
			true, true, "", trace.Rejected, "nftables iptables"},
		{"forward", "inet", "forward priority 0", "udp dport 8080 drop",
			false, true, "", trace.Dropped, "nftables iptables"},
		{"the other protocol", "inet", "forward priority 0", "udp dport 8080 drop",
			false, false, "", trace.Delivered, ""},
		{"the other family", "ip", "forward priority 0", "drop", true, false, "", trace.Delivered, ""},
		{"the reply", "inet", "forward priority 0", "ct direction reply udp sport 8080 drop",
			true, true, "", trace.Dropped, "nftables iptables"},
		{"raw", "ip", "prerouting priority -300", "ip daddr 10.96.0.10 udp dport 80 drop",
			false, true, "", trace.Dropped, ""},
		{"output", "inet", "output priority -200", "ip6 daddr fd00:10:96::10 drop",
			true, false, "node1", trace.Dropped, ""},
		{"nothing", "inet", "forward priority 0", "accept", true, true, "", trace.Delivered, ""},
		{"notrack",
			"ip6", "prerouting priority -300", "ip6 daddr fd00:10:96::10 notrack", true, false, "", trace.Dropped,
			"nftables iptables"},
		{"netdev egress", "netdev", "egress device vethpod2 priority 0", "udp dport 8080 drop",
			false, true, "", trace.Dropped, "nftables iptables"},
	} {
		do, undo := nft(f.family, f.hook, f.rule)
		name := map[bool]string{false: "TCP", true: "UDP"}[f.udp] + " over " +
			map[bool]string{false: "IPv4", true: "IPv6"}[f.six]
		by := map[bool]string{true: "rule 1"}[f.expect != trace.Delivered && f.name != "notrack"]
		all = append(all, nodeFault{name: name + ", " + f.name, do: do, undo: undo, from: f.from,
			expect: f.expect, by: by, six: f.six, udp: f.udp, modes: cmp.Or(f.modes, "nftables iptables")})
	}
	return all
}

// combinedFaults returns pairs of faults, those of known programs, and those of IPv6 routes.
func combinedFaults() []nodeFault {
	table := func(chains string) string { return "nft 'table inet firewall { " + chains + " }'; " }
	const gone = "nft delete table inet firewall; "
	return []nodeFault{
		{name: "a drop and a blackhole", to: two, expect: trace.Dropped,
			do: table("chain c { type filter hook forward priority 0; ip daddr 10.1.1.12 drop; };") +
				"ip route add blackhole 10.1.2.14/32", undo: gone + "ip route del blackhole 10.1.2.14/32", by: ""},
		{name: "nftables accepts, iptables drops", expect: trace.Dropped, by: "FORWARD", modes: "nftables userspace",
			do: table("chain c { type filter hook forward priority -5; accept; };") +
				"iptables -I FORWARD -p tcp --dport 8080 -j DROP",
			undo: gone + "iptables -D FORWARD -p tcp --dport 8080 -j DROP"},
		{name: "ip_forward and a rule", expect: trace.Dropped, by: "ip_forward=0", modes: "nftables iptables",
			do: table("chain c { type filter hook forward priority 0; drop; };") +
				"echo 0 >/proc/sys/net/ipv4/ip_forward", undo: gone + "echo 1 >/proc/sys/net/ipv4/ip_forward"},
		{name: "a jump", expect: trace.Dropped, by: "chain deep, rule 2", undo: gone,
			do: table("chain deep { ip daddr 10.1.1.13 accept; drop; }; " +
				"chain mid { tcp dport vmap { 8080 : goto deep }; }; " +
				"chain c { type filter hook forward priority 0; ct state new jump mid; };")},
		{name: "marked and matched later", expect: trace.Dropped, by: "chain f, rule 1", undo: gone,
			do: table("chain p { type filter hook prerouting priority -150; " +
				"ip daddr 10.96.0.10 meta mark set 0x9; }; " +
				"chain f { type filter hook forward priority 0; meta mark 0x9 drop; };"), modes: "nftables iptables"},
		{name: "iptables-legacy", expect: trace.Dropped, by: "iptables-legacy", modes: "nftables userspace",
			do:   "iptables-legacy -I FORWARD -p tcp --dport 8080 -j DROP",
			undo: "iptables-legacy -D FORWARD -p tcp --dport 8080 -j DROP"},
		{name: "Calico", expect: trace.Dropped, by: "(of Calico)", modes: "nftables iptables",
			do: "iptables -N cali-FORWARD; iptables -A cali-FORWARD -d 10.1.1.12 -j DROP; " +
				"iptables -I FORWARD -j cali-FORWARD",
			undo: "iptables -D FORWARD -j cali-FORWARD; iptables -F cali-FORWARD; iptables -X cali-FORWARD"},
		{name: "Docker", expect: trace.Dropped, by: "(of Docker)", modes: "nftables iptables",
			do: "iptables -N DOCKER-USER; iptables -A DOCKER-USER -i vethpod1 -j DROP; " +
				"iptables -I FORWARD -j DOCKER-USER",
			undo: "iptables -D FORWARD -j DOCKER-USER; iptables -F DOCKER-USER; iptables -X DOCKER-USER"},
		{name: "firewalld", expect: trace.Rejected, by: "(of firewalld)",
			do: "nft 'table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; " +
				"ct state new reject with icmpx admin-prohibited; }; }'", undo: "nft delete table inet firewalld"},
		{name: "rp_filter and a route back by mark", from: "client", expect: trace.Delivered, do: markedBack("1"),
			undo: unmarked},
		{name: "rp_filter and a mark that does not count", from: "client", expect: trace.Dropped, by: "rp_filter=1",
			do: markedBack("0"), undo: unmarked},
		{name: "rp_filter and a mark that leads elsewhere", from: "client", expect: trace.Dropped, by: "rp_filter=1",
			do: swapped.Replace(markedBack("1")), undo: unmarked},
		{name: "rp_filter and a mark that next packets lack", from: "client", expect: trace.Dropped, by: "rp_filter=1",
			do: strings.Replace(swapped.Replace(markedBack("1")), "0x77/0xff", "0x77", 1), undo: unmarked,
			modes: "nftables"},
		{name: "a policy of XFRM", expect: trace.Dropped, by: "XFRM policy", undo: "ip xfrm policy flush",
			do: "ip xfrm policy add dst 10.96.0.10 proto tcp dport 80 dir fwd action block"},
		{name: "a policy of XFRM for the reply", expect: trace.Dropped, by: "XFRM policy", undo: "ip xfrm policy flush",
			do: "ip xfrm policy add src 10.96.0.10 proto tcp dir out action block"},
		{name: "a filter of a qdisc", expect: trace.Undecided, by: "filter of tc on vethpod2, qdisc htb: u32",
			do: "tc qdisc add dev vethpod2 root handle 1: htb; tc filter add dev vethpod2 parent 1: protocol ip " +
				"u32 match u32 0 0 action mirred egress redirect dev lo", undo: "tc qdisc del dev vethpod2 root"},
		{name: "a filter of tc", expect: trace.Undecided, by: "filter of tc on vethpod1",
			do: "tc qdisc add dev vethpod1 clsact; " +
				"tc filter add dev vethpod1 ingress protocol ip u32 match u32 0 0 classid 1:1",
			undo: "tc qdisc del dev vethpod1 clsact"},
	}
}

// markedBack has a strict rp_filter on eth0, a mark of packets that come in there, and a route to
// the client by that mark: src_valid_mark says whether the mark counts.
func markedBack(counts string) string {
	return `nft 'table ip firewall { chain c { type filter hook prerouting priority -150; ` +
		`iifname { eth0, vethpod2 } meta mark set 0x77; }; }'; ip route add 172.18.0.100/32 dev vethpod1; ` +
		`ip route add 172.18.0.100/32 dev eth0 table 77; ` +
		`ip rule add fwmark 0x77/0xff table 77 prio 5; echo 1 >/proc/sys/net/ipv4/conf/eth0/rp_filter; ` +
		`echo ` + counts + ` >/proc/sys/net/ipv4/conf/eth0/src_valid_mark`
}

// swapped has the unmarked route lead back, and the marked one elsewhere.
var swapped = strings.NewReplacer("dev vethpod1", "dev eth0", "dev eth0 table", "dev vethpod1 table")

const unmarked = "nft delete table ip firewall; ip rule del prio 5; ip route flush table 77; " +
	"ip route del 172.18.0.100/32; echo 0 >/proc/sys/net/ipv4/conf/eth0/rp_filter; " +
	"echo 0 >/proc/sys/net/ipv4/conf/eth0/src_valid_mark"

// restored has iptables-restore add rules, whose chains are of the table filter, and takes them
// back.
func restored(jumps, chains string) (do, undo string) {
	do = "iptables-restore --noflush <<'END'\n*filter\n" + chains + jumps + "COMMIT\nEND\n"
	for rule := range strings.Lines(jumps) {
		undo = strings.Replace(rule, "-A ", "iptables -D ", 1) + undo
	}
	for line := range strings.Lines(chains) {
		if name, ok := strings.CutPrefix(line, ":"); ok {
			undo += "iptables -F " + strings.Fields(name)[0] + "\n"
		}
	}
	for line := range strings.Lines(chains) {
		if name, ok := strings.CutPrefix(line, ":"); ok {
			undo += "iptables -X " + strings.Fields(name)[0] + "\n"
		}
	}
	return do, undo
}

// ufw are rules as "ufw enable" makes them for forwarded packets, with a rule of "ufw route", and
// with the policy of its default.
func ufw(rule, policy string) (do, undo string) {
	do, undo = restored("-A FORWARD -j ufw-before-logging-forward\n-A FORWARD -j ufw-before-forward\n"+
		"-A FORWARD -j ufw-after-forward\n-A FORWARD -j ufw-after-logging-forward\n"+
		"-A FORWARD -j ufw-reject-forward\n-A FORWARD -j ufw-track-forward\n",
		":ufw-before-logging-forward - [0:0]\n:ufw-before-forward - [0:0]\n:ufw-after-forward - [0:0]\n"+
			":ufw-after-logging-forward - [0:0]\n:ufw-reject-forward - [0:0]\n:ufw-track-forward - [0:0]\n"+
			":ufw-user-forward - [0:0]\n:ufw-logging-deny - [0:0]\n"+
			"-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"+
			"-A ufw-before-forward -m conntrack --ctstate INVALID -j ufw-logging-deny\n"+
			"-A ufw-before-forward -m conntrack --ctstate INVALID -j DROP\n"+
			"-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT\n"+
			"-A ufw-before-forward -j ufw-user-forward\n"+
			"-A ufw-after-logging-forward -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix \"[UFW BLOCK] "+
			"\"\n-A ufw-user-forward "+rule+"\n")
	return do + "iptables -P FORWARD " + policy, "iptables -P FORWARD ACCEPT\n" + undo
}

// kubeRouter are rules as kube-router makes them for a network policy of pod2, which admits port
// 8080 from the pods of a set.
func kubeRouter(admitted string) (do, undo string) {
	const mark = "0x10000/0x10000"
	do, undo = restored("-A FORWARD -m comment --comment \"kube-router netpol - TEMCG2JMHZYE7H7T\" -j "+
		"KUBE-ROUTER-FORWARD\n",
		":KUBE-ROUTER-FORWARD - [0:0]\n:KUBE-POD-FW-4D2B6O4UVZ - [0:0]\n:KUBE-NWPLCY-WBZ7VKJ3EX - [0:0]\n"+
			"-A KUBE-ROUTER-FORWARD -d 10.1.1.12/32 -m comment --comment \"rule to jump traffic to POD name:two\" "+
			"-j KUBE-POD-FW-4D2B6O4UVZ\n"+
			"-A KUBE-ROUTER-FORWARD -m comment --comment \"accept traffic that network policies admit\" "+
			"-m mark --mark 0x20000/0x20000 -j ACCEPT\n"+
			"-A KUBE-POD-FW-4D2B6O4UVZ -m conntrack --ctstate INVALID -j DROP\n"+
			"-A KUBE-POD-FW-4D2B6O4UVZ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"+
			"-A KUBE-POD-FW-4D2B6O4UVZ -d 10.1.1.12/32 -m addrtype --src-type LOCAL -j ACCEPT\n"+
			"-A KUBE-POD-FW-4D2B6O4UVZ -d 10.1.1.12/32 -j KUBE-NWPLCY-WBZ7VKJ3EX\n"+
			"-A KUBE-POD-FW-4D2B6O4UVZ -m mark ! --mark "+mark+" -m limit --limit 10/min --limit-burst 10 "+
			"-j NFLOG --nflog-group 100\n"+
			"-A KUBE-POD-FW-4D2B6O4UVZ -m mark ! --mark "+mark+" -j REJECT --reject-with icmp-port-unreachable\n"+
			"-A KUBE-POD-FW-4D2B6O4UVZ -j MARK --set-xmark 0x0/0x10000\n"+
			"-A KUBE-POD-FW-4D2B6O4UVZ -j MARK --set-xmark 0x20000/0x20000\n"+
			"-A KUBE-NWPLCY-WBZ7VKJ3EX -p tcp -m set --match-set KUBE-SRC-AB src -m set --match-set KUBE-DST-AB dst "+
			"-m tcp --dport 8080 -j MARK --set-xmark "+mark+"\n"+
			"-A KUBE-NWPLCY-WBZ7VKJ3EX -p tcp -m set --match-set KUBE-SRC-AB src -m set --match-set KUBE-DST-AB dst "+
			"-m tcp --dport 8080 -m mark --mark "+mark+" -j RETURN\n")
	return "ipset create KUBE-SRC-AB hash:ip; ipset add KUBE-SRC-AB " + admitted +
			"; ipset create KUBE-DST-AB hash:ip; ipset add KUBE-DST-AB 10.1.1.12\n" + do,
		undo + "sleep 0.1; ipset destroy KUBE-SRC-AB; ipset destroy KUBE-DST-AB"
}

// programFaults are rule sets such as other programs write.
func programFaults() []nodeFault {
	f := func(name string, expect trace.NodeVerdict, by string) func(do, undo string) nodeFault {
		return func(do, undo string) nodeFault {
			return nodeFault{name: name, expect: expect, by: by, do: do, undo: undo}
		}
	}
	const port = " -p tcp -m tcp --dport 8080 "
	return []nodeFault{
		f("ufw denies a route", trace.Dropped, "(of ufw)")(ufw("-d 10.1.1.12/32"+port+"-j DROP", "ACCEPT")),
		f("ufw, by its default", trace.Dropped, "chain FORWARD, policy")(ufw("-d 10.1.1.13/32 -j ACCEPT", "DROP")),
		f("ufw allows a route", trace.Delivered, "")(ufw("-d 10.1.1.12/32"+port+"-j ACCEPT", "DROP")),
		f("kube-router, not admitted", trace.Rejected, "(of kube-router)")(kubeRouter("10.1.1.13")),
		f("kube-router, admitted", trace.Delivered, "")(kubeRouter("10.1.1.11")),
	}
}

// TestTraceNode breaks a node on which the proxy serves, asks trace, and sends real packets: trace
// predicts what happens to them, before and after the translation (NT-01, NT-04, NT-06, NT-08).
// internal/hooks compares the evaluation of rules with the kernel's, debug/node that of routes.
func TestTraceNode(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel() // they mostly wait for packets that do not arrive
			newTraceLab(t, mode).faults(t)
		})
	}
}

// TestTraceNodeIPVS is TestTraceNode for mode ipvs, on kernels that have it (NT-01, NT-03, NT-04).
func TestTraceNodeIPVS(t *testing.T) {
	kerneltest.Later(t)
	needIPVS(t)
	newTraceLab(t, "ipvs").faults(t)
}

// faults breaks the node in all ways that concern the mode.
func (n *nodeLab) faults(t *testing.T) {
	p := n.serve()
	defer p.stop()
	all := slices.Concat(nftFaults(), otherFaults(), familyFaults())
	for _, f := range append(combinedFaults(), programFaults()...) {
		f.modes = cmp.Or(f.modes, "nftables iptables")
		all = append(all, f)
	}
	for _, f := range all {
		if f.modes == "" || n.mode == "ipvs" || strings.Contains(f.modes, n.mode) {
			t.Run(f.name, func(t *testing.T) { n.fault(t, f, n.mode) })
		}
	}
}

// newTraceLab has the Services of the faults.
func newTraceLab(t *testing.T, mode string) *nodeLab {
	n := newNodeLabWith(t, netlab.Options{Cgroup: mode == "ebpf"})
	n.mode = mode
	n.Serve(netlab.TCP, 8080, "pod2", "pod4")
	n.Serve(netlab.UDP, 8080, "pod2", "pod4")
	n.dual("one", 10, "pod2")
	n.dual("two", 20, "pod2", "pod4")
	n.dual("sick", 30)
	return n
}

// shell runs commands on node1.
func (n *nodeLab) shell(t *testing.T, command string) {
	t.Helper()
	if out, err := n.Command(netlab.Node1, "sh", "-ec", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// fault breaks the node, compares trace with real packets, and repairs the node.
func (n *nodeLab) fault(t *testing.T, f nodeFault, mode string) {
	f.from = cmp.Or(f.from, "pod1")
	n.shell(t, f.do)
	defer n.shell(t, f.undo)
	if mode == "nftables" && strings.Contains("drop in forward, reject in forward, one backend, nothing", f.name) {
		n.expected(t, f)
	}
	var a inspect.TraceAnswer
	var text func() string
	until(t, func() string { // in emulation the time limit of the answer may pass
		a, text = n.traced(t, f)
		if a.Rest == nil {
			return "no answer of the node: " + strings.Join(a.Notes, "; ")
		}
		return ""
	})
	delivered, rejected, dropped := n.shoot(t, f)
	rest := a.Rest
	reported := rest.By + strings.Join(rest.NotEvaluated, " ")
	if mode == "nftables" && (rest.Verdict != f.expect || !strings.Contains(reported, f.by)) {
		t.Errorf("%s by %q, want %s by %q:\n%s", rest.Verdict, rest.By, f.expect, f.by, text())
	}
	some := map[trace.NodeVerdict]bool{
		trace.Delivered: delivered > 0, trace.Rejected: rejected > 0, trace.Dropped: dropped > 0,
	}
	switch all := rest.By != "" && rest.Share > 0.99; {
	case rest.Verdict == trace.Undecided && len(rest.NotEvaluated) > 0: // the answer says so
	case !some[rest.Verdict], all && delivered > 0,
		rest.Verdict == trace.Delivered && rejected+dropped > 0,
		!all && rest.By != "" && delivered == 0:
		t.Errorf("predicted %s (%.2f), but %d were delivered, %d rejected, %d dropped:\n%s", rest.Verdict, rest.Share,
			delivered, rejected, dropped, text())
	}
}

// expected queries trace for each possible outcome.
func (n *nodeLab) expected(t *testing.T, f nodeFault) {
	outcome := map[trace.NodeVerdict]string{
		trace.Delivered: "balance", trace.Dropped: "drop", trace.Rejected: "reject",
	}[f.expect]
	h, _ := netlab.HostByName(f.from)
	for _, expect := range []string{"balance", "drop", "reject", "pass"} {
		_, to := f.asked()
		code, says := n.query("trace", h.V4.String(), to, "--expect", expect)
		if want := map[bool]int{true: 0, false: 2}[expect == outcome]; code != want {
			t.Errorf("--expect %s: exit code %d, want %d:\n%s", expect, code, want, says)
		}
	}
}

// traced queries trace for a packet of a host, by the command where it has more arguments; text
// repeats the query in the format for people.
func (n *nodeLab) traced(t *testing.T, f nodeFault, more ...string) (a inspect.TraceAnswer, text func() string) {
	t.Helper()
	h, _ := netlab.HostByName(f.from)
	_, to := f.asked()
	from := netip.AddrPortFrom(h.Addr(f.six), f.port)
	ask := func(format string) string {
		said := from.String()
		if f.port == 0 {
			said = from.Addr().String()
		}
		_, text := n.query(append([]string{"trace", said, to, "-o", format}, more...)...)
		return text
	}
	var err error
	if more != nil {
		err = json.Unmarshal([]byte(ask("json")), &a)
	} else {
		query := url.Values{"from": {from.Addr().String()}, "to": {to}}
		if f.port != 0 {
			query.Set("port", fmt.Sprint(f.port))
		}
		err = api.NewClient(filepath.Join(n.dir, "admin.sock")).Get(t.Context(), "trace", query, &a)
	}
	text = func() string { return ask("wide") }
	if err != nil {
		t.Fatalf("%v: %s", err, text())
	}
	return a, text
}

// shoot opens connections until two backends must have been chosen, and counts their outcomes.
func (n *nodeLab) shoot(t *testing.T, f nodeFault) (delivered, rejected, dropped int) {
	t.Helper()
	to, _ := f.asked()
	shots := 1
	if f.to == two {
		shots = 8
	}
	for i := 0; i < shots || shots > 1 && i < 40 && (delivered == 0 || delivered == i); i++ {
		_, err := n.Dial(f.from, f.proto(), to, netlab.DialOptions{Timeout: 300 * time.Millisecond})
		switch {
		case err == nil:
			delivered++
		case errors.Is(err, netlab.ErrTimeout):
			dropped++
		default:
			rejected++
		}
		if delivered > 0 && rejected+dropped > 0 {
			break
		}
	}
	return delivered, rejected, dropped
}

// TestTraceBridge has a chain on one port of a bridge: it decides if --in or the tables of
// neighbours and of the bridge name the port, and is named as not evaluated if the port is unknown
// (NT-06).
func TestTraceBridge(t *testing.T) {
	n := newNodeLabWith(t, netlab.Options{Bridge: true})
	n.mode = "nftables"
	n.Serve(netlab.TCP, 8080, "pod2", "pod4")
	n.dual("two", 20, "pod4")
	p := n.serve()
	defer p.stop()
	do, undo := nft("netdev", "ingress device vethpod1 priority 0", "tcp dport 80 drop")
	n.shell(t, do)
	defer n.shell(t, undo)
	for _, c := range []struct {
		first  string
		in     []string
		from   string
		expect trace.NodeVerdict
	}{{"", nil, "pod1", trace.Dropped}, {"", []string{"--in", "vethpod1"}, "pod1", trace.Dropped},
		{"", []string{"--in", "vethpod3"}, "pod3", trace.Delivered},
		{"ip neigh del 10.1.1.11 dev cbr0", nil, "pod1", trace.Undecided}} {
		n.shell(t, c.first)
		f := nodeFault{from: c.from, to: two}
		a, text := n.traced(t, f, c.in...)
		reported := a.Rest.By + strings.Join(a.Rest.NotEvaluated, "")
		if a.Rest.Verdict != c.expect ||
			strings.Contains(reported, "table netdev firewall, chain c, rule 1") != (c.from == "pod1") {
			t.Errorf("%s, --in %v: %s\n%s", c.from, c.in, reported, text())
		}
		if _, err := n.Dial(c.from, netlab.TCP, netip.MustParseAddrPort(two),
			netlab.DialOptions{Timeout: 300 * time.Millisecond}); (err == nil) != (c.from == "pod3") {
			t.Errorf("a connection of %s: %v", c.from, err)
		}
	}
}

// passes is what why says of a client whose packets pass.
const passes = "passes this node, and so does the reply: "

// TestWhyChecksTheNode has rules of another program on the way of packets to a Service whose
// objects are correct: why names the clients whose packets pass, and what stops the packets of the
// node, of a pod, or of a client outside (ST-07).
func TestWhyChecksTheNode(t *testing.T) {
	n := newTraceLab(t, "nftables")
	n.service(labService{name: "out", ip: "10.96.0.40", nodePort: 30080,
		endpoints: []netip.AddrPort{endpoint("pod2", 8080)}})
	p := n.serve()
	defer p.stop()
	const dropped = "DROPPED on this node, not by kube-proxy: table inet firewall, chain c, rule 1 "
	clients := map[string]string{netlab.Node1: "this node to ", "pod1": "the pod 10.1.1.12 to ",
		netlab.Client: "a client 198.51.100.1 to "}
	for _, c := range []struct {
		hook, rule, says string
		code             int
		stopped          string // a client
	}{
		{"output priority 0", "ip daddr 10.1.1.13 drop", "The objects are in order.", 0, ""},
		{"output priority 0", "ip daddr 10.1.1.12 drop", dropped + `"ip daddr 10.1.1.12 drop"`, 2, netlab.Node1},
		{"input priority 0", "ct direction reply tcp sport 8080 drop", dropped, 2, netlab.Node1},
		{"forward priority 0", `iifname "veth*" tcp dport 8080 drop`, dropped, 2, "pod1"},
		{"forward priority 0", `iifname "eth0" tcp dport 8080 drop`, dropped, 2, netlab.Client},
		{"output priority 0", "limit rate over 1000/second drop", "NOT DECIDED", 0, netlab.Node1},
	} {
		t.Run(c.rule, func(t *testing.T) {
			do, undo := nft("inet", c.hook, c.rule)
			n.shell(t, do)
			defer n.shell(t, undo)
			code, says := n.query("why", "lab/out:tcp")
			says = unfolded(says)
			if code != c.code || !strings.Contains(says, c.says) ||
				!strings.Contains(says, "The objects are in order.") {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, c.code, c.says, says)
			}
			for from, name := range clients {
				to := netip.MustParseAddrPort("10.96.0.40:80")
				if from == netlab.Client {
					to = netip.MustParseAddrPort("172.18.0.2:30080")
				}
				if strings.Contains(says, passes+name) != (from != c.stopped) {
					t.Errorf("packets of %s pass, or not:\n%s", from, says)
				}
				_, err := n.Dial(from, netlab.TCP, to, netlab.DialOptions{Timeout: 500 * time.Millisecond})
				if (err == nil) != (from != c.stopped || c.says == "NOT DECIDED") {
					t.Errorf("a connection of %s: %v", from, err)
				}
			}
		})
	}
}

// TestTraceBesideXtablesLock holds the lock of iptables, as a writer does: queries do not wait for
// it, though rules of iptables-legacy are on the way (NT-09).
func TestTraceBesideXtablesLock(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "xtables.lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	n := newTraceLab(t, "nftables")
	p := n.serve()
	defer p.stop()
	n.shell(t, "iptables-legacy -w 10 -I FORWARD -p tcp --dport 8080 -j DROP")
	held, err := os.OpenFile(lock, os.O_CREATE|os.O_RDWR, 0o600)
	do(t, err)
	defer held.Close()
	do(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	if out, err := n.Command(netlab.Node1, "timeout", "0.3", "iptables-legacy", "-I", "FORWARD",
		"-j", "DROP").CombinedOutput(); err == nil {
		t.Fatalf("nothing holds the lock: %s", out)
	}
	a, text := n.traced(t, nodeFault{from: "pod1"})
	if a.Rest == nil || a.Rest.Verdict != trace.Dropped || !strings.Contains(a.Rest.By, "iptables-legacy") {
		t.Errorf("trace:\n%s", text())
	}
	for command, want := range map[string]string{"why lab/one": passes, "status": "frontends "} {
		if _, says := n.query(strings.Fields(command)...); !strings.Contains(says, want) {
			t.Errorf("%s lacks %q:\n%s", command, want, says)
		}
	}
}
