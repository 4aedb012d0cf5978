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

// TestWalk: after any changes and failures, once HNS works again, an audit or a requested Reset
// reaches the state of a fresh start. No object is leaked, and foreign objects are untouched
// (PN-76).
func TestWalk(t *testing.T) {
	n := 48
	if testing.Short() {
		n = 12
	}
	for seed := range uint64(n) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			planetest.Walk(t, seed, 60, seed%3 == 2, siteKernel(uint8(seed), []float64{0, 0.02, 0.2, 0.5}[seed/8%4]))
		})
	}
}

// FuzzFailures runs the same walk for any seed. Walks are short: the fuzzer ends one that takes 10
// s.
func FuzzFailures(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(seed, uint8(40*seed), uint8(seed), uint8(60))
	}
	f.Fuzz(func(t *testing.T, seed uint64, faults, kind, steps uint8) {
		planetest.Walk(t, seed, int(steps)%32, false, siteKernel(kind, float64(faults)/512))
	})
}

// siteKernel returns kernels with a type of network, a build of Windows, and with or without
// modification; while faults are on, that share of calls fails.
func siteKernel(kind uint8, often float64) func(testing.TB) planetest.Kernel {
	return func(t testing.TB) planetest.Kernel {
		facts := hnsfake.Assumed(hnsfake.Builds[int(kind>>3)%len(hnsfake.Builds)])
		facts.Features.ModifyLoadbalancer = facts.Features.ModifyLoadbalancer && kind&1 == 0
		facts.Features.DSR = kind&2 == 0
		facts.Features.IPv6DualStack = true // one of the two planes uses IPv6
		network := hns.L2Bridge
		if kind&4 != 0 {
			network = hns.Overlay
		}
		return newSite(network, facts).kernel(often)
	}
}

// site is an HNS with foreign objects.
type site struct {
	*windowsNode
	kind  hns.NetworkType
	facts hnsfake.Facts
	pods  map[int]string // the endpoints of the pods of this node, by number
}

// podsOfNode is the number of pods on this node, those with even numbers.
const podsOfNode = 12

var worlds = [2]planetest.World{{Family: lb.IPv4}, {Family: lb.IPv6}}

func newSite(kind hns.NetworkType, facts hnsfake.Facts) *site {
	s := &site{windowsNode: &windowsNode{Fake: hnsfake.With(facts), noCNI: true}, kind: kind, facts: facts}
	s.come()
	return s
}

// come creates the network and its foreign objects, as after the start of a node.
func (s *site) come() {
	s.addNetwork(s.kind)
	s.SetNetwork(s.network, func(n *hns.Network) {
		for _, w := range worlds {
			n.Policies = append(n.Policies, route(w.Node().Pods.Prefixes[0].String(), w.Addr(192, 2).String()))
		}
	})
	s.pods = map[int]string{}
	for i := range podsOfNode {
		s.addPod(i)
	}
	s.stranger(s.AddPod(s.network, "stranger's pod", worlds[0].Addr(100, 1<<21), worlds[1].Addr(100, 1<<21)))
}

func (s *site) addPod(i int) {
	s.pods[i] = s.AddPod(s.network, fmt.Sprint("pod ", i), worlds[0].Addr(100, 2*i), worlds[1].Addr(100, 2*i))
}

