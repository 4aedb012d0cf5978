package hns_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

// Each verb keeps the contract of package plane, on an HNS with modification and on one without
// (DP-51).
func TestVerbs(t *testing.T) {
	old := hnsfake.Everything
	old.ModifyLoadbalancer = false
	for name, features := range map[string]hns.Features{"modify": hnsfake.Everything, "delete and create": old} {
		t.Run(name, func(t *testing.T) {
			planetest.Verbs(t, func(testing.TB) planetest.Kernel { return kernel(newNode(hns.L2Bridge, features)) })
		})
	}
}

// Changes of one namespace leave load balancers of others alone (TN-01).
func TestTenants(t *testing.T) {
	planetest.Tenants(t, 5, func(testing.TB) planetest.Kernel {
		return kernel(newNode(hns.L2Bridge, hnsfake.Everything))
	})
}

// objectBytes and referenceBytes are assumed sizes of an object and of a reference to an endpoint
// in HNS.
const objectBytes, referenceBytes = 1024, 36

// One tenant's objects take heap and memory of HNS in proportion to their bytes (TN-91).
func TestMemoryOfTenants(t *testing.T) {
	planetest.Memory(t, 8, 500, 700, func(t testing.TB) planetest.Kernel {
		n := newNode(hns.L2Bridge, hnsfake.Everything)
		t.Cleanup(func() { runtime.KeepAlive(n) }) // else its memory would count as the plane's
		k := kernel(n)
		k.Bytes = func(lb.Family) (bytes int, err error) {
			state := n.State()
			for _, l := range state.LoadBalancers {
				bytes += objectBytes + referenceBytes*len(l.HostComputeEndpoints)
			}
			return bytes + objectBytes*len(state.Endpoints), nil
		}
		return k
	})
}

func kernel(n *windowsNode) planetest.Kernel {
	return planetest.Kernel{
		Preserves: true,
		New: func(f lb.Family) (planetest.Plane, error) {
			p, err := hns.New(n.config(f))
			return testPlane{p, n}, err
		},
		Slow: func(f lb.Family) (planetest.Plane, error) {
			p, err := hns.New(n.config(f))
			if err == nil {
				p.SetStep(20)
			}
			return testPlane{p, n}, err
		},
		Damage: func(f lb.Family, rnd *rand.Rand) error {
			balancers, endpoints := n.own(f)
			switch one := slices.Concat(balancers, endpoints); rnd.IntN(3) {
			case 0:
				n.Damage(one[rnd.IntN(len(one))])
			case 1: // another program redirects a load balancer
				return n.mislead(balancers[rnd.IntN(len(balancers))])
			default:
				return n.leak(f, rnd.IntN(200))
			}
			return nil
		},
		Wipe: func(f lb.Family) error {
			balancers, endpoints := n.own(f)
			for _, id := range slices.Concat(balancers, endpoints) {
				n.Damage(id)
			}
			return nil
		},
	}
}

// mislead replaces a load balancer by one with a single endpoint.
func (n *windowsNode) mislead(id string) error {
	ctx := context.Background()
	for _, l := range n.State().LoadBalancers {
		if l.ID == id {
			if err := n.DeleteLoadBalancer(ctx, id); err != nil {
				return err
			}
			l.ID, l.HostComputeEndpoints = "", l.HostComputeEndpoints[:1]
			_, err := n.CreateLoadBalancer(ctx, l)
			return err
		}
	}
	return fmt.Errorf("no load balancer %s", id)
}

// leak creates leftovers of an earlier run: an endpoint, and the load balancer of a deleted
// Service.
func (n *windowsNode) leak(f lb.Family, i int) error {
	ctx, w := context.Background(), planetest.World{Family: f}
	a := w.Addr(100, 10000+i)
	e, err := n.CreateEndpoint(ctx, hns.Endpoint{
		Name: "kube-proxy " + a.String(), HostComputeNetwork: n.network, Flags: hns.RemoteEndpoint,
		SchemaVersion: hns.Version2,
		MacAddress:    "02-11-00-00-00-00", IPConfigurations: []hns.IPConfig{{IPAddress: a.String()}},
	})
	if err != nil {
		return err
	}
	l := hns.LoadBalancer{
		HostComputeEndpoints: []string{e.ID}, FrontendVIPs: []string{w.Addr(10, 5000+i).String()},
		SchemaVersion: hns.Version2,
		PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 80, Flags: hns.MappingILB |
			hns.MappingLocalRoutedVIP}},
	}
	if f == lb.IPv6 {
		l.Flags = hns.FlagIPv6
	}
	_, err = n.CreateLoadBalancer(ctx, l)
	return err
}
