package hns_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/hns"
	"kube-proxy/plane/hns/hnsfake"
	"kube-proxy/plane/planetest"
)

// windowsNode is an HNS with the network of a node in planetest's worlds, and a CNI.
type windowsNode struct {
	*hnsfake.Fake
	network string
	// pods: who has such an address is a pod of this node, which the CNI has made when the proxy asks for it.
	pods func(netip.Addr) bool
}

const networkName = "cbr0"

func newNode(t hns.NetworkType, f hns.Features) *windowsNode {
	n := &windowsNode{Fake: hnsfake.New(f), pods: func(netip.Addr) bool { return true }}
	n.addNetwork(t)
	return n
}

func (n *windowsNode) addNetwork(t hns.NetworkType) {
	n.network = n.AddNetwork(hns.Network{Name: networkName, Type: t, ManagementIP: planetest.World{Family: lb.IPv4}.Addr(192, 1).String()})
}

// EndpointsAt is part of hns.HNS.
func (n *windowsNode) EndpointsAt(ctx context.Context, network, address string) ([]hns.Endpoint, error) {
	a := netip.MustParseAddr(address)
	if n.pods(a) {
		n.tryPod(network, a)
	}
	return n.Fake.EndpointsAt(ctx, network, address)
}

// tryPod makes a pod's endpoint, unless the address is taken or the network has gone, at which the fake panics.
func (n *windowsNode) tryPod(network string, a netip.Addr) {
	defer func() { _ = recover() }()
	n.AddPod(network, "pod "+a.String(), a)
}

// has reports whether an endpoint has the address.
func (n *windowsNode) has(a netip.Addr) bool {
	for _, e := range n.State().Endpoints {
		for _, c := range e.IPConfigurations {
			if c.IPAddress == a.String() {
				return true
			}
		}
	}
	return false
}

func (n *windowsNode) config(f lb.Family) hns.Config {
	return hns.Config{Family: f, HNS: n, Network: networkName}
}

func (n *windowsNode) plane(t testing.TB, f lb.Family) *hns.Plane {
	t.Helper()
	return newPlane(t, n.config(f))
}

func newPlane(t testing.TB, c hns.Config) *hns.Plane {
	t.Helper()
	p, err := hns.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// own are the ids of what the proxy made for a family.
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
		for _, c := range e.IPConfigurations {
			if c.IPAddress == a {
				return e
			}
		}
	}
	t.Fatalf("no endpoint has %s:\n%s", a, n.Own())
	return hns.Endpoint{}
}

// balancerOf returns the load balancer of a key; ok is false if there is none.
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

func reset(t testing.TB, p *hns.Plane, want *lb.Table) {
	t.Helper()
	if _, err := resetAll(p, want); err != nil {
		t.Fatal(err)
	}
}

// resetAll resets, and applies what is left for later row by row.
func resetAll(p *hns.Plane, want *lb.Table) ([]lb.Key, error) {
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

func apply(t testing.TB, p *hns.Plane, changes []lb.Change, _ []lb.Contest) {
	t.Helper()
	if _, err := p.Apply(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
}

// everyThird address is of this node, as in planetest's worlds.
func everyThird(a netip.Addr) bool {
	b := a.AsSlice()
	b = b[len(b)-3:]
	return (int(b[0])<<16|int(b[1])<<8|int(b[2]))%3 == 0
}

func serviceName(i int) string { return fmt.Sprintf("ns/svc-%d", i) }
