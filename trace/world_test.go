package trace_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/adversary"
	"kube-proxy/test/oracle"
	"kube-proxy/trace"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// crowd is what tenants and honest people have written by now, and a table of it for each family.
type crowd struct {
	store  *cluster.Store
	tables map[lb.Family]*lb.Table
	ages   map[cluster.Name]int64
}

func (c *crowd) settings(f lb.Family) policy.Settings {
	return policy.Settings{Family: f, ClusterCIDRs: prefixes("10.1.0.0/16", "fd00:1::/32"),
		NodePortAddrs: policy.NodePortAddrs{Primary: true}}
}

func (c *crowd) fold(ev cluster.Event) {
	for _, ref := range c.store.Fold(ev).Services {
		v := c.store.View(ref.Name)
		if v.Service != nil {
			c.ages[ref.Name] = v.Service.Created
		}
		for f, t := range c.tables {
			t.Node = policy.ResolveNode(c.store.Facts(), c.settings(f))
			t.Replace(lb.Owner{Name: ref.Name.String(), Created: c.ages[ref.Name]}, policy.Resolve(v, c.settings(f)))
		}
	}
}

// Worlds of tenants who mean harm: every key that anybody claims, from each kind of source. The
// table's answer is the oracle's, and a question changes nothing.
func TestWorlds(t *testing.T) {
	node := addrs("172.18.0.2", "fd00:18::2")
	sources := addrs("10.1.3.3", "172.18.0.2", "203.0.113.5", "10.96.0.1", "fd00:1::3", "fd00:18::2", "2001:db8::5")
	victims := adversary.Victims{
		ClusterIPs: addrs("10.96.0.1", "fd00:96::1"), Pods: addrs("10.1.0.1", "10.1.3.3", "fd00:1::1", "fd00:1::3"),
		Free:    addrs("10.96.9.9", "fd00:96::99"),
		Special: adversary.Special(), Node: node, NodeName: "node1",
		Ports: []uint16{80, 443}, NodePorts: []uint16{30080, 30443}, Targets: []uint16{8080, 9090},
	}
	asked := map[trace.Verdict]int{}
	for seed := range uint64(3) {
		c := &crowd{cluster.NewStore("node1"), map[lb.Family]*lb.Table{lb.IPv4: {Family: lb.IPv4},
			lb.IPv6: {Family: lb.IPv6}}, map[cluster.Name]int64{}}
		c.fold(cluster.NodeSet{Node: &cluster.Node{Name: "node1", Addrs: node}})
		c.fold(cluster.CIDRsListed{
			CIDRs: []*cluster.ServiceCIDR{{Name: "kubernetes", Prefixes: prefixes("10.96.0.0/12", "fd00:96::/108")}}})
		honest := cluster.Name{Namespace: "honest", Name: "web"}
		c.fold(cluster.ServiceSet{Service: &cluster.Service{Name: honest, ClusterIPs: victims.ClusterIPs,
			Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}}}})
		c.fold(cluster.SliceSet{Slice: &cluster.Slice{Name: honest, Service: honest,
			Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
			Endpoints: cluster.EndpointsOf(cluster.Endpoint{Addr: victims.Pods[0], Where: cluster.At("node1", ""),
				Ready: true, Serving: true})}})
		var tenants []*adversary.Tenant
		for n := range 4 {
			tenants = append(tenants, adversary.New(fmt.Sprint("tenant", n), seed*10+uint64(n), victims,
				func(i int) []netip.Addr {
					return []netip.Addr{netip.AddrFrom4([4]byte{10, 97, byte(n), byte(1 + i)}),
						netip.MustParseAddr(fmt.Sprintf("fd00:96::%x:%x", n+1, i+1))}
				}))
		}
		rnd := rand.New(rand.NewPCG(seed, 56))
		for round := range 4 {
			for range 40 {
				c.fold(tenants[rnd.IntN(len(tenants))].Event())
			}
			c.ask(t, fmt.Sprintf("seed %d, round %d", seed, round), node, sources, asked)
		}
	}
	t.Logf("asked: %v", asked)
	for _, v := range verdicts {
		if asked[v] < 10 {
			t.Errorf("only %d packets are to %s", asked[v], v)
		}
	}
}

func (c *crowd) ask(t *testing.T, when string, node, sources []netip.Addr, asked map[trace.Verdict]int) {
	var views []cluster.View
	for _, n := range c.store.Names() {
		views = append(views, c.store.View(n))
	}
	for f, table := range c.tables {
		world := oracle.New(c.store.Facts(), c.settings(f), views)
		before, visited := table.String(), table.Visited
		for k := range world.Keys {
			for _, from := range sources {
				if lb.FamilyOf(from) != f {
					continue
				}
				to := netip.AddrPortFrom(k.Addr, k.Port)
				if k.IsNodePort() {
					to = netip.AddrPortFrom(node[map[lb.Family]int{lb.IPv4: 0, lb.IPv6: 1}[f]], k.Port)
				}
				p := packet(c.store.Facts(), from, to, k.Proto)
				got := trace.Ask(table, trace.Mode{}, p)
				asked[got.Verdict]++
				agree(t, got, world.Ask(oracle.Packet{From: from, To: to, Proto: k.Proto}),
					fmt.Sprintf("%s: %s", when, p))
				if all := table.Conflicts(k); got.Frontend != nil && got.Frontend.Key == k &&
					(got.Contesting != len(all) || len(got.Conflicts) != min(5, len(all))) {
					t.Errorf("%s: %s: %d of %d contests, want those of %v", when, p, len(got.Conflicts), got.Contesting,
						all)
				}
			}
		}
		if table.String() != before || table.Visited != visited {
			t.Fatalf("%s: the questions changed the table", when)
		}
	}
}
