package planetest

import (
	"fmt"
	"net/netip"
	"time"

	"kube-proxy/lb"
)

// World makes tables without a scenario: addresses and names follow from numbers, so that a test
// may have as many Services as it likes. Everything is TCP.
type World struct{ Family lb.Family }

// Addr is address i, below 1<<24, of a network: 10 has the cluster IPs, 100 the pods, 192 the node,
// 198 load balancers and 203 external IPs.
func (w World) Addr(net byte, i int) netip.Addr {
	if w.Family == lb.IPv6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: net, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{net, byte(i >> 16), byte(i >> 8), byte(i)})
}

// Node has NodePorts on one address.
func (w World) Node() lb.Node {
	bits := 8
	if w.Family == lb.IPv6 {
		bits = 16
	}
	prefix := func(net byte) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(w.Addr(net, 0), bits).Masked()} }
	return lb.Node{
		NodePorts:    single(w.Addr(192, 1)),
		Pods:         lb.Detector{Prefixes: prefix(100)},
		ServiceCIDRs: prefix(10),
	}
}

// Set has n backends from pod first on; every third pod is local.
func (w World) Set(service string, scope lb.Scope, first, n int) *lb.BackendSet {
	pods := make([]lb.Endpoint, n)
	for i := range pods {
		pods[i] = lb.Endpoint{Addr: w.Addr(100, first+i), Local: i%3 == 0}
	}
	s := &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.TCP, Scope: scope}}
	if n > 0 {
		s.Backends.Add(8080, lb.EndpointsOf(pods...))
	}
	return s
}

// ClusterIP is Service i with n backends from pod first on. It rejects without any.
func (w World) ClusterIP(i, first, n int) (lb.Owner, []*lb.Frontend) {
	name := fmt.Sprintf("ns/svc-%d", i)
	f := &lb.Frontend{Key: lb.Key{Addr: w.Addr(10, i+1), Port: 80, Proto: lb.TCP}, Service: name + ":http",
		Kind: lb.ClusterIP}
	if n == 0 {
		f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}
	} else {
		f.Routes = balanced(w.Set(f.Service, lb.Cluster, first, n))
	}
	return lb.Owner{Name: name}, []*lb.Frontend{f}
}

// Full is ClusterIP, and with backends it also has an address of every other kind, with external
// policy Local: the first backends, local of them, serve clients from outside, which are dropped
// without any. The load balancer has source ranges. Affinity lasts for sticky, if that is not 0.
func (w World) Full(i, first, n, local int, sticky time.Duration) (lb.Owner, []*lb.Frontend) {
	o, fronts := w.ClusterIP(i, first, n)
	if n == 0 {
		return o, fronts
	}
	cluster := fronts[0].Set(lb.Cluster)
	outside := []lb.Route{{From: lb.Pods, Do: lb.Balance, To: cluster}, {From: lb.Host, Do: lb.Balance, Masq: true,
		To: cluster}}
	if local > 0 {
		outside = append(outside, lb.Route{From: lb.Anywhere, Do: lb.Balance, To: w.Set(fronts[0].Service, lb.Local,
			first, local)})
	} else {
		outside = append(outside, lb.Route{From: lb.Anywhere, Do: lb.Drop})
	}
	front := func(a netip.Addr, port int, kind lb.Kind, sources ...netip.Prefix) *lb.Frontend {
		return &lb.Frontend{Key: lb.Key{Addr: a, Port: uint16(port), Proto: lb.TCP}, Service: fronts[0].Service,
			Kind: kind, Routes: outside, Sources: sources}
	}
	balancer := w.Addr(198, i+1)
	fronts = append(fronts, front(netip.Addr{}, 30000+i, lb.NodePort), front(w.Addr(203, i+1), 80, lb.ExternalIP),
		front(balancer, 80, lb.LoadBalancer, w.Node().Pods.Prefixes[0], netip.PrefixFrom(balancer, balancer.BitLen())))
	for _, f := range fronts {
		f.Affinity = sticky
	}
	return o, fronts
}

// Table has n Services with a cluster IP and so many backends each.
func (w World) Table(n, backends int) *lb.Table {
	t := &lb.Table{Node: w.Node()}
	for i := range n {
		t.Replace(w.ClusterIP(i, i*backends, backends))
	}
	return t
}

// Shop is a table of one Service, "shop/web:http", in a netlab: a cluster IP and a NodePort of
// node1, to port 8080 of pod1 (local) and pod4.
func Shop(family lb.Family) (table *lb.Table, clusterIP, nodePort netip.AddrPort) {
	clusterIP, nodePort = netip.MustParseAddrPort("10.96.0.10:80"), netip.MustParseAddrPort("172.18.0.2:30080")
	pods, services := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.96.0.0/12")
	backends := []string{"10.1.1.11:8080", "10.1.2.14:8080"}
	if family == lb.IPv6 {
		clusterIP, nodePort = netip.MustParseAddrPort("[fd00:10:96::10]:80"),
			netip.MustParseAddrPort("[fd00:18::2]:30080")
		pods, services = netip.MustParsePrefix("fd00:10:1::/48"), netip.MustParsePrefix("fd00:10:96::/108")
		backends = []string{"[fd00:10:1:1::11]:8080", "[fd00:10:1:2::14]:8080"}
	}
	var to []lb.Backend
	for i, b := range backends {
		to = append(to, lb.Backend{Addr: netip.MustParseAddrPort(b), Local: i == 0})
	}
	set := &lb.BackendSet{ID: lb.SetID{Service: "shop/web:http", Proto: lb.TCP, Scope: lb.Cluster},
		Backends: lb.BackendsOf(to...)}
	table = &lb.Table{Node: lb.Node{
		NodePorts:    single(nodePort.Addr()),
		Pods:         lb.Detector{Prefixes: []netip.Prefix{pods}},
		ServiceCIDRs: []netip.Prefix{services},
	}}
	table.Replace(lb.Owner{Name: "shop/web"}, []*lb.Frontend{
		{Key: lb.Key{Addr: clusterIP.Addr(), Port: clusterIP.Port(), Proto: lb.TCP}, Service: "shop/web:http",
			Kind: lb.ClusterIP, Routes: balanced(set)},
		{Key: lb.Key{Port: nodePort.Port(), Proto: lb.TCP}, Service: "shop/web:http", Kind: lb.NodePort,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, Masq: true, To: set}}},
	})
	return table, clusterIP, nodePort
}

// balanced spreads over a set, and masquerades all but pods.
func balanced(set *lb.BackendSet) []lb.Route {
	return []lb.Route{{From: lb.Pods, Do: lb.Balance, To: set}, {From: lb.Anywhere, Do: lb.Balance, Masq: true,
		To: set}}
}

func single(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())} }
