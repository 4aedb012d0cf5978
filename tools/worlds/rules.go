package main

import (
	"fmt"
	"strings"
)

// hook is a base chain's place, with what its rules may match.
type hook struct {
	name       string
	priorities []string
	in, out    bool
}

var filterHooks = []hook{
	{"prerouting", []string{"-310", "-300", "-290", "-150", "-140", "-101", "-90", "0"}, true, false},
	{"input", []string{"-10", "0", "50"}, true, false},
	{"forward", []string{"-150", "-10", "-1", "0", "0", "0", "1", "50"}, true, true},
	{"forward", []string{"-5", "0", "0", "10"}, true, true},
	{"output", []string{"-310", "-300", "-150", "0", "0", "50"}, false, true},
	{"postrouting", []string{"-150", "-10", "0", "90", "110", "300"}, false, true},
}

// addresses are those that rules of this world are likely to meet, of one family.
func (m maker) address(six bool) string {
	s := m.w.services[m.IntN(len(m.w.services))]
	switch m.IntN(8) {
	case 0:
		return s.clusterIP(six).String()
	case 1:
		return addressOf("client", six).String()
	case 2:
		return addressOf("node1", six).String()
	case 3:
		return addressOf(pick(m, "pod4", "pod5", "node2"), six).String()
	case 4:
		if s.kind == "LoadBalancer" {
			return s.balancer(six).String()
		}
		return s.clusterIP(six).String()
	case 5:
		if len(s.backends) > 0 {
			return addressOf(s.backends[m.IntN(len(s.backends))].host, six).String()
		}
	}
	return addressOf(pick(m, "pod1", "pod2", "pod3"), six).String()
}

// network is an address or a prefix around one.
func (m maker) network(six bool) string {
	a := m.address(six)
	bits := pick(m, 0, 0, 8, 16, 24, 28)
	if six {
		bits = pick(m, 0, 0, 32, 48, 64, 124)
	}
	if bits == 0 {
		return a
	}
	return prefix(a, bits)
}

func (m maker) device() string {
	list := []string{"vethpod1", "vethpod2", "vethpod3", "eth0", "eth0", "lo"}
	if m.w.bridge {
		list = []string{"cbr0", "cbr0", "cbr0", "eth0", "eth0", "lo", "vethpod2"}
	}
	return list[m.IntN(len(list))]
}

func (m maker) ports() string {
	s := m.w.services[m.IntN(len(m.w.services))]
	return pick(m, "80", "8080", "8080", "{ 80, 8080 }", "8000-9000", "!= 8080", "30000-32767", "1-1023",
		fmt.Sprint(s.nodePort()), fmt.Sprintf("{ 22, 443, %d }", s.target))
}

// clientPorts are matches of a port that the client has, or not.
func (m maker) clientPorts() string {
	return pick(m, "1024-65535", "8080", "80", "20000-23999", "24000-60000", "< 1024", "!= 8080", "{ 53, 80, 8080 }")
}

