package main

import (
	"fmt"
	"net/netip"
	"strings"
)

func prefix(addr string, bits int) string {
	return netip.PrefixFrom(netip.MustParseAddr(addr), bits).Masked().String()
}

// mutation chooses one of all kinds.
func (m maker) mutation() mutation {
	makers := []func() mutation{
		m.nftFilter, m.nftFilter, m.nftFilter, m.nftFilter, m.nftFilter, m.nftSets, m.nftSets, m.nftNat, m.nftNat,
		m.nftNat,
		m.netdev, m.connmark, m.connmark, m.xtables, m.xtables, m.xtables, m.xtables, m.xtables, m.xtables, m.ipset,
		m.route, m.route, m.rule, m.rule, m.rule, m.sysctl, m.sysctl, m.uplink, m.uplink, m.behind,
		m.neighbour, m.device1, m.xfrm, m.pod, m.tc, m.flowtable,
	}
	if m.w.bridge {
		makers = append(makers, m.port, m.port, m.port, m.port)
	}
	return makers[m.IntN(len(makers))]()
}

func ip(six bool) string {
	if six {
		return "ip -6"
	}
	return "ip"
}

// host is an address as a destination of a route.
func host(addr string) string {
	if strings.Contains(addr, ":") {
		return addr + "/128"
	}
	return addr + "/32"
}

// route changes the main table. It leads to no router that drops packets: no node can know of one.
func (m maker) route() mutation {
	six := m.IntN(3) == 0
	to := addressOf(pick(m, "pod1", "pod2", "pod3", "pod4", "client"), six).String()
	other := pick(m, "vethpod1", "vethpod3", "eth0")
	if m.w.bridge {
		other = pick(m, "cbr0", "eth0")
	}
	do := pick(m,
		fmt.Sprintf("%s route replace blackhole %s", ip(six), host(to)),
		fmt.Sprintf("%s route replace unreachable %s", ip(six), host(to)),
		fmt.Sprintf("%s route replace prohibit %s", ip(six), host(to)),
		fmt.Sprintf("%s route replace %s dev %s", ip(six), host(to), other),
		fmt.Sprintf("%s route replace %s via %s", ip(six), host(to), addressOf("node2", six)),
		fmt.Sprintf("%s route replace %s via %s", ip(six), host(to), addressOf("node2", six)),
		ip(six)+" route del default",
		fmt.Sprintf("%s route add blackhole %s metric 4000", ip(six), host(to)),
		fmt.Sprintf("%s route add throw %s table 99; %[1]s rule add prio 60 lookup 99", ip(six), host(to)))
	if six {
		// A route of another type is added beside the present one in IPv6, and the old one stays.
		do = strings.Replace(do, "route replace", "route flush "+host(to)+" 2>/dev/null; ip -6 route add", 1)
	}
	return mutation{"route", "node1", do}
}

// rule adds a policy rule whose table leads nowhere, or elsewhere.
func (m maker) rule() mutation {
	six := m.IntN(3) == 0
	a := m.network(six)
	dev := m.device()
	match := pick(m, "from "+a, "from "+a, "to "+a, "iif "+dev, "from "+a+" iif "+dev, "fwmark 0x40/0x40",
		"fwmark 0x80",
		"ipproto tcp dport 8080", "ipproto tcp sport 8080", "ipproto tcp dport 80", "sport 20000-23999",
		"not from "+a,
		"ipproto udp", "from "+a+" ipproto tcp", "to "+a+" ipproto tcp dport 8000-9000", "iif lo", "tos 0x10",
		"uidrange 0-0")
	table := pick(m, "blackhole", "unreachable", "prohibit", "table", "table", "main", "suppress")
	prio := pick(m, 50, 100, 32000)
	switch table {
	case "table":
		route := pick(m, "blackhole default", "prohibit default", "unreachable default", "throw default",
			"default via "+addressOf("node2", six).String()+" dev eth0 metric 5", "default via "+addressOf("node2",
				six).String()+" dev eth0",
			"blackhole "+host(addressOf("pod2", six).String()))
		return mutation{"ip rule", "node1",
			fmt.Sprintf("%[1]s route add %[2]s table 77\n%[1]s rule add %[3]s table 77 prio %[4]d", ip(six),
				route, match, prio)}
	case "main":
		return mutation{"ip rule", "node1", fmt.Sprintf("%s rule add %s lookup main prio %d", ip(six), match, prio)}
	case "suppress":
		return mutation{"ip rule", "node1",
			fmt.Sprintf("%s rule add %s lookup main suppress_prefixlength %d prio %d", ip(six), match,
				pick(m, 0, 24, 32), prio)}
	}
	return mutation{"ip rule", "node1", fmt.Sprintf("%s rule add %s %s prio %d", ip(six), match, table, prio)}
}

