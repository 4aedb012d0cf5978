package nodetrace

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	rtnl "kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/hooks"
	"kube-proxy/trace"
)

// number returns the value of a sysctl; 0 without one.
func (w *walk) number(path string) int {
	n, _ := strconv.Atoi(w.sysctl(path))
	return n
}

// either returns the larger value of a setting of an interface and of all, as the kernel takes it.
func (w *walk) either(link, name string) int {
	return max(w.number("ipv4/conf/"+link+"/"+name), w.number("ipv4/conf/all/"+name))
}

// conntrackFull reports whether conntrack has no place for a new connection. The kernel makes one
// by evicting connections without a reply, if it finds some; what it did so far is the best guess.
func (w *walk) conntrackFull() (stop, bool) {
	count, most := w.number("netfilter/nf_conntrack_count"), w.number("netfilter/nf_conntrack_max")
	s := stop{verdict: trace.Dropped, stage: "conntrack",
		do: "sysctl -w net.netfilter.nf_conntrack_max=" + strconv.Itoa(2*most),
		by: fmt.Sprintf("the conntrack table is full (%d of %d)", count, most)}
	if most == 0 || count < most {
		return s, false
	}
	dropped, evicted := w.conntrack()
	switch evicts := s.by + ": the kernel evicts connections that have no reply"; {
	case dropped > 0:
		return s, true
	case evicted > 0:
		w.warn("Now %s.", evicts)
	default:
		w.doubt("%s, if it finds some", evicts)
	}
	return s, false
}

// comesIn finds the interface through which the client's packets come in: the one that was asked
// for, that of the client's neighbour entry, or that of the route to the client.
func (w *walk) comesIn() (rtnl.Link, stop) {
	from := w.q.Packet.From.Addr()
	if name := w.q.Packet.In; name != "" {
		l := w.named(name)
		if l.Index == 0 {
			return l, stop{verdict: trace.Dropped, stage: "device",
				by: "interface " + name + " does not exist", do: "ip link"}
		}
		return w.master(l), stop{}
	}
	for _, n := range w.neighbours {
		if n.Addr == from && n.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE|unix.NUD_NOARP) == 0 {
			w.onLink = true
			return w.link(n.Link), stop{}
		}
	}
	r := w.lookup(rtnl.Query{To: from, Proto: byte(w.q.Packet.Proto)})
	uplink := slices.IndexFunc(w.links, w.uplink)
	switch {
	case r.Errno != 0 && !w.q.ClientHere && uplink >= 0: // no route of this node, but perhaps one of a forwarded reply
		in := w.links[uplink]
		w.arrives = fmt.Sprintf("arrives through %s (assumed: see --in)", in.Name)
		return in, stop{}
	case r.Errno != 0:
		s := noRoute(r, from, false, "reply: route")
		s.verdict = trace.Dropped
		return rtnl.Link{}, s
	}
	in := w.link(r.Out)
	w.onLink = !r.Gateway.IsValid()
	if w.q.ClientHere && r.Gateway.IsValid() {
		w.lost = fmt.Sprintf("%s is a pod of this node, but the route to it leads through %s to %s: "+
			"is its interface down?", from, in.Name, r.Gateway)
	}
	w.arrives = fmt.Sprintf("arrives through %s, as the route back leads there (assumed: see --in)", in.Name)
	return in, stop{}
}

// uplink reports whether other machines may send through an interface: it has a subnet of either
// family, and is no bridge.
func (w *walk) uplink(l rtnl.Link) bool {
	if l.Index == rtnl.Loopback || l.Kind == "bridge" || down(l).by != "" {
		return false
	}
	return slices.ContainsFunc(w.all(false), func(a rtnl.Address) bool {
		return a.Index == l.Index && !netip.PrefixFrom(a.Addr, a.Bits).IsSingleIP()
	})
}

