package hns_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

// FuzzFailures: whatever changes, fails, goes and comes back, when HNS works again an audit or a Reset that a verb asks for ends where a
// fresh start ends. No object is leaked, and none of others was touched (PN-76).
func FuzzFailures(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(seed, uint8(40*seed), uint8(seed), uint8(60))
	}
	f.Fuzz(func(t *testing.T, seed uint64, faults, kind, steps uint8) {
		c := newTurmoil(t, seed, kind)
		c.often = float64(faults) / 512
		for range steps {
			c.step()
		}
		c.settle()
	})
}

// TestFailures does so for many seeds.
func TestFailures(t *testing.T) {
	n := 200
	if testing.Short() {
		n = 20
	}
	for seed := range uint64(n) {
		if t.Failed() {
			return
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := newTurmoil(t, seed, uint8(seed))
			c.often = []float64{0, 0.02, 0.2, 0.5}[seed/8%4]
			for range 60 {
				c.step()
			}
			c.settle()
		})
	}
}

// turmoil is a node on which everything goes wrong: an HNS, a plane of each family, and others who use the same HNS.
type turmoil struct {
	*testing.T
	*site
	rnd    *rand.Rand
	often  float64 // how many of the calls fail
	planes [2]*side
	told   []string // the last steps, for a failure
}

// side is a family's.
type side struct {
	w     planetest.World
	plane *hns.Plane
	table *lb.Table
	// owed are changes that the engine would try again; lost: it owes a Reset.
	owed []lb.Change
	lost bool
}

// site is an HNS and what others have there.
type site struct {
	*hnsfake.Fake
	network string
	kind    hns.NetworkType
	facts   hnsfake.Facts
	pods    map[int]string // the endpoints of the pods of this node, by number
}

// podsOfNode are how many pods there are on this node: those with even numbers; those with odd ones are elsewhere.
const podsOfNode = 12

var worlds = [2]planetest.World{{Family: lb.IPv4}, {Family: lb.IPv6}}

func newSite(kind hns.NetworkType, facts hnsfake.Facts) *site {
	s := &site{Fake: hnsfake.With(facts), kind: kind, facts: facts}
	s.come()
	return s
}

// come makes the network and what others have in it, as after the start of a node.
func (s *site) come() {
	n := hns.Network{Name: labNetwork, Type: s.kind, ManagementIP: worlds[0].Addr(192, 1).String(), HostMAC: hostMAC}
	for _, w := range worlds {
		n.Policies = append(n.Policies, policy(hns.PolicyRemoteSubnetRoute, hns.RemoteSubnet{
			DestinationPrefix: w.Node().Pods.Prefixes[0].String(), ProviderAddress: w.Addr(192, 2).String()}))
	}
	s.network, s.pods = s.AddNetwork(n), map[int]string{}
	for i := range podsOfNode {
		s.addPod(i)
	}
	s.SetServices(slices.Concat(worlds[0].Node().ServiceCIDRs, worlds[1].Node().ServiceCIDRs)...)
	s.stranger(s.AddPod(s.network, "stranger's pod", worlds[0].Addr(100, 1<<21), worlds[1].Addr(100, 1<<21)))
}

func sources() [2]netip.Addr {
	return [2]netip.Addr{worlds[0].Addr(100, 1<<20), worlds[1].Addr(100, 1<<20)}
}

func (s *site) addPod(i int) {
	s.pods[i] = s.AddPod(s.network, fmt.Sprint("pod ", i), worlds[0].Addr(100, 2*i), worlds[1].Addr(100, 2*i))
}

