package hns

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/trace"
)

// TracePacket implements mode.Tracer. It lists HNS and returns the load balancer that receives the
// packet, according to the HNS documentation (docs/adr/0043). HNS rejects nothing and does not
// report affinities.
func (p *Plane) TracePacket(ctx context.Context, packet trace.Packet, _ mode.Walk) (trace.Kernel, error) {
	var node lb.Node
	if s := p.shown.Load(); s != nil {
		node = s.node
	}
	pic, err := p.read(ctx, node)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("hns: follow a packet to %s: %w", packet.To, err)
	}
	return pic.follow(packet), nil
}

// follow traces a packet.
func (pic *picture) follow(packet trace.Packet) trace.Kernel {
	l, mapping, onNode := pic.taker(packet)
	if l == nil {
		return trace.Kernel{Verdict: trace.Pass, Way: []string{fmt.Sprintf("no load balancer has %s/%s", packet.To,
			packet.Proto)}}
	}
	k := trace.Kernel{Verdict: trace.Pass, Way: []string{pic.describe(l)}}
	local, behind := mapping.Flags&MappingLocalRoutedVIP != 0, pic.behind(packet.From.Addr())
	outside := !packet.Host && !behind
	switch {
	case (packet.Host || behind) && !local && onNode:
		k.Way = append(k.Way, "it does not accept packets of the node and its pods to the node's addresses (no "+
			"LocalRoutedVIP)")
		return k
	case outside && mapping.Flags&MappingILB != 0:
		k.Way = append(k.Way, "it accepts only packets of this node's pods (ILB)")
		return k
	}
	k.Verdict = trace.Drop
	if behind && !pic.reachable(packet.To.Addr()) {
		k.Way = append(k.Way, "no remote endpoint has the address, which pods of an overlay network need")
		return k
	}
	direct, byID := l.Flags&FlagDSR != 0, pic.byID()
	for _, id := range l.HostComputeEndpoints {
		e, a := byID[strings.ToLower(id)], netip.Addr{}
		if all := addresses(e, lb.FamilyOf(packet.To.Addr())); len(all) > 0 {
			a = all[0]
		}
		switch {
		case !a.IsValid():
			k.Way = append(k.Way, fmt.Sprintf("endpoint %s: not in the network", id))
		case e.Flags&RemoteEndpoint != 0 && direct && outside:
			k.Way = append(k.Way,
				fmt.Sprintf("endpoint %s %q: on another node, which clients outside do not reach with DSR", a, e.Name))
		case e.Flags&RemoteEndpoint != 0 && pic.overlay && pic.at(a) != ProviderOf(e):
			k.Way = append(k.Way, fmt.Sprintf("endpoint %s %q: sent to %s, the wrong node", a, e.Name, ProviderOf(e)))
		default:
			k.Way = append(k.Way, fmt.Sprintf("endpoint %s %q", a, e.Name))
			k.Backends = append(k.Backends, trace.Backend{Address: netip.AddrPortFrom(a, mapping.InternalPort)})
		}
	}
	slices.SortFunc(k.Backends, func(a, b trace.Backend) int { return a.Address.Compare(b.Address) })
	for i := range k.Backends {
		k.Verdict, k.Masquerade = trace.Balance, !direct
		k.Backends[i].Share = 1 / float64(len(k.Backends))
	}
	return k
}

// taker returns the load balancer and mapping for the packet's destination: one with the address
// before one for the node's own addresses, which sets onNode.
func (pic *picture) taker(packet trace.Packet) (found *LoadBalancer, by PortMapping, onNode bool) {
	for i := range pic.balancers {
		l := &pic.balancers[i]
		at := slices.IndexFunc(l.PortMappings, func(m PortMapping) bool {
			return m.Protocol == uint32(packet.Proto) && m.ExternalPort == packet.To.Port()
		})
		if at < 0 {
			continue
		}
		has := slices.ContainsFunc(l.FrontendVIPs, func(vip string) bool {
			a, err := netip.ParseAddr(vip)
			return err == nil && a == packet.To.Addr()
		})
		switch {
		case has:
			return l, l.PortMappings[at], false
		case found == nil && packet.Here && len(l.FrontendVIPs) == 0 && (l.Flags&FlagIPv6 != 0) == packet.To.Addr().
			Is6():
			found, by, onNode = l, l.PortMappings[at], true
		}
	}
	return found, by, onNode
}