// nftMatch returns a match in a chain of a table of inet, ip or ip6.
func (m maker) nftMatch(h hook, six bool) string {
	ip := "ip"
	if six {
		ip = "ip6"
	}
	proto := pick(m, "tcp", "tcp", "udp", "th")
	if proto == "th" {
		proto = "meta l4proto { tcp, udp } th"
	}
	switch m.IntN(30) {
	case 0, 1, 2:
		if h.in {
			return "iifname " + pick(m, m.device(), "{ "+m.device()+", "+m.device()+" }", "!= "+m.device(),
				`"vethpod*"`)
		}
		return "oifname " + m.device()
	case 3, 4:
		if h.out {
			return "oifname " + pick(m, m.device(), "!= "+m.device())
		}
		return "iif " + pick(m, "eth0", "lo")
	case 5, 6, 7:
		return ip + " saddr " + m.network(six)
	case 8, 9, 10:
		return ip + " daddr " + m.network(six)
	case 11:
		return fmt.Sprintf("%s %s { %s, %s }", ip, pick(m, "saddr", "daddr"), m.address(six), m.network(six))
	case 12:
		return ip + " " + pick(m, "saddr", "daddr") + " != " + m.network(six)
	case 13, 14:
		return proto + " dport " + m.ports()
	case 15:
		return proto + " sport " + m.clientPorts()
	case 16:
		return "ct state " + pick(m, "new", "established", "established,related", "invalid", "untracked", "!= new")
	case 17:
		return "ct status " + pick(m, "dnat", "snat", "dnat,snat", "seen-reply", "confirmed", "& dnat == 0")
	case 18:
		return "ct direction " + pick(m, "original", "reply")
	case 19:
		return pick(m, "ct original "+ip+" daddr "+m.network(six), "ct original "+ip+" saddr "+m.network(six),
			"ct original proto-dst 80", "ct reply "+ip+" saddr "+m.network(six), "ct reply proto-src 8080")
	case 20:
		return "ct mark " + pick(m, "0x40", "!= 0x0", "0x0", "and 0x40 == 0x40")
	case 21:
		return "meta mark " + pick(m, "0x40", "!= 0x0", "0x0", "and 0x40 == 0x40", "and 0xf0 != 0x0")
	case 22:
		if six {
			return pick(m, "ip6 hoplimit 64", "ip6 hoplimit 63", "ip6 hoplimit < 64", "ip6 dscp cs1", "ip6 dscp cs0")
		}
		return pick(m, "ip ttl 64", "ip ttl 63", "ip ttl < 64", "ip dscp cs1", "ip dscp cs0", "ip length > 100",
			"ip frag-off & 0x1fff == 0")
	case 23:
		return pick(m, "tcp flags syn / syn,ack", "tcp flags & (syn|ack) == syn|ack",
			"tcp flags & (fin|syn|rst) == 0",
			"tcp option maxseg exists", "meta l4proto tcp", "meta l4proto udp", "meta nfproto ipv4",
			"meta nfproto ipv6")
	case 24:
		return pick(m, "fib daddr type local", "fib daddr type != local", "fib saddr type unicast",
			"fib daddr type unicast")
	case 25:
		if h.name == "prerouting" {
			return pick(m, "fib saddr . iif oif exists", "fib saddr . iif oif missing", "fib saddr oif eth0")
		}
		return pick(m, "meta skuid 0", "meta pkttype host", "meta length < 200")
	case 26:
		return fmt.Sprintf("%s saddr . tcp dport { %s . 80, %s . 8080 }", ip, m.address(six), m.address(six))
	case 27:
		return fmt.Sprintf("%s daddr . %s", ip, "meta l4proto { "+m.address(six)+" . tcp, "+m.address(six)+" . udp }")
	case 28:
		return "ct zone " + pick(m, "0", "!= 0", "7")
	}
	return pick(m, "limit rate 1/hour burst 2 packets", "limit rate over 1/hour burst 20 packets",
		"numgen random mod 2 0", "meta cpu 0")
}

// nftStatement changes the packet or the connection, without a verdict.
func (m maker) nftStatement(h hook, six bool) string {
	all := []string{"counter", "meta mark set 0x40", "meta mark set meta mark or 0x40", "ct mark set 0x40",
		"ct mark set meta mark", "meta mark set ct mark", "meta mark set ct mark and 0xf0", `log prefix "x "`,
		"meta priority set 1:7", "tcp flags syn tcp option maxseg size set 1200", "ct mark set ct mark or 0x40"}
	if six {
		all = append(all, "ip6 hoplimit set 1", "ip6 hoplimit set 2", "ip6 dscp set cs1")
	} else {
		all = append(all, "ip ttl set 1", "ip ttl set 2", "ip ttl set 64", "ip dscp set cs1", "ip dscp set ef",
			"ip daddr set "+m.address(six), "tcp dport set 9999")
	}
	if (h.name == "prerouting" || h.name == "output") && h.priorities[0] == "-310" {
		all = append(all, "notrack", "notrack", "ct zone set 7")
	}
	return all[m.IntN(len(all))]
}

