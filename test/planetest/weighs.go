package planetest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/seedtest"
)

// Weighing compares a mode's Weigh with the objects that its plane writes (TN-11).
type Weighing struct {
	Family lb.Family
	Weigh  func(lb.Size) int
	// Count returns how many objects the plane writes for a table.
	Count func(*testing.T, *lb.Table) int
	// Within is how many times the objects of a Service its weight may be, on a node that has all
	// its endpoints.
	Within int
	// Costly is the limit of a namespace for the costliest Services.
	Costly int
}

// Run weighs random Services and the most expensive ones: none has more objects than its weight,
// and no namespace more than its limit.
func (w Weighing) Run(t *testing.T) {
	t.Run("random Services", w.random)
	for story, make := range costly {
		t.Run("costliest namespace: "+story, func(t *testing.T) { w.namespace(t, make) })
	}
}

// view is a Service whose endpoints are all on this node.
func (w Weighing) view(ns string, i int, s cluster.Service, endpoints int) cluster.View {
	world := World{Family: w.Family}
	s.Name = cluster.Name{Namespace: ns, Name: fmt.Sprintf("s%03d", i)}
	s.Created, s.ClusterIPs = int64(1000+i), []netip.Addr{world.Addr(10, i+1)}
	v := cluster.View{Name: s.Name, Service: &s, Node: cluster.Facts{NodeName: "here"}}
	sl := &cluster.Slice{Name: s.Name, Service: s.Name, IPv6: w.Family == lb.IPv6}
	for _, p := range s.Ports {
		sl.Ports = append(sl.Ports, cluster.SlicePort{Name: p.Name, Protocol: p.Protocol, Port: 8080})
	}
	var all []cluster.Endpoint
	for e := range endpoints {
		all = append(all, cluster.Endpoint{Addr: world.Addr(100, i<<12+e), Where: cluster.At("here", ""), Ready: true,
			Serving: true})
	}
	sl.Endpoints = cluster.EndpointsOf(all...)
	v.Slices = []*cluster.Slice{sl}
	return v
}

// servicePorts are n ports from first on.
func servicePorts(first, n int) (all []cluster.ServicePort) {
	for i := range n {
		proto := cluster.TCP
		if i%2 == 1 {
			proto = cluster.UDP
		}
		all = append(all, cluster.ServicePort{Name: fmt.Sprint("p", i), Protocol: proto, Port: uint16(first + i),
			NodePort: uint16(20_000 + first + i)})
	}
	return all
}

func (w Weighing) addrs(net byte, first, n int) (all []netip.Addr) {
	for i := range n {
		all = append(all, World{Family: w.Family}.Addr(net, first+i))
	}
	return all
}

// settings returns those of a namespace with that limit.
func (w Weighing) settings(limit int) policy.Settings {
	return policy.Settings{Family: w.Family, ClusterCIDRs: []netip.Prefix{
		World{Family: w.Family}.Node().Pods.Prefixes[0]}, Weigh: w.Weigh, MaxObjects: limit}
}

// table is an empty table of a node that has as many addresses as Weigh assumes.
func (w Weighing) table() *lb.Table {
	table := &lb.Table{Family: w.Family, Node: World{Family: w.Family}.Node()}
	table.Node.NodePorts = nil
	for _, a := range w.addrs(192, 1, lb.NodePortAddresses) {
		table.Node.NodePorts = append(table.Node.NodePorts, single(a)...)
	}
	return table
}

func (w Weighing) random(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seedtest.Of(t), 19))
	none := w.Count(t, w.table())
	sum, weights := 0, 0
	for i := range 200 {
		v := w.randomView(rnd, i)
		table, s := w.table(), w.settings(1<<40)
		table.Replace(lb.Owner{Name: v.Name.String()}, policy.Resolve(v, s))
		objects, weight := w.Count(t, table)-none, policy.Objects(v, s)
		if objects > weight {
			t.Fatalf("a Service has %d objects and weighs %d: %+v, %d endpoints", objects, weight, v.Service,
				v.Slices[0].Endpoints.Len())
		}
		sum, weights = sum+objects, weights+weight
	}
	t.Logf("%d objects weigh %d", sum, weights)
	if weights > w.Within*sum {
		t.Errorf("%d objects weigh %d, more than %d times as much", sum, weights, w.Within)
	}
}