// reachable reports whether pods can send packets to a load balancer's address. An overlay network
// must have an endpoint for a cluster IP.
func (pic *picture) reachable(vip netip.Addr) bool {
	return !pic.overlay || !pic.ofServices(vip) || slices.ContainsFunc(pic.endpoints, func(e Endpoint) bool {
		return e.Flags&RemoteEndpoint != 0 && e.Has(vip)
	})
}

// behind reports whether a container of this node has the address.
func (pic *picture) behind(a netip.Addr) bool {
	return slices.ContainsFunc(pic.endpoints, func(e Endpoint) bool {
		return e.Flags&RemoteEndpoint == 0 && e.Has(a)
	})
}

// at returns the node to which the network sends packets for an address.
func (n *network) at(a netip.Addr) netip.Addr {
	node, _ := n.provider(a)
	return node
}

// describe describes a load balancer in one line.
func (pic *picture) describe(l *LoadBalancer) string {
	vips := strings.Join(l.FrontendVIPs, ",")
	if vips == "" {
		vips = "the node's addresses"
	}
	var ports []string
	for _, m := range l.PortMappings {
		ports = append(ports, fmt.Sprintf("%d/%s to %d (distribution %d, flags %d)", m.ExternalPort,
			lb.Proto(m.Protocol), m.InternalPort, m.DistributionType, m.Flags))
	}
	return fmt.Sprintf("load balancer %s of %s, port %s, flags %d, source VIP %q, %d endpoints", l.ID, vips,
		strings.Join(ports, ", "), l.Flags, l.SourceVIP, len(l.HostComputeEndpoints))
}

// Differences implements mode.Tracer. It lists HNS and reports what a Reset would change, including
// objects that HNS shows differently from the request.
func (p *Plane) Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error {
	pic, err := p.read(ctx, want.Node)
	if err != nil {
		return fmt.Errorf("hns: compare: %w", err)
	}
	aside := &Plane{cfg: p.cfg, hns: p.hns, drift: make(chan struct{}, 1)} // makes no calls
	r := aside.reconciliation(pic, nil, want.Sorted())
	for _, d := range r.differences() {
		if !each(d) {
			break
		}
	}
	return ctx.Err()
}

// differences compares the content of HNS with the objects that the frontends need.
func (r *reconciliation) differences() (all []trace.Difference) {
	st, checks := r.st, r.st.checked(r.cfg.HealthzPort)
	balancer := func(key lb.Key, want plan) {
		is, have, wanted := st.balancers[key], "", ""
		if is != nil {
			have = is.text(is.endpoints, is.unknown)
		}
		if is != nil && is.atVIP != want.atVIP {
			have += ", without an endpoint at its address"
		}
		if !want.none() {
			var addrs []netip.Addr
			for _, b := range want.backends {
				addrs = append(addrs, b.addr)
			}
			wanted = want.text(addrs, 0)
		}
		if have != wanted {
			all = append(all, trace.Difference{Key: key, Object: "load balancer " + key.String(), Desired: wanted,
				Actual: have})
		}
	}
	for _, row := range r.rows {
		if !checks[row.Key] {
			balancer(row.Key, st.planned(row))
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(checks), lb.Key.Compare) {
		balancer(key, st.forwarded(key.Addr, key.Port))
	}
	for _, key := range slices.SortedFunc(maps.Keys(st.balancers), lb.Key.Compare) {
		if st.rows[key] == nil && !checks[key] {
			balancer(key, plan{})
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(st.endpoints), netip.Addr.Compare) {
		switch e, object := st.endpoints[a], "endpoint "+namePrefix+a.String(); {
		case e.ours && e.refs == 0:
			all = append(all, trace.Difference{Object: object, Actual: "unused"})
		case e.doubt:
			all = append(all, trace.Difference{Object: object, Desired: "sent to " + st.at(a).String(),
				Actual: "sent to another node"})
		}
	}
	if r.needsSource() {
		all = append(all, trace.Difference{Object: "endpoint " + st.sourceEndpoint().Name, Desired: "local"})
	}
	for _, id := range r.spare {
		all = append(all, trace.Difference{Object: "endpoint " + id, Actual: "a duplicate of its address"})
	}
	return all
}

// text describes a load balancer without its key. unknown is the number of endpoints outside of the
// network.
func (s *shape) text(endpoints []netip.Addr, unknown int) string {
	text := fmt.Sprintf("to port %d of %v, distribution %d, mapping %d, flags %d", s.to, endpoints, s.distribution,
		s.mapping, s.flags)
	if s.source.IsValid() {
		text += ", source " + s.source.String()
	}
	if unknown > 0 {
		text += fmt.Sprintf(", and %d endpoints that are not in the network", unknown)
	}
	return text
}
