package hns

import (
	"net/netip"
	"time"

	"kube-proxy/lb"
)

// documentation are addresses that no machine has (RFC 5737, RFC 3849): a frontend, two backends in
// the network and one outside.
var documentation = map[lb.Family][4]string{
	lb.IPv4: {"198.51.100.1", "192.0.2.11", "192.0.2.12", "203.0.113.13"},
	lb.IPv6: {"2001:db8:1::1", "2001:db8::11", "2001:db8::12", "2001:db8:2::13"},
}

// Shapes returns a load balancer of each shape that the plane can write in a network, for selftest.
// They share one documentation address and port, or one NodePort, and have addresses in place of
// endpoint ids. accepted are the flags of port mappings that HNS accepts.
func Shapes(cfg Config, n Network, has Features, accepted PortMappingFlags) (all []LoadBalancer, err error) {
	f := cfg.facts(lb.Node{})
	f.features, f.refused, f.root = has, optional&^accepted, "root"
	f.network, err = parse(n)
	if err != nil {
		return nil, err
	}
	var at [4]netip.Addr
	for i, a := range documentation[cfg.Family] {
		at[i] = netip.MustParseAddr(a)
	}
	frontend, here, inside, outside := at[0], at[1], at[2], at[3]
	f.rootAddr = here
	f.subnets = append(f.subnets, netip.PrefixFrom(here, here.BitLen()*3/4).Masked())
	f.node.NodePorts = []netip.Prefix{netip.PrefixFrom(here, 0).Masked()}
	seen := map[shape]bool{}
	add := func(p plan) {
		if p.none() || seen[p.shape] {
			return
		}
		seen[p.shape] = true
		l := p.request(nil)
		for _, b := range p.backends {
			l.HostComputeEndpoints = append(l.HostComputeEndpoints, b.addr.String())
		}
		all = append(all, l)
	}
	add(f.forwarded(frontend, 80))
	for _, kind := range []lb.Kind{lb.ClusterIP, lb.ExternalIP, lb.LoadBalancer, lb.NodePort} {
		for i := range 1 << 6 { // a bit for each choice
			is := func(bit int) bool { return i>>bit&1 == 1 }
			f.wantDSR = is(0)
			row := lb.Frontend{Kind: kind, Key: lb.Key{Addr: frontend, Port: 80, Proto: lb.TCP}}
			if is(1) {
				row.Key.Proto = lb.UDP
			}
			if kind == lb.NodePort {
				row.Key.Addr, row.Key.Port = netip.Addr{}, 30590
			}
			if is(2) {
				row.Affinity = time.Hour
			}
			row.PreserveDestination = is(3) && (kind == lb.ExternalIP || kind == lb.LoadBalancer)
			backends, scope := []lb.Backend{{Addr: netip.AddrPortFrom(here, 8080), Local: true}}, lb.Local
			if is(4) {
				other := inside
				if is(5) {
					other = outside
				}
				backends, scope = append(backends, lb.Backend{Addr: netip.AddrPortFrom(other, 8080)}), lb.Cluster
			}
			to := &lb.BackendSet{ID: lb.SetID{Proto: row.Key.Proto, Scope: scope}, Backends: lb.BackendsOf(backends...)}
			row.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: to}}
			add(f.planned(&row))
		}
	}
	return all, nil
}