// sysctl changes settings that decide about packets.
func (m maker) sysctl() mutation {
	dev := m.device()
	setting := pick(m, "net/ipv4/ip_forward=0", "net/ipv6/conf/all/forwarding=0", "net/ipv4/conf/"+dev+
		"/forwarding=0",
		"net/ipv4/conf/all/rp_filter=1", "net/ipv4/conf/"+dev+"/rp_filter=1", "net/ipv4/conf/all/rp_filter=2",
		"net/ipv4/conf/"+dev+"/accept_local=1", "net/ipv4/conf/all/route_localnet=0",
		"net/ipv4/conf/all/route_localnet=1",
		"net/ipv4/conf/all/arp_ignore=8", "net/ipv6/conf/"+dev+"/disable_ipv6=1", "net/ipv4/conf/all/arp_filter=1",
		"net/netfilter/nf_conntrack_tcp_be_liberal=1", "net/netfilter/nf_conntrack_tcp_loose=0",
		"net/ipv6/conf/"+dev+"/forwarding=0", "net/ipv4/conf/"+dev+"/rp_filter=1", "net/ipv4/ip_early_demux=0",
		"net/ipv4/conf/all/src_valid_mark=1", "net/ipv4/ip_default_ttl=2", "net/ipv4/conf/"+dev+"/disable_policy=1")
	if m.w.bridge && m.IntN(2) == 0 {
		setting = pick(m, "net/bridge/bridge-nf-call-iptables=1", "net/bridge/bridge-nf-call-ip6tables=1")
	}
	name, value, _ := strings.Cut(setting, "=")
	return mutation{"sysctl " + name[strings.LastIndex(name, "/")+1:], "node1",
		fmt.Sprintf("echo %s >/proc/sys/%s", value, name)}
}

// uplink adds a second uplink to the client, and maybe routes by it.
func (m maker) uplink() mutation {
	do := "ip link add eth1 type veth peer name eth1 netns $CLIENT\nip link set eth1 up\n" +
		"ip addr add " + secondNode[0] + "/24 dev eth1\nip addr add " + secondNode[1] + "/64 dev eth1 nodad\n" +
		"nsenter --net=$CLIENT sh -ec '\nip link set eth1 up\nip addr add " + secondClient[0] + "/24 dev eth1\n" +
		"ip addr add " + secondClient[1] + "/64 dev eth1 nodad'\n"
	client := addressOf("client", false).String()
	do += pick(m, "true",
		"ip route replace "+client+"/32 via "+secondClient[0]+" dev eth1",
		"ip route replace "+client+"/32 via "+secondClient[0]+
			" dev eth1\necho 1 >/proc/sys/net/ipv4/conf/eth0/rp_filter",
		"ip route replace "+client+"/32 nexthop via "+secondClient[0]+" dev eth1 nexthop dev eth0",
		"ip route add default via "+secondClient[0]+" dev eth1 table 90\nip rule add from "+secondNode[0]+
			" table 90 prio 40",
		"ip route add default via "+secondClient[0]+
			" dev eth1 table 90\nip rule add from 10.1.1.0/24 table 90 prio 40",
		"echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter",
		"echo 2 >/proc/sys/net/ipv4/conf/all/rp_filter",
		"ip route replace default via "+secondClient[0]+" dev eth1")
	// Connections by it.
	for i := range m.w.queries {
		q := &m.w.queries[i]
		if q.from == "client" && m.IntN(2) == 0 {
			six := q.to.Addr().Is6()
			if q.to.Addr() == addressOf("node1", six) && m.IntN(2) == 0 {
				q.to = netip.AddrPortFrom(netip.MustParseAddr(secondNode[index(six)]), q.to.Port())
			}
			q.as = secondClient[index(six)]
		}
	}
	return mutation{"second uplink", "node1", do}
}

func index(six bool) int {
	if six {
		return 1
	}
	return 0
}

// behind adds a network behind the client. The node has a route to it: whether another router
// leads there, no node can know.
func (m maker) behind() mutation {
	for i := range m.w.queries {
		q := &m.w.queries[i]
		if q.from == "client" && m.IntN(2) == 0 {
			q.as = behindClient[index(q.to.Addr().Is6())]
		}
	}
	return mutation{"client behind a router", "node1", "nsenter --net=$CLIENT sh -ec 'ip addr add " +
		behindClient[0] + "/32 dev lo\n" +
		"ip addr add " + behindClient[1] + "/128 dev lo nodad'\n" +
		"ip route add " + behindClient[0] + "/32 via 172.18.0.100\n" +
		"ip -6 route add " + behindClient[1] + "/128 via fd00:18::100\n" +
		pick(m, "true", "true", "echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter",
			"echo 2 >/proc/sys/net/ipv4/conf/all/rp_filter")}
}