// all are the addresses of the node, in the order of the kernel: those that other machines may
// know, or those of IPv6 that interfaces have for their own links.
func (w *walk) all(linkLocal bool) []rtnl.Address {
	all, err := w.addresses()
	if err != nil && w.err == nil {
		w.err = err
	}
	return slices.DeleteFunc(slices.Clone(all), func(a rtnl.Address) bool {
		return (a.Addr.Is6() && a.Addr.IsLinkLocalUnicast()) != linkLocal
	})
}

// linkLocal is the address of IPv6 that an interface has for its own link; invalid without one.
func (w *walk) linkLocal(l rtnl.Link) netip.Addr {
	for _, a := range w.all(true) {
		if a.Index == l.Index {
			return a.Addr
		}
	}
	return netip.Addr{}
}

// addressesOf are those of an interface, in the packet's family.
func (w *walk) addressesOf(l rtnl.Link) []rtnl.Address {
	return slices.DeleteFunc(w.all(false), func(a rtnl.Address) bool {
		return a.Index != l.Index || a.Addr.Is6() != w.q.Packet.To.Addr().Is6()
	})
}

// master returns the bridge of a port, whose name IP rules see; else the interface.
func (w *walk) master(l rtnl.Link) rtnl.Link {
	if m := w.link(l.Master); l.Master != 0 && m.Kind == "bridge" {
		return m
	}
	return l
}

// down reports an interface that cannot carry packets.
func down(l rtnl.Link) stop {
	switch s := (stop{verdict: trace.Dropped, stage: "device", do: "ip link set " + l.Name + " up"}); {
	case l.Flags&unix.IFF_UP == 0:
		s.by = "interface " + l.Name + " is down"
		return s
	case l.Flags&unix.IFF_RUNNING == 0:
		s.by, s.do = "interface "+l.Name+" has no carrier", "ip link show "+l.Name
		return s
	}
	return stop{}
}

// withoutIPv6 reports an interface on which the kernel drops packets of IPv6.
func (w *walk) withoutIPv6(y way, l rtnl.Link) stop {
	path := "ipv6/conf/" + l.Name + "/disable_ipv6"
	if !y.To.Addr().Is6() || w.number(path) == 0 {
		return stop{}
	}
	return stop{verdict: trace.Dropped, stage: y.stage("device"), by: "net." + dots(path) + "=1",
		do: "sysctl -w net." + dots(path) + "=0"}
}

// untranslated reports a packet to a Service that leaves for the Service's own address.
func (w *walk) untranslated(y way) stop {
	if y.reply || y.backend.IsValid() || w.q.Table.Verdict != trace.Balance {
		return stop{}
	}
	return w.notTranslated(y)
}

// notTranslated says that a packet keeps the address of the Service.
func (w *walk) notTranslated(y way) stop {
	s := stop{verdict: trace.Dropped, stage: "prerouting", by: fmt.Sprintf("the packet to %s is not translated", y.To),
		do: "kube-proxy diff"}
	if w.own() {
		s.stage = "output"
	}
	if y.Flow.State == hooks.Untracked {
		s.by += ": a rule takes it out of conntrack (notrack)"
		s.do = "nft list ruleset | grep notrack; iptables -t raw -S"
		if y.untrackedBy != nil {
			s.by += ": " + y.untrackedBy.String()
		}
	}
	return s
}

