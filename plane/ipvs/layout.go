package ipvs

import (
	"net/netip"
	"slices"
	"time"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
)

// layout renders frontends. It has no side effects and contains the facts about the node.
type layout struct {
	family    lb.Family
	scheduler string
	// sticky is the scheduler of virtual servers by mark with session affinity.
	sticky string
	mark   marks
}

// wireFamily returns Linux's number of the family.
func wireFamily(f lb.Family) ipvs.Family {
	if f == lb.IPv6 {
		return ipvs.IPv6
	}
	return ipvs.IPv4
}

// serviceOf returns the name of the virtual server of a key with an address.
func serviceOf(k lb.Key) ipvs.ServiceID {
	return ipvs.ByAddr(netip.AddrPortFrom(k.Addr, k.Port), uint8(k.Proto))
}

// keyOf returns the key of a virtual server named by an address.
func keyOf(id ipvs.ServiceID) lb.Key {
	return lb.Key{Addr: id.Addr.Addr(), Port: id.Addr.Port(), Proto: lb.Proto(id.Proto)}
}

// portFTP is the kernel's FTPPORT. Persistent virtual servers of that port take data connections
// too.
const portFTP = 21

// service returns the virtual server with that name.
func (l *layout) service(id ipvs.ServiceID, affinity uint32) ipvs.Service {
	s := ipvs.Service{ServiceID: id, Scheduler: l.scheduler, Flags: schedulerFlags(l.scheduler),
		Netmask: id.Family.WholeAddress()}
	switch {
	case affinity == 0:
	case id.Mark == 0 && id.Proto == uint8(lb.TCP) && id.Addr.Port() == portFTP:
		// A persistent one would take all ports of its address from 1024 on without a virtual
		// server.
		s.Scheduler, s.Flags = l.sticky, stickyFlags
	default:
		s.Flags |= ipvs.Persistent
		s.Timeout = affinity
	}
	return s
}

// bindingOf returns how kube-ipvs0 has the address of a frontend. If the address is one of the
// frontend's own endpoints, it stays there.
func bindingOf(row *lb.Frontend) binding {
	switch {
	case row.Key.IsNodePort():
		return unbound
	case row.Kind == lb.ClusterIP:
		return bound
	case slices.ContainsFunc(row.Routes, func(r lb.Route) bool {
		return r.To != nil && r.To.Backends.HasAddr(row.Key.Addr)
	}):
		return unbound
	}
	return provisional
}

// byMark returns a virtual server by mark. The kernel translates no port for persistent ones, so
// the hash of the address provides session affinity.
func (l *layout) byMark(id ipvs.ServiceID, sticky bool) ipvs.Service {
	s := l.service(id, 0)
	if sticky {
		s.Scheduler, s.Flags = l.sticky, stickyFlags
	}
	return s
}

// routeOf returns the frontend's own route for an origin, or nil.
func routeOf(row *lb.Frontend, from lb.From) *lb.Route {
	for i := range row.Routes {
		if row.Routes[i].From == from {
			return &row.Routes[i]
		}
	}
	return nil
}

// front returns the kernel's objects for a key with an address; row is the frontend of the key or
// of its NodePort.
func (l *layout) front(k lb.Key, row *lb.Frontend) front {
	affinity := uint32(row.Affinity / time.Second)
	base := routeOf(row, lb.Anywhere)
	f := front{service: l.service(serviceOf(k), affinity), set: setOf(base), serving: row.Serving, bind: bindingOf(row)}
	at := member{addr: k.Addr, port: k.Port, proto: k.Proto}
	in := func(s set, from ...netip.Prefix) member {
		m := at
		m.set = s
		if len(from) > 0 {
			m.from = from[0]
		}
		return m
	}

	if s, ok := named(row, true); ok {
		f.members = append(f.members, in(s))
	}
	if len(row.Sources) > 0 {
		f.members = append(f.members, in(setFirewall))
		for _, p := range row.Sources {
			for _, net := range ipset.Nets(p) {
				f.members = append(f.members, in(setSourceCIDR, net))
			}
		}
		// The node's own packets to an address that it holds have that address as source; policy
		// decides about them (SV-16).
		if lb.Within(row.Sources, k.Addr) {
			f.members = append(f.members, in(setSourceIP, netip.PrefixFrom(k.Addr, k.Addr.BitLen())))
		}
	}

	if m, ok := l.asks(base); ok {
		f.marks = append(f.marks, marked{member: in(setMarksAnywhere), mark: m})
	}
	host, pods := routeOf(row, lb.Host), routeOf(row, lb.Pods)
	for _, o := range []struct {
		set set
		own *lb.Route
		// needless: without a member of the set, packets get the same treatment.
		needless bool
	}{
		{setMarksPods, pods, pods != nil && host == nil && same(pods, base)},
		{setMarksHost, host, host != nil && same(host, base)},
	} {
		if o.own == nil || o.needless {
			continue
		}
		m := marked{member: in(o.set)}
		if elsewhere(o.own, base) {
			m.to, m.serving = setOf(o.own), row.Serving
			// The node's own packets have the service address as source; another node could not
			// reply to that.
			m.other = &other{masq: o.own.Masq || o.set == setMarksHost && m.to != nil}
			if m.to != nil {
				m.other.set, m.other.sticky = m.to.ID, affinity > 0
			}
		} else {
			m.mark, _ = l.asks(o.own)
		}
		f.marks = append(f.marks, m)
	}
	return f
}