func (m maker) nftVerdict(h hook, chains []string) string {
	if len(chains) > 0 && m.IntN(4) == 0 {
		return pick(m, "jump ", "goto ") + chains[m.IntN(len(chains))]
	}
	list := []string{"drop", "drop", "drop", "drop", "accept", "accept", "accept", "return", "continue"}
	if h.name == "input" || h.name == "forward" || h.name == "output" {
		list = append(list, "reject", "reject with icmpx admin-prohibited", "meta l4proto tcp reject with tcp reset")
	}
	return list[m.IntN(len(list))]
}

// nftRule is a rule with one to three matches.
func (m maker) nftRule(h hook, six bool, chains []string) string {
	var parts []string
	for range pick(m, 1, 1, 1, 2, 2, 3) {
		parts = append(parts, m.nftMatch(h, six))
	}
	if m.IntN(3) == 0 {
		parts = append(parts, m.nftStatement(h, six))
		if m.IntN(2) == 0 {
			return strings.Join(parts, " ")
		}
	}
	return strings.Join(append(parts, m.nftVerdict(h, chains)), " ")
}

// table numbers the tables of other programs.
func (m maker) table() string { return fmt.Sprintf("other%d", len(m.w.mutations)) }

// family returns a family of tables, and the family of addresses for its rules.
func (m maker) family() (table string, six bool) {
	six = m.IntN(3) == 0
	if m.IntN(2) == 0 {
		return "inet", six
	}
	if six {
		return "ip6", true
	}
	return "ip", false
}

// nftFilter is a base chain with some rules, and maybe a chain to jump to.
func (m maker) nftFilter() mutation {
	family, six := m.family()
	h := filterHooks[m.IntN(len(filterHooks))]
	var chains []string
	text := ""
	if m.IntN(3) == 0 {
		chains = []string{"sub"}
		text = "  chain sub {\n"
		for range 1 + m.IntN(2) {
			text += "    " + m.nftRule(h, six, nil) + "\n"
		}
		text += "  }\n"
	}
	policy := ""
	var rules []string
	kind := "nft " + h.name
	if m.IntN(3) == 0 && (h.name == "forward" || h.name == "input" || h.name == "output") {
		kind += " policy drop"
		policy = " policy drop;"
		rules = append(rules, pick(m, "ct state established,related accept", "ct direction reply accept",
			"ct mark 0x40 accept", "ct status dnat accept"))
	}
	for range 1 + m.IntN(3) {
		rules = append(rules, m.nftRule(h, six, chains))
	}
	m.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	text += fmt.Sprintf("  chain c {\n    type filter hook %s priority %s;%s\n    %s\n  }\n", h.name,
		h.priorities[m.IntN(len(h.priorities))], policy, strings.Join(rules, "\n    "))
	return mutation{kind, "node1", nftScript("table " + family + " " + m.table() + " {\n" + text + "}")}
}

func nftScript(text string) string { return "nft -f - <<'END'\n" + text + "\nEND" }