// stranger is another program, with an endpoint of another node and load balancers of its own.
func (s *site) stranger(pod string) {
	ctx := context.Background()
	e, err := s.CreateEndpoint(ctx, hns.Endpoint{Name: "stranger", HostComputeNetwork: s.network,
		Flags:      hns.RemoteEndpoint,
		MacAddress: "02-22-00-00-00-01", SchemaVersion: hns.Version2, IPConfigurations: []hns.IPConfig{
			{IPAddress: "100.200.0.1"}},
		Policies: []hns.Policy{policy(hns.PolicyProviderAddress, hns.AddressSetting{ProviderAddress: "192.0.0.3"})}})
	if err != nil {
		panic(err)
	}
	s.Foreign(e.ID)
	for i, to := range []string{e.ID, pod} {
		l := hns.LoadBalancer{FrontendVIPs: []string{fmt.Sprintf("9.9.9.%d", i+1)}, HostComputeEndpoints: []string{to},
			SchemaVersion: hns.Version2,
			PortMappings:  []hns.PortMapping{{Protocol: 6, InternalPort: 53, ExternalPort: 53, Flags: hns.MappingILB}}}
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

func (s *site) plane(f lb.Family) (testPlane, error) {
	cfg := s.config(f)
	cfg.DSR, cfg.SourceVIP = true, planetest.World{Family: f}.Addr(100, 1<<20)
	p, err := hns.New(cfg)
	return testPlane{p, s.windowsNode}, err
}

func (s *site) kernel(often float64) planetest.Kernel {
	return planetest.Kernel{
		Preserves: true,
		New:       func(f lb.Family) (planetest.Plane, error) { return s.plane(f) },
		Slow: func(f lb.Family) (planetest.Plane, error) {
			p, err := s.plane(f)
			if err == nil {
				p.SetStep(20)
			}
			return p, err
		},
		Damage: func(_ lb.Family, rnd *rand.Rand) error { return s.harm(rnd) },
		Faults: planetest.Faults{
			Begin: func(rnd *rand.Rand) {
				s.FailWith(func(call hnsfake.Call) *hnsfake.Fault {
					if rnd.Float64() >= often {
						return nil
					}
					return fault(call, rnd)
				})
			},
			End:   func() { s.FailWith(nil) },
			Flaky: s.facts.DeletesFail > 0,
			Events: []func(*rand.Rand) string{s.podMoves, s.podMoves, func(*rand.Rand) string {
				s.RemoveNetwork(s.network)
				s.come()
				return "the network goes and comes back"
			}},
			Calm: func() {
				s.CatchUp()
				for i, id := range s.pods {
					if id == "" {
						s.evict(i)
						s.addPod(i)
					}
				}
			},
			Check: func(t testing.TB, _ planetest.Plane, _ *lb.Table) {
				if touched := s.Touched(); len(touched) > 0 {
					t.Errorf("objects of others: %q", touched)
				}
			},
			Local: func(a netip.Addr) bool {
				for i := range podsOfNode {
					if a == worlds[0].Addr(100, 2*i) || a == worlds[1].Addr(100, 2*i) {
						return true
					}
				}
				return false
			},
		},
	}
}

// fault returns the next call's failure.
func fault(call hnsfake.Call, rnd *rand.Rand) *hnsfake.Fault {
	faults := []hnsfake.Fault{
		{Code: hns.CodeElementNotFound}, {Code: hns.CodeAlreadyExists}, {Code: hns.CodePortExists},
		{Code: hns.CodeAccessDenied},
		{Code: hns.CodeServiceUnreachable}, {Code: hns.CodeServiceUnreachable, Done: true},
		{Kind: hns.ErrTimeout}, {Kind: hns.ErrTimeout, Done: true}, {Kind: hns.ErrFailed},
		{Kind: hns.ErrFailed, Done: true},
		{Code: hns.CodeHasReferences}, {Code: hns.CodeInvalidPolicy}, {Late: 1 + rnd.IntN(6)},
	}
	fault := &faults[rnd.IntN(len(faults))]
	if call.Name == "CreateLoadBalancer" && fault.Code == hns.CodeInvalidPolicy {
		return nil // it would look like a flag that this build does not support
	}
	return fault
}

// podMoves removes or adds a pod of the node.
func (s *site) podMoves(rnd *rand.Rand) string {
	i := rnd.IntN(podsOfNode)
	if id := s.pods[i]; id != "" {
		s.RemovePod(id)
		s.pods[i] = ""
		return fmt.Sprintf("pod %d goes", i)
	}
	s.evict(i)
	s.addPod(i)
	return fmt.Sprintf("pod %d comes", i)
}

// evict removes our endpoints with a pod's addresses, which the CNI plugin needs.
func (s *site) evict(i int) {
	for _, e := range s.State().Endpoints {
		if e.Has(worlds[0].Addr(100, 2*i)) || e.Has(worlds[1].Addr(100, 2*i)) {
			s.Damage(e.ID)
		}
	}
}

// harm damages our objects as an administrator may.
func (s *site) harm(rnd *rand.Rand) error {
	var ids []string
	st := s.State()
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
	if len(ids) == 0 {
		return errors.New("there is nothing to damage")
	}
	s.Damage(ids[rnd.IntN(len(ids))])
	return nil
}

// If HNS hangs at any call, the verb ends with its context, and everything recovers afterwards.
func TestHangs(t *testing.T) {
	for _, done := range []bool{false, true} {
		for nth := range 12 {
			synctest.Test(t, func(t *testing.T) {
				facts := hnsfake.Assumed(hnsfake.Builds[0])
				facts.Features.IPv6DualStack = true
				s, w := newSite(hns.L2Bridge, facts), worlds[nth%2]
				p, err := s.plane(w.Family)
				if err != nil {
					t.Fatal(err)
				}
				table := &lb.Table{Family: w.Family, Node: w.Node()}
				for i := range 4 {
					table.Replace(w.ClusterIP(i, 4*i, 2)) // the first is a pod of this node, the second is not
				}
				if _, err := planetest.ResetAll(t.Context(), p, table); err != nil {
					t.Fatal(err)
				}
				calls := 0
				s.FailWith(func(hnsfake.Call) *hnsfake.Fault {
					calls++
					if calls-1 < nth {
						return nil
					}
					return &hnsfake.Fault{Hangs: true, Done: done}
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				changes := slices.Concat(planetest.Changes(table.Replace(w.Full(1, 8, 2, 1, 0))),
					planetest.Changes(table.Replace(w.Full(5, 12, 2, 1, time.Hour))))
				_, err = p.Apply(ctx, changes)
				if took := time.Since(start); took > time.Minute || err == nil && nth < 4 {
					t.Errorf("call %d hangs: the verb took %s, %v", nth, took, err)
				}
				s.FailWith(nil)
				s.CatchUp()
				for range 4 { // as the engine does
					if errors.Is(err, plane.ErrStateLost) {
						_, err = planetest.ResetAll(t.Context(), p, table)
					} else {
						_, err = p.Apply(t.Context(), changes)
					}
					if _, audit := p.Audit(t.Context(), true); err == nil {
						err = audit
					}
				}
				if err != nil {
					t.Error(err)
				}
				again := newSite(hns.L2Bridge, facts)
				fresh, err := again.plane(w.Family)
				if err == nil {
					_, err = planetest.ResetAll(t.Context(), fresh, table)
				}
				if got, want := p.Dump(), fresh.Dump(); err != nil || got != want {
					t.Errorf("call %d hangs, done %t: got:\n%s\nwant:\n%s\n%v", nth, done, got, want, err)
				}
			})
		}
	}
}