// neighbour takes away entries of ARP and ND. Whether an entry is right, a node cannot know.
func (m maker) neighbour() mutation {
	six := m.IntN(3) == 0
	pod := pick(m, "pod1", "pod2", "pod3")
	dev := "veth" + pod
	if m.w.bridge {
		dev = "cbr0"
	}
	to := addressOf(pod, six).String()
	if m.IntN(3) == 0 {
		to, dev = addressOf(pick(m, "client", "node2"), six).String(), "eth0"
	}
	return mutation{"neighbour", "node1", pick(m,
		fmt.Sprintf("ip neigh del %s dev %s", to, dev),
		fmt.Sprintf("ip neigh replace %s nud incomplete dev %s", to, dev),
		fmt.Sprintf("ip neigh replace %s nud failed dev %s", to, dev))}
}

// device1 takes a device down, or makes its packets small.
func (m maker) device1() mutation {
	dev := pick(m, "vethpod1", "vethpod2", "vethpod3")
	return mutation{"device", "node1", pick(m, "ip link set "+dev+" down", "ip link set "+dev+" mtu 1280",
		"ip link set "+dev+" txqueuelen 10",
		"ip link add br-other type bridge; ip link set br-other up; ip link set "+dev+" master br-other")}
}

// xfrm adds policies of IPsec.
func (m maker) xfrm() mutation {
	dir := pick(m, "in", "fwd", "out")
	side := pick(m, "src ", "dst ") + m.network(m.IntN(3) == 0)
	return mutation{"xfrm " + dir, "node1", "ip xfrm policy add " + side + " " + pick(m, "", "",
		"proto tcp dport 8080", "proto tcp") +
		" dir " + dir + " " + pick(m, "action block", "action block", "tmpl proto esp mode transport",
		"tmpl proto esp mode transport level use", "action allow")}
}

// pod makes a pod drop what arrives.
func (m maker) pod() mutation {
	return mutation{"pod drops", pick(m, "pod1", "pod2", "pod3"),
		nftScript("table inet f { chain c { type filter hook input priority 0; " +
			"meta l4proto { tcp, udp } th dport 8080 drop; }; }")}
}

// tc filters outside the packet filter.
func (m maker) tc() mutation {
	dev := pick(m, "vethpod1", "vethpod2", "eth0")
	return mutation{"tc", "node1", "tc qdisc add dev " + dev + " clsact\ntc filter add dev " + dev + " " + pick(m,
		"ingress", "egress") +
		" protocol ip u32 match ip " + pick(m, "dport 80 0xffff", "sport 8080 0xffff", "dst 10.1.0.0/16") +
		" action " +
		pick(m, "drop", "pass")}
}

// flowtable offloads connections.
func (m maker) flowtable() mutation {
	devices := "eth0, vethpod1, vethpod2"
	return mutation{"flowtable", "node1",
		nftScript(fmt.Sprintf("table inet %s {\n  flowtable f { hook ingress priority 0; devices = { %s }; }\n"+
			"  chain c { type filter hook forward priority 0; meta l4proto { tcp, udp } flow add @f; %s }\n}",
			m.table(), devices,
			pick(m, "", "ct state established drop;", "ct direction reply accept; ct state new accept; drop;")))}
}

// port changes a port of the bridge.
func (m maker) port() mutation {
	dev := pick(m, "vethpod1", "vethpod2", "vethpod3")
	mac := "02:6b:70:03:06:00"
	return mutation{"bridge port", "node1", pick(m,
		"ip link set "+dev+" down", "bridge link set dev "+dev+" isolated on",
		"bridge link set dev vethpod1 isolated on; bridge link set dev vethpod2 isolated on",
		"bridge link set dev "+dev+" hairpin off", "bridge link set dev vethpod1 hairpin off; "+
			"bridge link set dev vethpod2 hairpin off; bridge link set dev vethpod3 hairpin off",
		"bridge link set dev "+dev+" state 0", "bridge link set dev "+dev+" state 4", "ip link set "+dev+" nomaster",
		"bridge link set dev "+dev+" learning off flood off",
		"bridge fdb replace "+mac+" dev vethpod1 master static",
		"ip link set cbr0 type bridge vlan_filtering 1; bridge vlan del dev "+dev+" vid 1",
		"ip link set cbr0 down", "ip addr flush dev cbr0")}
}
