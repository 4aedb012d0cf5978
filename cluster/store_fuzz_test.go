package cluster_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/cluster"
)

// FuzzStore shows that after any sequence of events the store equals a fresh one with the final
// objects (SV-01, SV-04, SV-30, PR-06, HT-06). It also shows that each event marks exactly the
// Services whose view changed, in the right family (SV-34, SV-40), and the facts if the node
// changed.
func FuzzStore(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, uint8(3*seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) {
		rng := rand.New(rand.NewPCG(seed, 3))
		s, m := cluster.NewStore("node-1"), newModel()
		before := m.clone()
		for range steps % 64 {
			ev := m.event(rng)
			checkDirty(t, before, m, ev, s.Fold(ev))
			before = m.clone()
		}
		checkStore(t, s, m, m.freshStore(rng))
	})
}

// model is the state of the objects, kept in the plainest way.
type model struct {
	services                     map[cluster.Name]*cluster.Service
	slices                       map[cluster.Name]*cluster.Slice
	cidrs                        map[string]*cluster.ServiceCIDR
	node                         *cluster.Node // as [cluster.Facts] has it
	nodeGone, nodeListed         bool          // the first message of a missing Node is a new fact (PN-71)
	servicesListed, slicesListed bool
}

func newModel() *model {
	return &model{map[cluster.Name]*cluster.Service{}, map[cluster.Name]*cluster.Slice{},
		map[string]*cluster.ServiceCIDR{}, nil, false, false, false, false}
}

func (m *model) clone() *model {
	c := *m
	c.services, c.slices, c.cidrs = maps.Clone(m.services), maps.Clone(m.slices), maps.Clone(m.cidrs)
	return &c
}

// event changes the model at random and returns the event of the change.
func (m *model) event(rng *rand.Rand) cluster.Event {
	switch rng.IntN(16) {
	case 0, 1, 2:
		svc := randomService(rng)
		m.services[svc.Name] = svc
		return cluster.ServiceSet{Service: svc}
	case 3:
		n := randomService(rng).Name
		delete(m.services, n)
		return cluster.ServiceGone{Name: n}
	case 4, 5, 6, 7:
		sl := randomSlice(rng)
		m.slices[sl.Name] = sl
		return cluster.SliceSet{Slice: sl}
	case 8, 9:
		n := randomSlice(rng).Name
		delete(m.slices, n)
		return cluster.SliceGone{Name: n}
	case 10:
		m.services, m.servicesListed = map[cluster.Name]*cluster.Service{}, true
		for range rng.IntN(4) {
			svc := randomService(rng)
			m.services[svc.Name] = svc
		}
		return cluster.ServicesListed{Services: slices.Collect(maps.Values(m.services))}
	case 11:
		m.slices, m.slicesListed = map[cluster.Name]*cluster.Slice{}, true
		for range rng.IntN(6) {
			sl := randomSlice(rng)
			m.slices[sl.Name] = sl
		}
		return cluster.SlicesListed{Slices: slices.Collect(maps.Values(m.slices))}
	case 12:
		said := randomNode(rng)
		known := *said
		if m.node != nil && len(said.Addrs) == 0 {
			known.Addrs = m.node.Addrs
		}
		if m.node != nil && len(said.PodCIDRs) == 0 {
			known.PodCIDRs = m.node.PodCIDRs
		}
		m.node, m.nodeGone, m.nodeListed = &known, false, true
		return cluster.NodeSet{Node: said}
	case 13:
		if rng.IntN(2) == 0 {
			return cluster.NodeSet{Node: &cluster.Node{Name: "node-2", Zone: "far"}}
		}
		m.nodeGone, m.nodeListed = m.node != nil, true
		return cluster.NodeGone{Name: "node-1"}
	case 14:
		c := randomCIDR(rng)
		m.cidrs[c.Name] = c
		if rng.IntN(3) == 0 {
			m.cidrs = map[string]*cluster.ServiceCIDR{c.Name: c}
			return cluster.CIDRsListed{CIDRs: []*cluster.ServiceCIDR{c}}
		}
		return cluster.CIDRSet{CIDR: c}
	default:
		n := randomCIDR(rng).Name
		delete(m.cidrs, n)
		return cluster.CIDRGone{Name: n}
	}
}