// stranger is another program, with an endpoint of another node and load balancers of its own.
func (s *site) stranger(pod string) {
	ctx := context.Background()
	e, err := s.CreateEndpoint(ctx, hns.Endpoint{Name: "stranger", HostComputeNetwork: s.network, Flags: hns.RemoteEndpoint,
		MacAddress: "02-22-00-00-00-01", SchemaVersion: hns.Version2, IPConfigurations: []hns.IPConfig{{IPAddress: "100.200.0.1"}},
		Policies: []hns.Policy{policy(hns.PolicyProviderAddress, hns.AddressSetting{ProviderAddress: "192.0.0.3"})}})
	if err != nil {
		panic(err)
	}
	s.Foreign(e.ID)
	for i, to := range []string{e.ID, pod} {
		l := hns.LoadBalancer{FrontendVIPs: []string{fmt.Sprintf("9.9.9.%d", i+1)}, HostComputeEndpoints: []string{to}, SchemaVersion: hns.Version2,
			PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 53, ExternalPort: 53, Flags: hns.MappingILB}}}
		if s.kind == hns.Overlay {
			l.SourceVIP = worlds[0].Addr(192, 1).String()
		}
		made, err := s.CreateLoadBalancer(ctx, l)
		if err != nil {
			panic(err)
		}
		s.Foreign(made.ID)
	}
}

func newTurmoil(t *testing.T, seed uint64, kind uint8) *turmoil {
	facts := hnsfake.Assumed(hnsfake.Builds[int(kind>>3)%len(hnsfake.Builds)])
	facts.Features.ModifyLoadbalancer = facts.Features.ModifyLoadbalancer && kind&1 == 0
	facts.Features.DSR = kind&2 == 0
	facts.Features.IPv6DualStack = true // one of the two planes is of IPv6
	network := hns.L2Bridge
	if kind&4 != 0 {
		network = hns.Overlay
	}
	c := &turmoil{T: t, site: newSite(network, facts), rnd: rand.New(rand.NewPCG(seed, 1))}
	for i, w := range worlds {
		c.planes[i] = &side{w: w, table: &lb.Table{Family: w.Family, Node: w.Node()}, lost: true}
		c.restart(c.planes[i])
	}
	c.FailWith(c.fault)
	return c
}

// fault is how the next call fails.
func (c *turmoil) fault(call hnsfake.Call) *hnsfake.Fault {
	if c.rnd.Float64() >= c.often {
		return nil
	}
	faults := []hnsfake.Fault{
		{Code: hns.CodeElementNotFound}, {Code: hns.CodeAlreadyExists}, {Code: hns.CodePortExists}, {Code: hns.CodeAccessDenied},
		{Code: hns.CodeServiceUnreachable}, {Code: hns.CodeServiceUnreachable, Done: true},
		{Kind: hns.ErrTimeout}, {Kind: hns.ErrTimeout, Done: true}, {Kind: hns.ErrFailed}, {Kind: hns.ErrFailed, Done: true},
		{Code: hns.CodeHasReferences}, {Code: hns.CodeInvalidPolicy}, {Half: true}, {Late: 1 + c.rnd.IntN(6)},
	}
	fault := &faults[c.rnd.IntN(len(faults))]
	if call.Name == "CreateLoadBalancer" && fault.Code == hns.CodeInvalidPolicy {
		return nil // it would be taken for a flag that this build does not know, for good
	}
	return fault
}

func (c *turmoil) restart(s *side) {
	p, err := hns.New(hns.Config{Family: s.w.Family, HNS: c.Fake, Network: labNetwork, DSR: true, SourceVIP: sources()[s.w.Family/6]})
	if err != nil {
		c.Fatal(err)
	}
	s.plane, s.lost, s.owed = p, true, nil
}

func (c *turmoil) tell(format string, args ...any) {
	c.told = append(c.told, fmt.Sprintf(format, args...))
}

// step is something that happens.
func (c *turmoil) step() {
	s := c.planes[c.rnd.IntN(2)]
	switch n := c.rnd.IntN(40); {
	case n < 22:
		c.change(s)
	case n < 25:
		c.owe(s)
	case n < 28:
		c.audit(s)
	case n < 29:
		c.tell("%s restarts", s.w.Family)
		c.restart(s)
	case n < 30:
		c.networkGoes()
	case n < 33:
		i := c.rnd.IntN(podsOfNode)
		if id := c.pods[i]; id != "" {
			c.tell("pod %d goes", i)
			c.RemovePod(id)
			c.pods[i] = ""
		} else {
			c.tell("pod %d comes", i)
			c.evict(i)
			c.addPod(i)
		}
	case n < 36:
		c.harm()
	case n < 38:
		node := s.w.Node()
		if c.rnd.IntN(2) == 0 {
			node.NodePorts = nil
		}
		c.tell("%s set node %v", s.w.Family, node.NodePorts)
		s.table.Node = node
		c.ended(s, s.plane.SetNode(c.Context(), node))
	default:
		c.ended(s, s.plane.Probe(c.Context()))
	}
}