// undeliverable reports a packet that the outgoing interface or its neighbour does not take.
func (w *walk) undeliverable(y *way, r rtnl.Route, out rtnl.Link) stop {
	s := down(out)
	next := y.To.Addr()
	if r.Gateway.IsValid() {
		next = r.Gateway
	}
	if on := w.q.OnNode; s.by == "" && on != nil && !y.reply &&
		y.backend.IsValid() && r.Gateway.IsValid() && on(y.backend) {
		s = stop{verdict: trace.Dropped, stage: "route", do: "ip route; ip link: is the interface of the pod down?",
			by: fmt.Sprintf("endpoint %s is on this node, but its route leads through %s to %s",
				y.backend, out.Name, r.Gateway)}
		back := y.query()
		back.From, back.FromPort, back.In = y.From.Addr(), y.From.Port(), out.Index
		if r := w.lookup(back); r.Errno == 0 && !(r.Out == out.Index && r.Gateway.IsValid()) {
			y.doubtful("whether %s sends the packet back here, where it has a route to the endpoint", next)
		}
		if k := w.q.Kernel; k != nil && k.Connected { // nothing translates it, so that its errors reach the client
			y.doubtful("whether %s refuses the packet, or sends it back here until its TTL ends", r.Gateway)
		}
	}
	if s.by == "" {
		s = w.bridged(y, out, next)
	}
	if silent := out.Flags&unix.IFF_NOARP != 0 && out.Kind == "veth"; silent && s.by == "" &&
		!slices.ContainsFunc(w.neighbours, func(n rtnl.Neighbour) bool {
			return n.Link == out.Index && n.Addr == next && n.State&unix.NUD_PERMANENT != 0
		}) {
		s = stop{verdict: trace.Dropped, stage: "neighbour", do: "ip link set " + out.Name + " arp on",
			by: fmt.Sprintf("interface %s has ARP off, and no entry for %s", out.Name, next)}
	}
	for _, n := range w.neighbours {
		if n.Link != out.Index || n.Addr != next || s.by != "" {
			continue
		}
		state := ""
		switch {
		case n.State&unix.NUD_FAILED != 0:
			state = "FAILED"
		case n.State&unix.NUD_INCOMPLETE != 0:
			state = "INCOMPLETE"
			if w.local(y.From.Addr()).IsValid() && !y.reply {
				y.doubtful("whether the error that %s is not reached comes before the client gives up", next)
			}
		default:
			continue
		}
		s = stop{verdict: trace.Dropped, stage: "neighbour",
			by: fmt.Sprintf("neighbour %s on %s is %s: it did not answer when last asked", next, out.Name, state),
			do: fmt.Sprintf("ip neigh show %s dev %s; is that machine or pod up?", next, out.Name)}
	}
	if s.by != "" {
		s.stage = y.stage(s.stage)
	}
	return s
}

// guessed notes that the kernel chooses among the next hops of a route by a hash of the packet, and
// that another one than r may be up or down.
func (w *walk) guessed(y *way, q rtnl.Query, r rtnl.Route) {
	n, err := w.hops(q)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("count the next hops to %s: %w", q.To, err)
	}
	if n < 2 {
		return
	}
	what := fmt.Sprintf("of %d next hops to %s, the one %s is followed: a guess, because the kernel chooses by a "+
		"hash of the connection", n, q.To, routeText(r, w.link(r.Out)))
	w.warn("%s.", strings.ToUpper(what[:1])+what[1:])
	y.doubts = append(slices.Clip(y.doubts), doubt{verdict: trace.Delivered, what: what})
}

// otherRouter warns of a request that a policy rule leads to another router than other packets to
// the backend: this node does not know where that leads.
func (w *walk) otherRouter(y way, r rtnl.Route) {
	q := y.query()
	q.Mark = 0
	usual := w.lookup(q)
	if y.reply || !r.Gateway.IsValid() || usual.Out == r.Out && usual.Gateway == r.Gateway {
		return
	}
	w.warn("A policy rule leads this packet %s, and others to %s %s: that the router passes it on is assumed.",
		routeText(r, w.link(r.Out)), y.To.Addr(), routeText(usual, w.link(usual.Out)))
}

// compareMTU warns of packets that arrive and are too large to leave.
func (w *walk) compareMTU(in, out rtnl.Link, r rtnl.Route) {
	mtu := out.MTU
	if r.MTU != 0 {
		mtu = min(mtu, r.MTU)
	}
	if in.MTU > mtu && mtu != 0 {
		w.warn("Packets of more than %d bytes do not fit from %s (MTU %d) to %s (MTU %d): "+
			"if ICMP is filtered, large transfers hang.", mtu, in.Name, in.MTU, out.Name, mtu)
	}
}