// freshStore returns a store that receives the final objects in random order.
func (m *model) freshStore(rng *rand.Rand) *cluster.Store {
	var events []cluster.Event
	for _, svc := range m.services {
		events = append(events, cluster.ServiceSet{Service: svc})
	}
	for _, sl := range m.slices {
		events = append(events, cluster.SliceSet{Slice: sl})
	}
	for _, c := range m.cidrs {
		events = append(events, cluster.CIDRSet{CIDR: c})
	}
	if m.node != nil {
		events = append(events, cluster.NodeSet{Node: m.node})
	}
	rng.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	s := cluster.NewStore("node-1")
	for _, ev := range events {
		s.Fold(ev)
	}
	if m.nodeGone {
		s.Fold(cluster.NodeGone{Name: "node-1"})
	}
	return s
}

// owned returns the slices of a service, sorted by name.
func (m *model) owned(n cluster.Name) []*cluster.Slice {
	var out []*cluster.Slice
	for _, sl := range m.slices {
		if sl.Service == n {
			out = append(out, sl)
		}
	}
	return sortSlices(out)
}

func sortSlices(s []*cluster.Slice) []*cluster.Slice {
	slices.SortFunc(s, func(a, b *cluster.Slice) int { return a.Name.Compare(b.Name) })
	return s
}

// checkStore compares the store with the model and with a fresh store.
func checkStore(t *testing.T, s *cluster.Store, m *model, fresh *cluster.Store) {
	t.Helper()
	if got, want := s.Synced(), m.servicesListed && m.slicesListed; got != want {
		t.Errorf("synced %v, want %v", got, want)
	}
	names := s.Names()
	slices.SortFunc(names, cluster.Name.Compare)
	if want := slices.SortedFunc(maps.Keys(m.services), cluster.Name.Compare); !slices.Equal(names, want) {
		t.Errorf("services %v, want %v", names, want)
	}
	for _, store := range []*cluster.Store{s, fresh} {
		for i := range serviceNames {
			n := serviceName(i)
			v := store.View(n)
			if !v.Service.Equal(m.services[n]) {
				t.Errorf("%s: service %+v, want %+v", n, v.Service, m.services[n])
			}
			if got, want := sortSlices(v.Slices), m.owned(n); !slices.EqualFunc(got, want, (*cluster.Slice).Equal) {
				t.Errorf("%s: slices %v, want %v", n, got, want)
			}
		}
		if f := store.Facts(); f.NodeName != "node-1" || !f.Node.Equal(m.node) || f.NodeGone != m.nodeGone {
			t.Errorf("node %+v gone %v, want %+v, %v", f.Node, f.NodeGone, m.node, m.nodeGone)
		}
		known := m.node != nil && !m.nodeGone
		if is, eligible := store.NodeEligible(); is != known || eligible != (known && !m.node.Leaving) {
			t.Errorf("node known %v, eligible %v; %+v is known %v", is, eligible, m.node, known)
		}
	}
	if got, want := s.Facts().CIDRs, fresh.Facts().CIDRs; !slices.Equal(got, want) {
		t.Errorf("service network %v, want %v", got, want)
	}
}

// checkDirty compares the dirty Services of an event with those whose views differ, and whether the
// facts are dirty with whether the node differs. The service network is TestServiceCIDRsSV03's.
func checkDirty(t *testing.T, before, after *model, ev cluster.Event, d cluster.Dirty) {
	t.Helper()
	facts := !before.node.Equal(after.node) || before.nodeGone != after.nodeGone ||
		before.nodeListed != after.nodeListed
	switch ev.(type) {
	case cluster.CIDRSet, cluster.CIDRGone, cluster.CIDRsListed:
	default:
		if d.Facts != facts {
			t.Fatalf("%T: facts dirty %v, want %v", ev, d.Facts, facts)
		}
	}
	got := map[cluster.Name]cluster.Ref{}
	for _, r := range d.Services {
		was := got[r.Name]
		got[r.Name] = cluster.Ref{Name: r.Name, V4: was.V4 || r.V4, V6: was.V6 || r.V6}
	}
	for i := range serviceNames {
		n := serviceName(i)
		v4, v6 := differs(before, after, n, false), differs(before, after, n, true)
		if _, list := ev.(cluster.ServicesListed); list && !before.servicesListed && v4 {
			v4, v6 = firstIn(after.services[n])
		}
		if r := got[n]; r.V4 != v4 || r.V6 != v6 {
			t.Fatalf("%T: %s is dirty in IPv4 %v, IPv6 %v; want %v, %v", ev, n, r.V4, r.V6, v4, v6)
		}
		delete(got, n)
	}
	if len(got) > 0 {
		t.Fatalf("%T: dirty without a reason: %v", ev, got)
	}
}