// evict removes endpoints of this proxy that have the pod's addresses: its CNI cannot make the pod before they are gone.
func (c *turmoil) evict(i int) {
	for _, e := range c.State().Endpoints {
		for _, a := range e.IPConfigurations {
			if a.IPAddress == worlds[0].Addr(100, 2*i).String() || a.IPAddress == worlds[1].Addr(100, 2*i).String() {
				c.Damage(e.ID)
			}
		}
	}
}

// networkGoes has the network go and come back, as a restart of the node or of the CNI does.
func (c *turmoil) networkGoes() {
	c.tell("the network goes")
	c.RemoveNetwork(c.site.network)
	for _, s := range c.planes {
		if c.rnd.IntN(2) == 0 {
			c.change(s)
		}
	}
	c.tell("the network comes back")
	c.FailWith(nil)
	c.come()
	c.FailWith(c.fault)
}

// harm is what somebody with the rights of an administrator does to our objects.
func (c *turmoil) harm() {
	var ids []string
	st := c.State()
	for _, l := range st.LoadBalancers {
		if !strings.HasPrefix(strings.Join(l.FrontendVIPs, ","), "9.9.9.") {
			ids = append(ids, l.ID)
		}
	}
	for _, e := range st.Endpoints {
		if e.Flags&hns.RemoteEndpoint != 0 && e.Name != "stranger" {
			ids = append(ids, e.ID)
		}
	}
	if len(ids) > 0 {
		id := ids[c.rnd.IntN(len(ids))]
		c.tell("%s is removed", id)
		c.Damage(id)
	}
}

// change has a Service come, go, or be another.
func (c *turmoil) change(s *side) {
	i := c.rnd.IntN(6)
	o, fronts := s.w.ClusterIP(i, 0, 0)
	switch c.rnd.IntN(8) {
	case 0:
		fronts = nil
	case 1:
	case 2, 3:
		o, fronts = c.service(s, i, true)
	default:
		o, fronts = c.service(s, i, false)
	}
	changes, _ := s.table.Replace(o, fronts)
	c.tell("%s changes %s", s.w.Family, o.Name)
	s.owed = append(s.owed, changes...)
	c.owe(s)
}

// service has random backends: which pods are of this node follows from their numbers.
func (c *turmoil) service(s *side, i int, full bool) (lb.Owner, []*lb.Frontend) {
	first, n := c.rnd.IntN(2*podsOfNode-6), 1+c.rnd.IntN(5)
	o, fronts := s.w.ClusterIP(i, first, n)
	if full {
		o, fronts = s.w.Full(i, first, n, c.rnd.IntN(min(n, 2)+1), time.Duration(c.rnd.IntN(2))*time.Hour)
		preserve := c.rnd.IntN(3) == 0
		for _, f := range fronts {
			f.Sources = nil
			f.PreserveDestination = preserve && (f.Kind == lb.ExternalIP || f.Kind == lb.LoadBalancer)
		}
	}
	for _, f := range fronts {
		for _, r := range f.Routes {
			if r.To == nil {
				continue
			}
			all := slices.Collect(r.To.Backends.All())
			for j := range all {
				raw := all[j].Addr.Addr().AsSlice()
				all[j].Local = raw[len(raw)-1]%2 == 0
			}
			r.To.Backends = lb.BackendsOf(all...)
		}
	}
	return o, fronts
}

// owe tries what is owed, as the engine does.
func (c *turmoil) owe(s *side) {
	if s.lost {
		c.reset(s)
		return
	}
	if len(s.owed) == 0 {
		return
	}
	for i := range s.owed { // what is wanted by now
		s.owed[i].New = s.table.Get(s.owed[i].Key)
	}
	if c.rnd.IntN(3) == 0 {
		c.rnd.Shuffle(len(s.owed), func(i, j int) { s.owed[i], s.owed[j] = s.owed[j], s.owed[i] })
	}
	_, err := s.plane.Apply(c.Context(), s.owed)
	if c.ended(s, err); err == nil {
		s.owed = nil
	}
}