// directBridge notes that pods of one bridge may reply past the node's IP stack.
func (w *walk) directBridge(y way, reply *way, bridge rtnl.Link) {
	name := w.bridgeCalls(y.To.Addr())
	translated := y.backend.IsValid() && y.To != y.asked.To && !y.masq
	within := bridge.Kind == "bridge" && len(w.in) > 0 && w.in[0] == bridge.Index && !w.own()
	if translated && within && w.number("bridge/"+name) == 0 {
		reply.doubtful("replies between ports of bridge %s: if the pods have a route to each other there, they pass "+
			"untranslated, because net.bridge.%s is not 1 (nor the bridge's %s)", bridge.Name, name,
			strings.NewReplacer("bridge-", "", "-", "_").Replace(name))
	}
}

// past notes that a packet between ports of one bridge need not meet the node's IP stack, if it is
// not translated. The bridge itself stops it if both ports are isolated.
func (w *walk) past(y *way, bridge rtnl.Link) {
	sent, calls := y.To, w.bridgeCalls(y.To.Addr())
	if y.reply {
		sent = y.From
	}
	if bridge.Kind != "bridge" || sent != y.asked.To || w.number("bridge/"+calls) != 0 {
		return
	}
	r := w.lookup(rtnl.Query{To: y.To.Addr(), Proto: byte(y.Proto)})
	local := w.q.OnNode != nil && w.q.OnNode(y.To) // a pod of this node needs no route of it
	if !local && (r.Out != bridge.Index || r.Gateway.IsValid()) {
		return
	}
	d := doubt{verdict: trace.Delivered, what: fmt.Sprintf("packets between ports of bridge %s: if the pods have a "+
		"route to each other there, they do not meet this node's rules and routes, because net.bridge.%s is not 1",
		bridge.Name, calls)}
	from, known := w.behind(bridge, y.From.Addr())
	to, also := w.behind(bridge, y.To.Addr())
	if known && also && from.Isolated && to.Isolated {
		d.verdict = ""
	}
	y.doubts = append(slices.Clip(y.doubts), d)
}

// bridgeCalls is the sysctl below net.bridge by which frames between ports meet the rules of IP.
func (w *walk) bridgeCalls(a netip.Addr) string {
	if a.Is6() {
		return "bridge-nf-call-ip6tables"
	}
	return "bridge-nf-call-iptables"
}

// answersARP warns where the node answers ARP for an address that another machine may announce, or
// answers no request. With arp_ignore 1 and 2 it answers for the addresses of the interface alone.
func (w *walk) answersARP(in rtnl.Link) {
	f, to := w.q.Table.Frontend, w.q.Packet.To.Addr()
	if !to.Is4() || in.Flags&unix.IFF_NOARP != 0 || in.Name == "lo" {
		return
	}
	switch ignore := w.either(in.Name, "arp_ignore"); {
	case ignore == 8:
		w.warn("This node answers no ARP request on %s (arp_ignore=8): its neighbours cannot send to it.", in.Name)
	case ignore == 1 || ignore == 2 || f == nil || !w.q.Mode.Holds ||
		f.Kind != lb.LoadBalancer && f.Kind != lb.ExternalIP:
	default:
		w.warn("This node answers ARP for %s on %s (arp_ignore=%d), and takes traffic of the node that announces the "+
			"address: see --ipvs-strict-arp.", to, in.Name, ignore)
	}
}