// nftSets has named sets and maps.
func (m maker) nftSets() mutation {
	six := m.IntN(3) == 0
	ip, kind := "ip", "ipv4_addr"
	if six {
		ip, kind = "ip6", "ipv6_addr"
	}
	h := filterHooks[m.IntN(len(filterHooks))]
	decl := fmt.Sprintf("  set s { type %s; elements = { %s }; }\n", kind, m.address(six))
	match := ip + " " + pick(m, "saddr", "daddr") + pick(m, " @s", " != @s")
	verdict := m.nftVerdict(h, nil)
	switch m.IntN(4) {
	case 0:
		decl = fmt.Sprintf("  set s { type %s; flags interval; auto-merge; elements = { %s, %s }; }\n", kind,
			m.network(six), m.network(six))
	case 1:
		decl = fmt.Sprintf("  map v { type %s : verdict; elements = { %s : drop }; }\n", kind, m.address(six))
		match, verdict = ip+" "+pick(m, "saddr", "daddr")+" vmap @v", ""
	case 2:
		decl = fmt.Sprintf("  set s { type %s . inet_service; elements = { %s . %s }; }\n", kind, m.address(six),
			pick(m, "80", "8080"))
		match = fmt.Sprintf("%s %s . tcp %s @s", ip, pick(m, "saddr", "daddr"), pick(m, "dport", "sport"))
	}
	text := fmt.Sprintf("%s  chain c {\n    type filter hook %s priority %s;\n    %s %s\n  }\n", decl, h.name,
		h.priorities[m.IntN(len(h.priorities))], match, verdict)
	return mutation{"nft set", "node1", nftScript("table " + pick(m, "inet", ip) + " " + m.table() + " {\n" +
		text + "}")}
}

// nftNat translates beside kube-proxy, as other agents do.
func (m maker) nftNat() mutation {
	six := m.IntN(3) == 0
	ip, host, to := "ip", "%s", addressOf(pick(m, "pod2", "pod3", "pod2", "node2"), six).String()
	if six {
		ip, host = "ip6", "[%s]"
	}
	s := m.w.services[m.IntN(len(m.w.services))]
	target := fmt.Sprintf(host+":%d", to, pick(m, stolen, stolen, served))
	where := pick(m, "prerouting", "prerouting", "output", "postrouting", "input")
	var priority, rule string
	switch where {
	case "prerouting", "output":
		priority = pick(m, "-110", "-101", "-100", "-100", "-99", "-90")
		match := pick(m, fmt.Sprintf("%s daddr %s", ip, s.clusterIP(six)), "meta l4proto { tcp, udp } th dport 80",
			fmt.Sprintf("meta l4proto { tcp, udp } th dport %d", s.nodePort()), ip+" saddr "+m.address(six),
			ip+" daddr "+m.address(six))
		rule = match + " meta l4proto { tcp, udp } " + pick(m, "dnat to "+target, "dnat to "+target,
			fmt.Sprintf("redirect to :%d", stolen), "accept")
	case "postrouting":
		priority = pick(m, "90", "99", "100", "100", "101")
		rule = pick(m, ip+" saddr "+m.network(six), ip+" daddr "+m.network(six), "oifname eth0",
			"meta mark 0x40") + " " +
			pick(m, "masquerade", "masquerade", "snat to "+addressOf("node1", six).String(), "accept",
				"masquerade random")
	default:
		priority = pick(m, "90", "100", "101")
		rule = ip + " saddr " + m.network(six) + " snat to " + m.address(six)
	}
	return mutation{"nft nat " + where, "node1", nftScript(fmt.Sprintf("table %s %s {\n  chain c {\n    "+
		"type nat hook %s priority %s;\n    %s\n  }\n}", ip, m.table(), where, priority, rule))}
}

// netdev filters at a device or in a bridge.
func (m maker) netdev() mutation {
	six := m.IntN(3) == 0
	if m.w.bridge && m.IntN(2) == 0 {
		h := pick(m, "prerouting", "input", "forward", "output", "postrouting")
		return mutation{"nft bridge", "node1", nftScript(fmt.Sprintf("table bridge %s {\n  chain c {\n    "+
			"type filter hook %s priority 0;\n    %s drop\n  }\n}", m.table(), h,
			pick(m, "ip saddr "+m.address(false), "ip daddr "+m.address(false), "tcp dport 80", "tcp sport 8080",
				"ip6 daddr "+m.address(true), "iifname vethpod1", "ether type ip6")))}
	}
	h := hook{"ingress", nil, true, false}
	way := pick(m, "ingress", "egress")
	return mutation{"nft netdev", "node1", nftScript(fmt.Sprintf("table netdev %s {\n  chain c {\n    "+
		"type filter hook %s device %s priority 0;\n    %s %s\n  }\n}", m.table(), way,
		pick(m, "vethpod1", "vethpod2", "eth0"), pick(m, m.netdevMatch(h, six), "tcp dport 80", "tcp sport 8080"),
		pick(m, "drop", "drop", "accept", "counter")))}
}

