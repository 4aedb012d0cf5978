package scenario

import (
	"fmt"
	"net/netip"
	"strconv"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// A Shot is a line of packets made concrete: one address, port and protocol to send to.
type Shot struct {
	// Local is the source address to send from, or the zero Addr.
	Local netip.Addr
	// To is the target; its port is 0 for ICMP.
	To    netip.AddrPort
	Proto lb.Proto // 0 for ICMP
	// Key is the key of the deciding frontend, if there is one.
	Key lb.Key
}

// AnyPort as a Target.Port means each of the Service's ports in turn.
const AnyPort = "*"

// Resolve returns the target of p in the replay's current state and family: one shot, one for each
// port if the line has ":*", none if the line is for the other family or the Service has no address
// of this one. It is an error if the target can exist in no family, such as a Service that never
// existed. hostAddr returns the lab's address of a host.
func (r *Replay) Resolve(p Packet, hostAddr func(host string, six bool) netip.Addr) ([]Shot, error) {
	if p.Family != 0 && p.Family != r.settings.Family {
		return nil, nil
	}
	base := Shot{Proto: p.To.Proto}
	if !p.As.IsZero() {
		var ok bool
		base.Local, ok = r.Address(p.As)
		if !ok {
			return nil, r.check(p.As)
		}
	}
	if p.To.Addr.Kind == NodePortAddr {
		return r.nodePorts(p.To, base, hostAddr)
	}
	addr, ok := r.Address(p.To.Addr)
	if !ok {
		return nil, r.check(p.To.Addr)
	}
	if p.To.ICMP {
		base.To = netip.AddrPortFrom(addr, 0)
		return []Shot{base}, nil
	}
	ports, err := r.ports(p.To)
	if err != nil {
		return nil, err
	}
	var shots []Shot
	for _, port := range ports {
		s := base
		s.Proto = lb.Proto(port.Protocol)
		s.To = netip.AddrPortFrom(addr, port.Port)
		s.Key = lb.Key{Addr: addr, Port: port.Port, Proto: s.Proto}
		shots = append(shots, s)
	}
	return shots, nil
}

// check reports an error if a names a Service that was never there.
func (r *Replay) check(a Addrs) error {
	if a.Of != "" && r.lastService(a.Of) == nil {
		return fmt.Errorf("there is no Service %s", a.Of)
	}
	return nil
}

// nodePorts resolves a target at one of this node's addresses.
func (r *Replay) nodePorts(t Target, base Shot, hostAddr func(string, bool) netip.Addr) ([]Shot, error) {
	svc := r.lastService(t.Addr.Of)
	if svc == nil {
		return nil, fmt.Errorf("there is no Service %s", t.Addr.Of)
	}
	six := r.settings.Family == lb.IPv6
	serves := false
	for _, a := range svc.ClusterIPs {
		serves = serves || a.Is6() == six
	}
	if !serves {
		return nil, nil
	}
	addr, ok := r.Address(t.At)
	if t.At.IsZero() {
		host := t.AtHost
		if host == "" {
			host = "node1"
		}
		addr, ok = hostAddr(host, six), true
	}
	if !ok {
		return nil, r.check(t.At)
	}
	ports, err := r.ports(t)
	if err != nil {
		return nil, err
	}
	var shots []Shot
	for _, port := range ports {
		if port.NodePort == 0 {
			return nil, fmt.Errorf("port %q of Service %s has no NodePort", port.Name, t.Addr.Of)
		}
		s := base
		s.Proto = lb.Proto(port.Protocol)
		s.To = netip.AddrPortFrom(addr, port.NodePort)
		s.Key = lb.Key{Port: port.NodePort, Proto: s.Proto}
		shots = append(shots, s)
	}
	return shots, nil
}

// ports returns the ports of the target's Service that it means; a number that the Service does not
// have, or has in another protocol, is itself.
func (r *Replay) ports(t Target) ([]cluster.ServicePort, error) {
	var all []cluster.ServicePort
	if svc := r.lastService(t.Addr.Of); svc != nil {
		all = svc.Ports
	}
	if t.Port == AnyPort {
		return all, nil
	}
	number, err := strconv.ParseUint(t.Port, 10, 16)
	for _, p := range all {
		named := err != nil && p.Name == t.Port || err == nil && p.Port == uint16(number)
		if named && (t.Proto == 0 || t.Proto == lb.Proto(p.Protocol)) {
			return []cluster.ServicePort{p}, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("there is no port %q of Service %s", t.Port, t.Addr.Of)
	}
	proto := t.Proto
	if proto == 0 {
		proto = lb.TCP
	}
	return []cluster.ServicePort{{Port: uint16(number), Protocol: cluster.Protocol(proto)}}, nil
}