// refused says why the kernel does not route a packet that came in; the zero stop if it does.
func (w *walk) refused(r rtnl.Route, y way, in rtnl.Link) stop {
	s := stop{verdict: trace.Dropped, stage: y.stage("route")}
	to, from := y.To.Addr(), y.From.Addr()
	set := func(path, value string) stop {
		s.by = fmt.Sprintf("net.%s=%s", dots(path), w.sysctl(path))
		s.do = fmt.Sprintf("sysctl -w net.%s=%s", dots(path), value)
		return s
	}
	switch {
	case to.Is6():
		if r.Errno == 0 && !r.Here() && w.sysctl("ipv6/conf/all/forwarding") == "0" &&
			w.number("ipv6/conf/"+in.Name+"/force_forwarding") == 0 { // Linux 6.17
			return set("ipv6/conf/all/forwarding", "1")
		}
		return noRoute(r, to, true, s.stage)
	case r.Errno == 0 && (r.Type == unix.RTN_UNICAST || r.Here()):
		return stop{}
	case r.Errno == 0:
		s.by = fmt.Sprintf("the route to %s is of type %d, which is not forwarded", to, r.Type)
		return s
	case (to.IsLoopback() || from.IsLoopback()) && in.Name != "lo" && w.either(in.Name, "route_localnet") == 0:
		return set("ipv4/conf/"+in.Name+"/route_localnet", "1")
	case r.Errno == unix.EHOSTUNREACH && w.sysctl("ipv4/conf/"+in.Name+"/forwarding") == "0":
		if w.sysctl("ipv4/ip_forward") == "0" {
			return set("ipv4/ip_forward", "1")
		}
		return set("ipv4/conf/"+in.Name+"/forwarding", "1")
	case r.Errno == unix.EXDEV || r.Errno == unix.EINVAL:
		return w.badSource(s, r, y, in)
	}
	return noRoute(r, to, true, s.stage)
}

// badSource says why the kernel refuses the source of a packet that came in through an interface.
func (w *walk) badSource(s stop, r rtnl.Route, y way, in rtnl.Link) stop {
	from := y.From.Addr()
	query := rtnl.Query{To: from}
	if w.either(in.Name, "src_valid_mark") != 0 {
		query.Mark = y.Mark
	}
	back := w.lookup(query)
	filter := w.either(in.Name, "rp_filter")
	s.do = fmt.Sprintf("ip route get %s; or sysctl -w net.ipv4.conf.%s.rp_filter=2", from, in.Name)
	switch {
	case back.Here():
		s.by = fmt.Sprintf("the source %s is an address of this node, and the packet comes in through %s",
			from, in.Name)
		s.do = "ip address"
	case back.Errno != 0 && filter != 0:
		s.by = fmt.Sprintf("rp_filter=%d of %s: there is no route back to %s", filter, in.Name, from)
		s.do = "ip route get " + from.String()
	case filter == 1 && back.Out != in.Index:
		s.by = fmt.Sprintf("rp_filter=1 (strict) of %s: the route back to %s leads through %s",
			in.Name, from, w.link(back.Out).Name)
	default:
		return noRoute(r, y.To.Addr(), true, s.stage)
	}
	return s
}

// noRoute says what the kernel's refusal of a route means; the zero stop if it did not refuse.
func noRoute(r rtnl.Route, to netip.Addr, forwarded bool, stage string) stop {
	s := stop{verdict: trace.Rejected, stage: stage,
		do: fmt.Sprintf("ip route get %s; ip rule; ip route show table all", to)}
	switch r.Errno {
	case 0:
		return stop{}
	case unix.ENETUNREACH:
		s.by = "there is no route to " + to.String()
	case unix.EHOSTUNREACH:
		s.by = "the route to " + to.String() + " is unreachable"
	case unix.EACCES:
		s.by = "a route or rule prohibits " + to.String()
	case unix.EINVAL:
		s.verdict, s.by = trace.Dropped, "the route to "+to.String()+" is a blackhole"
	default:
		s.by = fmt.Sprintf("the kernel refuses the route to %s: %v", to, r.Errno)
	}
	return s
}

// dots writes the path of a sysctl as sysctl(8) does.
func dots(path string) string { return strings.NewReplacer("/", ".", ".", "/").Replace(path) }

// routeText is a route in words.
func routeText(r rtnl.Route, out rtnl.Link) string {
	if r.Here() {
		return "to this node"
	}
	text := "through " + out.Name
	if r.Gateway.IsValid() {
		text += " to " + r.Gateway.String()
	}
	if r.Table != unix.RT_TABLE_MAIN && r.Table != unix.RT_TABLE_LOCAL && r.Table != 0 {
		text += fmt.Sprintf(" (table %d)", r.Table)
	}
	return text
}