func (w Weighing) randomView(rnd *rand.Rand, i int) cluster.View {
	s := cluster.Service{
		Type: []cluster.ServiceType{cluster.TypeClusterIP, cluster.TypeNodePort,
			cluster.TypeLoadBalancer}[rnd.IntN(3)],
		Ports: servicePorts([]int{21, 80}[rnd.IntN(2)], 1+rnd.IntN(6)), ExternalIPs: w.addrs(203, 0, rnd.IntN(6)),
		LoadBalancerIPs: w.addrs(198, 0, rnd.IntN(6)),
	}
	policies := []cluster.TrafficPolicy{cluster.PolicyCluster, cluster.PolicyLocal}
	s.InternalPolicy, s.ExternalPolicy = policies[rnd.IntN(2)], policies[rnd.IntN(2)]
	if rnd.IntN(2) == 0 {
		s.AffinitySeconds = 100
	}
	for _, a := range w.addrs(172, 0, rnd.IntN(4)*rnd.IntN(2)) {
		if p, err := a.Prefix(a.BitLen() - rnd.IntN(8)); err == nil {
			s.SourceRanges = append(s.SourceRanges, p)
		}
	}
	return w.view("random", i, s, rnd.IntN(30))
}

// costly are Services that request as much as possible of one thing.
var costly = map[string]func(w Weighing, i int) (cluster.Service, int){
	"endpoints": func(Weighing, int) (cluster.Service, int) {
		return cluster.Service{Type: cluster.TypeClusterIP, Ports: servicePorts(80, 1)}, 4000
	},
	"endpoints and addresses": func(w Weighing, i int) (cluster.Service, int) {
		return cluster.Service{Type: cluster.TypeLoadBalancer, Ports: servicePorts(80+i, 1),
			ExternalIPs: w.addrs(203, i<<10, 1000)}, 500
	},
	"ports and addresses": func(w Weighing, i int) (cluster.Service, int) {
		return cluster.Service{Type: cluster.TypeLoadBalancer, Ports: servicePorts(80+i*20, 20),
			LoadBalancerIPs: w.addrs(198, i<<10, 1000), ExternalPolicy: cluster.PolicyLocal}, 20
	},
	"affinity": func(w Weighing, i int) (cluster.Service, int) {
		return cluster.Service{Type: cluster.TypeNodePort, Ports: servicePorts(21+i*20, 20),
			ExternalIPs: w.addrs(203, i<<10, 1000), AffinitySeconds: 10, ExternalPolicy: cluster.PolicyLocal}, 20
	},
	"source ranges": func(w Weighing, i int) (cluster.Service, int) {
		s := cluster.Service{Type: cluster.TypeLoadBalancer, Ports: servicePorts(80+i*4, 4),
			LoadBalancerIPs: w.addrs(198, i<<10, 1000)}
		for _, a := range w.addrs(172, 0, 100) {
			s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(a, a.BitLen()))
		}
		return s, 10
	},
}

// namespace fills a namespace with the most expensive Services, and adds another one with its own
// Service.
func (w Weighing) namespace(t *testing.T, make func(w Weighing, i int) (cluster.Service, int)) {
	const services = 12
	budget := engine.NewBudget(w.Weigh, func() policy.Settings { return w.settings(w.Costly) })
	var views []cluster.View
	for i := range services {
		s, endpoints := make(w, i)
		views = append(views, w.view("costly", i, s, endpoints))
	}
	views = append(views, w.view("stranger", services, cluster.Service{Type: cluster.TypeNodePort,
		Ports: servicePorts(9000, 1)}, 3))
	for _, v := range views {
		budget.Weigh(v)
	}
	none := w.Count(t, w.table())
	all, refused := w.table(), 0
	for _, v := range views {
		rows := policy.Resolve(v, budget.Settings(v.Name))
		refused += len(policy.Refused(v, budget.Settings(v.Name)))
		one := w.table()
		one.Replace(lb.Owner{Name: v.Name.String(), Created: v.Service.Created}, rows)
		if objects := w.Count(t, one) - none; objects > w.Costly/4 {
			t.Errorf("%s has %d objects, more than a quarter of %d", v.Name, objects, w.Costly)
		}
		all.Replace(lb.Owner{Name: v.Name.String(), Created: v.Service.Created}, rows)
	}
	stranger := len(all.Owned("stranger/s012"))
	objects := w.Count(t, all) - none
	t.Logf("%d objects in %d rows, the limit is %d", objects, all.Len(), w.Costly)
	switch {
	case stranger != 2:
		t.Errorf("the stranger has %d rows", stranger)
	case objects > w.Costly+w.Weigh(lb.Size{Ports: 1, Backends: 3, Addresses: 1, NodePorts: true}):
		t.Errorf("%d objects", objects)
	case refused == 0:
		t.Error("nothing is refused")
	}
}