func (c *turmoil) reset(s *side) {
	res, err := s.plane.Reset(c.Context(), s.table)
	c.tell("%s reset: %v", s.w.Family, err)
	if err != nil {
		return
	}
	s.lost, s.owed = false, nil
	for _, k := range res.Later {
		s.owed = append(s.owed, lb.Change{Key: k, New: s.table.Get(k)})
	}
}

func (c *turmoil) audit(s *side) {
	_, err := s.plane.Audit(c.Context(), c.rnd.IntN(2) == 0)
	c.tell("%s audit: %v", s.w.Family, err)
	c.ended(s, err)
}

func (c *turmoil) ended(s *side, err error) {
	if err != nil {
		c.tell("%s: %v", s.w.Family, err)
	}
	s.lost = s.lost || errors.Is(err, plane.ErrStateLost)
}

// settle lets HNS work again, and has the engine do what it does then: what it owes, and full audits.
func (c *turmoil) settle() {
	c.FailWith(nil)
	c.CatchUp()
	for i, id := range c.pods {
		if id == "" {
			c.evict(i)
			c.addPod(i)
		}
	}
	c.tell("HNS works again")
	for range 4 {
		for _, s := range c.planes {
			c.owe(s)
			if !s.lost {
				_, err := s.plane.Audit(c.Context(), true)
				c.tell("%s audit: %v", s.w.Family, err)
				c.ended(s, err)
			}
		}
	}
	fresh := newSite(c.kind, c.facts)
	for _, s := range c.planes {
		if s.lost || len(s.owed) > 0 {
			c.Errorf("%s: a Reset is owed: %t, changes: %d", s.w.Family, s.lost, len(s.owed))
		}
		p, err := hns.New(hns.Config{Family: s.w.Family, HNS: fresh.Fake, Network: labNetwork, DSR: true, SourceVIP: sources()[s.w.Family/6]})
		if err == nil {
			_, err = planetest.ResetAll(c.Context(), p, s.table)
		}
		if err != nil {
			c.Fatal(err)
		}
	}
	if got, want := c.Own(), fresh.Own(); got != want {
		c.Errorf("not what a fresh start makes (+ too much, - missing):\n%s", diff(want, got))
	}
	if touched := c.Touched(); len(touched) > 0 {
		c.Errorf("objects of others: %q", touched)
	}
	for _, s := range c.planes {
		if n, err := s.plane.Audit(c.Context(), true); n != 0 || err != nil {
			c.Errorf("%s: one more audit mends %d, %v", s.w.Family, n, err)
		}
	}
	if c.Failed() {
		c.Logf("%s", strings.Join(c.told[max(0, len(c.told)-60):], "\n"))
	}
}

func diff(want, got string) string {
	var out []string
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for _, l := range a {
		if !slices.Contains(b, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			out = append(out, "+ "+l)
		}
	}
	return strings.Join(out, "\n")
}

// An HNS that hangs, at any call of any verb, holds nobody longer than the verb's context lasts, and afterwards all is as it should be.
func TestHangs(t *testing.T) {
	for _, done := range []bool{false, true} {
		for nth := range 12 {
			synctest.Test(t, func(t *testing.T) {
				c := newTurmoil(t, uint64(nth), 0)
				s := c.planes[nth%2]
				for _, p := range c.planes {
					for i := range 4 {
						p.table.Replace(c.service(p, i, false))
					}
					c.reset(p)
					c.owe(p)
				}
				calls := 0
				c.FailWith(func(hnsfake.Call) *hnsfake.Fault {
					if calls++; calls-1 < nth {
						return nil
					}
					return &hnsfake.Fault{Hangs: true, Done: done}
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				changes := slices.Concat(first(s.table.Replace(c.service(s, 1, true))), first(s.table.Replace(c.service(s, 5, true))))
				_, err := s.plane.Apply(ctx, changes)
				if took := time.Since(start); took > time.Minute || err == nil && nth < 4 {
					t.Errorf("call %d hangs: the verb took %s, %v", nth, took, err)
				}
				if c.ended(s, err); err != nil {
					s.owed = changes
				}
				c.settle()
			})
		}
	}
}

func first[A, B any](a A, _ B) A { return a }