// firstIn returns the families in which a Service of the first list is dirty.
func firstIn(svc *cluster.Service) (v4, v6 bool) {
	if svc == nil || len(svc.ClusterIPs) == 0 {
		return true, true
	}
	return svc.ClusterIPs[0].Is4(), svc.ClusterIPs[len(svc.ClusterIPs)-1].Is6()
}

// differs reports whether the frontends of a Service in one family may differ between two states.
func differs(a, b *model, n cluster.Name, ipv6 bool) bool {
	sa, sb := a.services[n], b.services[n]
	if !sa.Equal(sb) {
		return true
	}
	if sa == nil {
		return false
	}
	if !slices.EqualFunc(a.ofFamily(n, ipv6), b.ofFamily(n, ipv6), (*cluster.Slice).Equal) {
		return true
	}
	na, nb := cluster.Node{}, cluster.Node{}
	if a.node != nil {
		na = *a.node
	}
	if b.node != nil {
		nb = *b.node
	}
	isFamily := func(p netip.Prefix) bool { return p.Addr().Is6() == ipv6 }
	return na.Zone != nb.Zone ||
		len(sa.SourceRanges) > 0 && !slices.Equal(na.Addrs, nb.Addrs) ||
		slices.ContainsFunc(na.PodCIDRs, isFamily) != slices.ContainsFunc(nb.PodCIDRs, isFamily)
}

func (m *model) ofFamily(n cluster.Name, ipv6 bool) []*cluster.Slice {
	return slices.DeleteFunc(m.owned(n), func(s *cluster.Slice) bool { return s.IPv6 != ipv6 })
}

const serviceNames = 3

func serviceName(i int) cluster.Name { return name(fmt.Sprintf("svc-%d", i)) }

func randomService(rng *rand.Rand) *cluster.Service {
	s := service(serviceName(rng.IntN(serviceNames)).Name)
	s.Created = int64(rng.IntN(2))
	s.ClusterIPs = [][]netip.Addr{s.ClusterIPs, s.ClusterIPs[:1], s.ClusterIPs[1:], nil}[rng.IntN(4)]
	if rng.IntN(2) == 0 {
		s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	}
	return s
}

func randomSlice(rng *rand.Rand) *cluster.Slice {
	addr := []string{"10.0.0.%d", "fd00::%d"}[rng.IntN(2)]
	return sliceOf(fmt.Sprintf("slice-%d", rng.IntN(4)), serviceName(rng.IntN(serviceNames)).Name,
		fmt.Sprintf(addr, rng.IntN(3)))
}

func randomNode(rng *rand.Rand) *cluster.Node {
	n := &cluster.Node{Name: "node-1", Zone: []string{"", "a", "b"}[rng.IntN(3)], Leaving: rng.IntN(4) == 0}
	if rng.IntN(2) == 0 {
		n.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{172, 18, 0, byte(rng.IntN(2))})}
	}
	for _, p := range []string{"10.1.0.0/24", "fd00:1::/64"} {
		if rng.IntN(2) == 0 {
			n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(p))
		}
	}
	return n
}

func randomCIDR(rng *rand.Rand) *cluster.ServiceCIDR {
	c := &cluster.ServiceCIDR{Name: fmt.Sprintf("cidr-%d", rng.IntN(3))}
	for i := range 3 {
		if rng.IntN(2) == 0 {
			c.Prefixes = append(c.Prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(90 + i)}), 16))
		}
	}
	return c
}