func (m maker) netdevMatch(_ hook, six bool) string {
	if six {
		return "ip6 " + pick(m, "saddr ", "daddr ") + m.network(true)
	}
	return "ip " + pick(m, "saddr ", "daddr ") + m.network(false)
}

// connmark saves and restores marks, with a firewall or a route that needs them.
func (m maker) connmark() mutation {
	uplink := pick(m, "eth0", "vethpod1")
	if m.w.bridge {
		uplink = pick(m, "eth0", "cbr0")
	}
	end := pick(m,
		"chain f { type filter hook forward priority 0; policy drop; ct mark 0x80 accept; }",
		"chain f { type filter hook forward priority 0; policy drop; meta mark 0x80 accept; }",
		"chain f { type filter hook forward priority 0; ct direction reply meta mark 0x80 drop; }",
		"chain f { type filter hook forward priority 0; ct mark 0x80 reject; }",
		"chain f { type filter hook forward priority 0; ct state established ct mark != 0x80 drop; }")
	script := nftScript(fmt.Sprintf(`table inet %s {
  chain p {
    type filter hook prerouting priority %s;
    %s
    iifname %s ct state new ct mark set 0x80
    %s
  }
  %s
}`, m.table(), pick(m, "-150", "-140"), pick(m, "", "meta mark set ct mark", "ct direction reply meta mark set ct mark"),
		uplink, pick(m, "", "meta mark set ct mark", "ct mark 0x80 meta mark set 0x80"), end))
	switch m.IntN(3) {
	case 0: // as the CNI of AWS: replies take the device that requests came by
		script = fmt.Sprintf("iptables -t mangle -A PREROUTING -i %s -m addrtype --dst-type LOCAL "+
			"--limit-iface-in -j CONNMARK --set-xmark 0x80/0x80\n", uplink) +
			"iptables -t mangle -A PREROUTING -i vethpod+ -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80\n" +
			"ip rule add fwmark 0x80/0x80 lookup main prio 100\n" + pick(m,
			"ip rule add from 10.1.1.12 lookup 88 prio 200\n"+
				"ip route add unreachable default table 88", "ip rule add from 10.1.1.0/24 lookup 88 prio 200\n"+
				"ip route add prohibit default table 88", "true")
	case 1:
		script += "\nip rule add fwmark 0x80/0x80 lookup 88 prio 100\nip route add " +
			pick(m, "prohibit", "blackhole", "unreachable") + " default table 88"
	}
	return mutation{"connmark", "node1", script}
}