// setOf returns the set that a route balances over.
func setOf(r *lb.Route) *lb.BackendSet {
	if r.Do != lb.Balance {
		return nil
	}
	return r.To
}

// asks returns the mark of packets that go to the virtual server of their address, or are dropped;
// ok is false without one.
func (l *layout) asks(r *lb.Route) (m mark, ok bool) {
	switch {
	case r.Do == lb.Drop:
		return mark{l.mark.drop(), wholeMark}, true
	case r.Do == lb.Balance && r.Masq:
		return mark{l.mark.masq, l.mark.masq}, true
	}
	return mark{}, false
}

// elsewhere reports whether packets of route r need a different virtual server from that of their
// address, which is made for base. If base drops, that one has no real servers and rejects.
func elsewhere(r, base *lb.Route) bool {
	switch {
	case r.Do == lb.Drop:
		return false
	case r.Do == lb.Reject:
		return base.Do == lb.Balance
	}
	return base.Do != lb.Balance || r.To.ID != base.To.ID
}

// same reports whether two routes do the same, for any origin.
func same(a, b *lb.Route) bool {
	return a.Do == b.Do && a.Masq == b.Masq && (a.Do != lb.Balance || a.To.ID == b.To.ID)
}

// named returns the set of DP-32 for the frontend. SCTP NodePorts are in a set by address, others
// by port.
func named(row *lb.Frontend, byAddress bool) (s set, ok bool) {
	base := routeOf(row, lb.Anywhere)
	local := base.Do == lb.Drop || base.Do == lb.Balance && base.To.ID.Scope == lb.Local
	pick := func(all, onlyLocal set) set {
		if local {
			return onlyLocal
		}
		return all
	}
	switch row.Kind {
	case lb.ExternalIP:
		s = pick(setExternalIP, setExternalIPLocal)
	case lb.LoadBalancer:
		s = pick(setLoadBalancer, setLoadBalancerLocal)
	case lb.NodePort:
		switch row.Key.Proto {
		case lb.TCP:
			s = pick(setNodePortTCP, setNodePortLocalTCP)
		case lb.UDP:
			s = pick(setNodePortUDP, setNodePortLocalUDP)
		default:
			s = pick(setNodePortSCTP, setNodePortLocalSCTP)
		}
	default:
		s = setClusterIP
	}
	return s, (s.typ() != ipset.BitmapPort) == byAddress
}

// members returns the members that a frontend has once, for all its addresses.
func (l *layout) members(row *lb.Frontend) (all []member) {
	if row.Accepts() {
		if row.Kind == lb.HealthCheck {
			all = append(all, member{set: setHealthCheck, port: row.Key.Port})
		}
		return all
	}
	if s, ok := named(row, false); ok {
		all = append(all, member{set: s, port: row.Key.Port})
	}
	for i, r := range row.Routes {
		if r.Do != lb.Balance || slices.ContainsFunc(row.Routes[:i], func(o lb.Route) bool { return o.To == r.To }) {
			continue
		}
		for b := range r.To.Backends.All() {
			if b.Local || b.Unplaced { // it may be its own client (SV-60, TN-68)
				a := b.Addr.Addr()
				all = append(all, member{setLoopBack, a, b.Addr.Port(), row.Key.Proto, netip.PrefixFrom(a, a.BitLen())})
			}
		}
	}
	return all
}
