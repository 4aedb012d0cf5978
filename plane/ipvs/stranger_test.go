//go:build linux

package ipvs

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/adversary"
	"kube-proxy/test/golden"
)

// street is a node with Services of a victim and of a tenant, from events to the kernel's objects.
// No detector knows where pods are.
type street struct {
	*testing.T
	*lab
	p     *Plane
	store *cluster.Store
	table *lb.Table
	set   policy.Settings
}

const strangers = "stranger"

func newStreet(t *testing.T) *street {
	s := &street{T: t, lab: newLab(t), store: cluster.NewStore("node1"), table: &lb.Table{Family: lb.IPv4},
		set: policy.Settings{Family: lb.IPv4}}
	s.store.Fold(cluster.NodeSet{Node: &cluster.Node{Name: "node1", Addrs: s.others}})
	s.store.Fold(cluster.CIDRsListed{CIDRs: []*cluster.ServiceCIDR{
		{Name: "kubernetes", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}}}})
	s.table.Node = policy.ResolveNode(s.store.Facts(), s.set)
	s.restart()
	return s
}

// restart starts another process.
func (s *street) restart() {
	s.Helper()
	s.p = s.start(s.T, lb.IPv4, s.table)
}

// do passes an event on to the kernel.
func (s *street) do(ev cluster.Event) {
	s.Helper()
	var changes []lb.Change
	for _, ref := range s.store.Fold(ev).Services {
		v := s.store.View(ref.Name)
		owner := lb.Owner{Name: ref.Name.String()}
		if v.Service != nil {
			owner.Created = v.Service.Created
		}
		some, _ := s.table.Replace(owner, policy.Resolve(v, s.set))
		changes = append(changes, some...)
	}
	must(s, only(s.p.Apply(s.Context(), changes)))
}

// strangersService has an address of every kind, and endpoints on other nodes.
func strangersService(i int) (*cluster.Service, *cluster.Slice) {
	name := cluster.Name{Namespace: strangers, Name: fmt.Sprint("web", i)}
	a := func(net byte) netip.Addr { return netip.AddrFrom4([4]byte{net, 0, 0, byte(10 + i)}) }
	s := &cluster.Service{Name: name, Created: 1, Type: cluster.TypeLoadBalancer,
		ClusterIPs:      []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + i)})},
		LoadBalancerIPs: []netip.Addr{a(198)}, ExternalIPs: []netip.Addr{a(203)},
		ExternalPolicy: cluster.TrafficPolicy(i % 2),
		Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80, NodePort: uint16(31000 + i)},
			{Name: "dns", Protocol: cluster.UDP, Port: 53}}}
	sl := &cluster.Slice{Name: cluster.Name{Namespace: strangers, Name: name.Name + "-1"}, Service: name,
		Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080},
			{Name: "dns", Protocol: cluster.UDP, Port: 53}}}
	for k := range 3 {
		sl.Endpoints = sl.Endpoints.With(cluster.Endpoint{Addr: netip.AddrFrom4([4]byte{100, 1, byte(i), byte(1 + k)}),
			Ready: true, Serving: true})
	}
	return s, sl
}

// victims returns the victims' addresses, which the tenant knows.
func victims(t *street, n int) adversary.Victims {
	v := adversary.Victims{Node: t.others, NodeName: "node1", Ports: []uint16{80, 53}, Targets: []uint16{8080, 53},
		NodePorts: []uint16{32000}, Free: []netip.Addr{netip.MustParseAddr("10.96.9.9")}}
	for i := range n {
		s, sl := strangersService(i)
		v.ClusterIPs = slices.Concat(v.ClusterIPs, s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs)
		v.NodePorts = append(v.NodePorts, s.Ports[0].NodePort)
		for e := range sl.Endpoints.All() {
			v.Pods = append(v.Pods, e.Addr)
		}
	}
	return v
}

// holds returns all the kernel's objects at the victims' keys, and whether it sends packets for
// their addresses and for their pods here.
func (s *street) holds(v adversary.Victims) string {
	var lines []string
	keys := map[ipvs.ServiceID]bool{}
	for row := range s.table.All() {
		if strings.HasPrefix(row.Service, strangers+"/") && !row.Accepts() {
			for k := range lb.Expand(row.Key, s.p.l.nodePorts) {
				if k.Addr.IsValid() {
					keys[serviceOf(k)] = true
				}
			}
		}
	}
	for _, is := range s.ipvs.State() {
		if !keys[is.ServiceID] {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s %d", is.ServiceID, is.Scheduler, is.Flags))
		for _, d := range is.Destinations {
			lines = append(lines, fmt.Sprintf("%s %s %d", is.ServiceID, d.Addr, d.Weight))
		}
	}
	for name, set := range s.sets {
		if name == setLoopBack.name(lb.IPv4) { // its members are endpoints, not keys
			continue
		}
		for m := range set.members {
			if keys[serviceOf(lb.Key{Addr: m.Addr, Port: m.Port, Proto: lb.Proto(m.Proto)})] {
				lines = append(lines, name+" "+m.String())
			}
		}
	}
	for _, a := range slices.Concat(v.ClusterIPs, v.Pods) {
		lines = append(lines, fmt.Sprintf("%s bound %t", a, s.devs[lb.IPv4].addrs[a]))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Whatever Services and slices a tenant writes, in any order, over restarts and until it leaves:
// the victims' virtual servers, members and addresses do not change, and neither do their pods'
// addresses, though the node does not know where pods are (TN-01, TN-61).
func TestStrangersBesideATenant(t *testing.T) {
	for _, seed := range walks(200) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { besideATenant(t, seed) }) {
			return
		}
	}
}

func besideATenant(t *testing.T, seed uint64) {
	s := newStreet(t)
	for i := range 3 {
		svc, sl := strangersService(i)
		s.do(cluster.ServiceSet{Service: svc})
		s.do(cluster.SliceSet{Slice: sl})
	}
	v := victims(s, 3)
	tenant := adversary.New("tenant", seed, v, func(i int) []netip.Addr {
		return []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})}
	})
	before, rnd := s.holds(v), rand.New(rand.NewPCG(seed, 61))
	same := func(when string) {
		t.Helper()
		if got := s.holds(v); got != before {
			t.Fatalf("%s:\n%s", when, golden.Diff(before, got))
		}
	}
	for i := range 12 {
		ev := tenant.Event()
		if set, is := ev.(cluster.ServiceSet); is {
			set.Service.Created = 2 // younger than the victims': age decides who has a key (SV-24)
			// No tenant can write the status, and no controller assigns an address twice.
			set.Service.LoadBalancerIPs = slices.DeleteFunc(set.Service.LoadBalancerIPs, func(a netip.Addr) bool {
				return slices.Contains(v.ClusterIPs, a)
			})
		}
		s.do(ev)
		same(fmt.Sprintf("event %d, %T", i, ev))
		if rnd.IntN(6) == 0 {
			s.restart()
			same("restart")
		}
	}
	for _, ev := range tenant.Leave() {
		s.do(ev)
	}
	same("the tenant has left")
}