// xtMatch returns a match of iptables or ip6tables.
func (m maker) xtMatch(h hook, six bool) string {
	proto := pick(m, "-p tcp", "-p tcp", "-p udp")
	switch m.IntN(22) {
	case 0, 1:
		if h.in {
			return pick(m, "-i ", "! -i ") + pick(m, m.device(), "vethpod+")
		}
		return "-o " + m.device()
	case 2:
		if h.out {
			return pick(m, "-o ", "! -o ") + m.device()
		}
		return "-i " + m.device()
	case 3, 4, 5:
		return pick(m, "-s ", "-s ", "! -s ") + m.network(six)
	case 6, 7, 8:
		return pick(m, "-d ", "-d ", "! -d ") + m.network(six)
	case 9, 10:
		return proto + " --dport " + pick(m, "80", "8080", "8000:9000", "30000:32767")
	case 11:
		return proto + " --sport " + pick(m, "8080", "80", "1024:65535", "20000:23999")
	case 12:
		return proto + " -m multiport " + pick(m, "--dports 80,443,8080", "--sports 80,8080", "--dports 8000:9000,53",
			"--ports 8080")
	case 13:
		return "-m conntrack --ctstate " + pick(m, "NEW", "ESTABLISHED", "RELATED,ESTABLISHED", "INVALID", "DNAT",
			"SNAT",
			"UNTRACKED")
	case 14:
		return "-m conntrack " + pick(m, "--ctdir REPLY", "--ctdir ORIGINAL", "--ctorigdst "+m.address(six),
			"--ctorigsrc "+m.address(six), "--ctorigdstport 80", "--ctreplsrc "+m.address(six), "! --ctstate DNAT",
			"--ctproto tcp")
	case 15:
		return "-m mark --mark " + pick(m, "0x40/0x40", "0x40", "0x0/0xff", "0x4000/0x4000")
	case 16:
		return "-m connmark --mark " + pick(m, "0x40/0x40", "0x0", "0x80/0x80")
	case 17:
		return "-m addrtype " + pick(m, "--dst-type LOCAL", "! --dst-type LOCAL", "--src-type LOCAL",
			"--dst-type UNICAST")
	case 18:
		if six {
			return "-m hl " + pick(m, "--hl-eq 64", "--hl-lt 64")
		}
		return pick(m, "-m ttl --ttl-eq 64", "-m ttl --ttl-lt 64", "-m dscp --dscp-class CS1",
			"-m tos --tos 0x10", "-f")
	case 19:
		return pick(m, "-p tcp --syn", "-p tcp --tcp-flags SYN,ACK SYN,ACK", "-p tcp", "-p udp",
			"-m comment --comment x",
			"-m length --length 0:60", "-m pkttype --pkt-type unicast", "-m state --state NEW")
	case 20:
		return "-m iprange " + pick(m, "--src-range ", "--dst-range ") + m.address(six) + "-" + m.address(six)
	}
	return pick(m, "-m limit --limit 1/hour --limit-burst 2", "-m statistic --mode random --probability 0.5",
		"-m statistic --mode nth --every 3", "-m recent --name r --rcheck", "-m hashlimit --hashlimit-above 1/hour "+
			"--hashlimit-mode srcip --hashlimit-name h", "-m rpfilter", "-m socket --transparent")
}

var xtHooks = map[string][]hook{
	"filter": {{"FORWARD", nil, true, true}, {"FORWARD", nil, true, true}, {"INPUT", nil, true, false}, {"OUTPUT",
		nil, false, true}},
	"mangle": {{"PREROUTING", nil, true, false}, {"FORWARD", nil, true, true}, {"POSTROUTING", nil, false, true},
		{"OUTPUT", nil, false, true}},
	"raw": {{"PREROUTING", nil, true, false}, {"OUTPUT", nil, false, true}},
	"nat": {{"PREROUTING", nil, true, false}, {"POSTROUTING", nil, false, true}, {"OUTPUT", nil, false, true}},
}

// xtTarget returns a target of a table, or "" for a jump.
func (m maker) xtTarget(table, chain string, six bool) string {
	verdicts := []string{"DROP", "DROP", "DROP", "ACCEPT", "ACCEPT", "RETURN"}
	switch table {
	case "filter":
		verdicts = append(verdicts, "REJECT", "REJECT")
		if !six {
			verdicts = append(verdicts, "REJECT --reject-with icmp-host-prohibited")
		}
	case "mangle":
		verdicts = append(verdicts, "MARK --set-xmark 0x40/0x40", "MARK --set-mark 0x40", "CONNMARK --set-mark 0x40",
			"CONNMARK --save-mark", "CONNMARK --restore-mark", "DSCP --set-dscp-class CS1", "MARK --or-mark 0x80")
		if six {
			verdicts = append(verdicts, "HL --hl-set 1", "HL --hl-dec 60")
		} else {
			verdicts = append(verdicts, "TTL --ttl-set 1", "TTL --ttl-set 2", "TTL --ttl-inc 3", "TOS --set-tos 0x10")
		}
	case "raw":
		verdicts = append(verdicts, "CT --notrack", "CT --notrack", "NOTRACK", "CT --zone 7")
	case "nat":
		return m.xtNat(chain, six)
	}
	return verdicts[m.IntN(len(verdicts))]
}

