package hns_test

import (
	"context"
	"encoding/json"
	"fmt"

	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

// windowsNode is an HNS with the network of a node in planetest's worlds, and a CNI.
type windowsNode struct {
	*hnsfake.Fake
	network string
	// noCNI: pods of this node have no endpoints except those that a test creates.
	noCNI bool
}

const networkName = "cbr0"

func newNode(t hns.NetworkType, f hns.Features) *windowsNode {
	n := &windowsNode{Fake: hnsfake.New(f)}
	n.addNetwork(t)
	return n
}

// oldNode returns a node with that build of Windows.
func oldNode(t hns.NetworkType, build string) *windowsNode {
	n := &windowsNode{Fake: hnsfake.With(hnsfake.Assumed(build))}
	n.addNetwork(t)
	return n
}

const hostMAC = "00-15-5D-00-00-01"

// route returns the policy of an overlay network that leads to the pods of another node.
func route(pods, node string) hns.Policy {
	return policy(hns.PolicyRemoteSubnetRoute, hns.RemoteSubnet{DestinationPrefix: pods, IsolationId: 4096,
		ProviderAddress: node, DistributedRouterMacAddress: "00-11-22-33-44-55"})
}

func policy(kind string, settings any) hns.Policy {
	text, err := json.Marshal(settings)
	if err != nil {
		panic(err)
	}
	return hns.Policy{Type: kind, Settings: text}
}

func (n *windowsNode) addNetwork(t hns.NetworkType) {
	v4, v6 := planetest.World{Family: lb.IPv4}, planetest.World{Family: lb.IPv6}
	n.network = n.AddNetwork(hns.Network{Name: networkName, Type: t, ManagementIP: v4.Addr(192, 1).String(),
		HostMAC: hostMAC})
	n.SetServices(slices.Concat(v4.Node().ServiceCIDRs, v6.Node().ServiceCIDRs)...)
}

// schedule creates the endpoints of local backends, as the CNI plugin does before pods are ready.
func (n *windowsNode) schedule(rows ...*lb.Frontend) {
	if n == nil || n.noCNI || !n.HasNetwork(n.network) {
		return
	}
	for _, row := range rows {
		for _, r := range row.Routes {
			if r.To == nil {
				continue
			}
			for b := range r.To.Backends.All() {
				if a := b.Addr.Addr(); b.Local && !n.has(a) {
					n.AddPod(n.network, "pod "+a.String(), a)
				}
			}
		}
	}
}

// testPlane is a plane with a CNI that creates pods before each write.
type testPlane struct {
	*hns.Plane
	n *windowsNode
}

func (p testPlane) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	p.n.schedule(want.Sorted()...)
	return p.Plane.Reset(ctx, want)
}

// Dump returns our objects of both families.
func (p testPlane) Dump() string { return p.n.Own() }

func (p testPlane) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	var rows []*lb.Frontend
	for _, c := range changes {
		if c.New != nil {
			rows = append(rows, c.New)
		}
	}
	p.n.schedule(rows...)
	return p.Plane.Apply(ctx, changes)
}

// has reports whether an endpoint of the network has the address.
func (n *windowsNode) has(a netip.Addr) bool { return n.Has(n.network, a) }

// writes returns the number of calls since the last Counts that write.
func (n *windowsNode) writes() (calls int) {
	for call, made := range n.Counts() {
		if !slices.Contains([]string{"Features", "Networks", "Endpoints", "EndpointsAt", "LoadBalancers"}, call) {
			calls += made
		}
	}
	return calls
}

func (n *windowsNode) config(f lb.Family) hns.Config {
	return hns.Config{Family: f, HNS: n, Network: networkName}
}

func (n *windowsNode) plane(t testing.TB, f lb.Family) testPlane {
	t.Helper()
	return newPlane(t, n.config(f))
}

func newPlane(t testing.TB, c hns.Config) testPlane {
	t.Helper()
	p, err := hns.New(c)
	if err != nil {
		t.Fatal(err)
	}
	switch n := c.HNS.(type) {
	case *windowsNode:
		return testPlane{p, n}
	case otherwise:
		return testPlane{p, n.windowsNode}
	}
	t.Fatalf("no node has the HNS %T", c.HNS)
	return testPlane{}
}

// own returns the ids of the proxy's objects for a family.
func (n *windowsNode) own(f lb.Family) (balancers, endpoints []string) {
	s := n.State()
	for _, l := range s.LoadBalancers {
		if six := l.Flags&hns.FlagIPv6 != 0; six == (f == lb.IPv6) {
			balancers = append(balancers, l.ID)
		}
	}
	for _, e := range s.Endpoints {
		if e.Flags&hns.RemoteEndpoint != 0 && lb.FamilyOf(netip.MustParseAddr(e.IPConfigurations[0].IPAddress)) == f {
			endpoints = append(endpoints, e.ID)
		}
	}
	return balancers, endpoints
}

// endpointOf returns the endpoint that has the address.
func (n *windowsNode) endpointOf(t testing.TB, a string) hns.Endpoint {
	t.Helper()
	for _, e := range n.State().Endpoints {
		if e.Has(netip.MustParseAddr(a)) {
			return e
		}
	}
	t.Fatalf("no endpoint has %s:\n%s", a, n.Own())
	return hns.Endpoint{}
}

// balancerOf returns the load balancer of a key, if any.
func (n *windowsNode) balancerOf(vip string, port uint16) (l hns.LoadBalancer, ok bool) {
	for _, l := range n.State().LoadBalancers {
		has := ""
		if len(l.FrontendVIPs) > 0 {
			has = l.FrontendVIPs[0]
		}
		if has == vip && l.PortMappings[0].ExternalPort == port {
			return l, true
		}
	}
	return l, false
}

func reset(t testing.TB, p testPlane, want *lb.Table) {
	t.Helper()
	if _, err := resetAll(p, want); err != nil {
		t.Fatal(err)
	}
}

// resetAll resets, and applies the postponed frontends one by one.
func resetAll(p testPlane, want *lb.Table) ([]lb.Key, error) {
	res, err := p.Reset(context.Background(), want)
	if err != nil {
		return nil, err
	}
	var failed []lb.Key
	for _, k := range res.Later {
		if _, e := p.Apply(context.Background(), []lb.Change{{Key: k, New: want.Get(k)}}); e != nil {
			failed, err = append(failed, k), e
		}
	}
	return failed, err
}

// started returns a node with the newest HNS, and a plane that holds the table of some Services.
func started(t testing.TB, services, backends int) (*windowsNode, testPlane, *lb.Table) {
	t.Helper()
	n := newNode(hns.L2Bridge, hnsfake.Everything)
	p, table := n.plane(t, lb.IPv4), world.Table(services, backends)
	reset(t, p, table)
	return n, p, table
}

func apply(t testing.TB, p testPlane, changes []lb.Change) {
	t.Helper()
	if _, err := p.Apply(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
}

func serviceName(i int) string { return fmt.Sprintf("ns/svc-%d", i) }