func (m maker) xtNat(chain string, six bool) string {
	if chain == "POSTROUTING" {
		return pick(m, "MASQUERADE", "MASQUERADE", "SNAT --to-source "+addressOf("node1", six).String(), "ACCEPT")
	}
	host := addressOf(pick(m, "pod2", "pod3"), six).String()
	if six {
		host = "[" + host + "]"
	}
	return pick(m, fmt.Sprintf("DNAT --to-destination %s:%d", host, stolen),
		fmt.Sprintf("DNAT --to-destination %s:%d", host, served), fmt.Sprintf("REDIRECT --to-ports %d", stolen),
		"ACCEPT")
}

// xtables is a set of rules of iptables of either back end.
func (m maker) xtables() mutation {
	six := m.IntN(3) == 0
	program := pick(m, "iptables", "iptables", "iptables-legacy")
	if six {
		program = strings.Replace(program, "ip", "ip6", 1)
	}
	table := pick(m, "filter", "filter", "filter", "mangle", "mangle", "raw", "nat")
	h := xtHooks[table][m.IntN(len(xtHooks[table]))]
	kind := program + " " + table
	var lines []string
	for range 1 + m.IntN(3) {
		var matches []string
		for range pick(m, 1, 1, 2) {
			matches = append(matches, m.xtMatch(h, six))
		}
		target := m.xtTarget(table, h.name, six)
		if table == "nat" && target != "MASQUERADE" && target != "ACCEPT" {
			matches = append(matches[:1], "-p tcp")
		}
		where := pick(m, "-I", "-I", "-A")
		lines = append(lines, fmt.Sprintf("%s -w -t %s %s %s %s -j %s", program, table, where, h.name,
			strings.Join(matches, " "), target))
	}
	if table == "filter" && h.name == "FORWARD" && m.IntN(3) == 0 {
		kind += " policy DROP"
		lines = append(lines, program+" -w -P FORWARD DROP", program+" -w -A FORWARD "+pick(m,
			"-m conntrack --ctstate RELATED,ESTABLISHED", "-m conntrack --ctstate DNAT",
			"-m connmark --mark 0x40/0x40",
			"-m conntrack --ctdir REPLY")+" -j ACCEPT")
	}
	return mutation{kind, "node1", strings.Join(lines, "\n")}
}

// ipset has rules with sets of addresses.
func (m maker) ipset() mutation {
	script := fmt.Sprintf("ipset create other%d hash:%s\nipset add other%[1]d %[3]s\n", len(m.w.mutations), "net",
		m.network(false))
	dir := pick(m, "src", "dst")
	if m.IntN(3) == 0 {
		script = fmt.Sprintf("ipset create other%d hash:ip,port\nipset add other%[1]d %s,tcp:%s\n",
			len(m.w.mutations),
			m.address(false), pick(m, "80", "8080"))
		dir = pick(m, "src,dst", "dst,dst", "src,src")
	}
	chain := pick(m, "FORWARD", "FORWARD", "INPUT", "OUTPUT")
	return mutation{"ipset", "node1", script + fmt.Sprintf("%s -w -I %s -m set %s--match-set other%d %s -j %s",
		pick(m, "iptables", "iptables-legacy"), chain, pick(m, "", "! "), len(m.w.mutations), dir,
		pick(m, "DROP", "ACCEPT", "REJECT"))}
}
