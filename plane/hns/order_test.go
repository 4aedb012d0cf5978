package hns_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

// asked returns the names of the calls so far, and forgets them.
func (n *windowsNode) trace() (asked func() []string) {
	var calls []string
	n.FailWith(func(c hnsfake.Call) *hnsfake.Fault {
		calls = append(calls, c.Name)
		return nil
	})
	return func() []string {
		got := calls
		calls = nil
		return got
	}
}

// Endpoints change in place where HNS can, and connections survive. Otherwise new endpoints come
// first and old ones go last, and no call separates the deletion and the creation of the load
// balancer (DP-46).
func TestOrderDP46(t *testing.T) {
	old := hnsfake.Everything
	old.ModifyLoadbalancer = false
	lying := func(n *windowsNode) { // it claims the feature, and lacks it
		n.always("ModifyLoadBalancer", hnsfake.Fault{Code: hns.CodeNotImplemented})
	}
	inPlace := []string{"CreateEndpoint", "ModifyLoadBalancer", "DeleteEndpoint"}
	recreate := []string{"CreateEndpoint", "DeleteLoadBalancer", "CreateLoadBalancer", "DeleteEndpoint"}
	for name, c := range map[string]struct {
		features hns.Features
		prepare  func(*windowsNode)
		want     []string
		lives    bool
	}{
		"in place":                   {hnsfake.Everything, nil, inPlace, true},
		"delete and create":          {old, nil, recreate, false},
		"in place, which is refused": {hnsfake.Everything, lying, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(hns.L2Bridge, c.features)
			p, table := n.plane(t, lb.IPv4), world.Table(0, 0)
			table.Replace(world.ClusterIP(0, 30, 2))
			reset(t, p, table)
			before, _ := n.balancerOf("10.0.0.1", 80)
			asked := func() []string { return nil }
			if c.prepare != nil {
				c.prepare(n)
			} else {
				asked = n.trace()
			}
			for _, first := range []int{33, 36, 39} { // other endpoints each time
				apply(t, p, planetest.Changes(table.Replace(world.ClusterIP(0, first, 2))))
				if got := slices.DeleteFunc(asked(),
					func(s string) bool { return s == "EndpointsAt" }); c.want != nil && !slices.Equal(got, c.want) {
					t.Errorf("calls %v, want %v", got, c.want)
				}
			}
			after, _ := n.balancerOf("10.0.0.1", 80)
			if lives := before.ID == after.ID; lives != c.lives {
				t.Errorf("connections live on: %t, want %t", lives, c.lives)
			}
			if len(after.HostComputeEndpoints) != 2 {
				t.Errorf("%+v", after)
			}
		})
	}
}

// If HNS refuses a new load balancer after the deletion of the old one, the old one is restored
// (DP-46).
func TestComesBackDP46(t *testing.T) {
	old := hnsfake.Everything
	old.ModifyLoadbalancer = false
	n := newNode(hns.L2Bridge, old)
	p, table := n.plane(t, lb.IPv4), world.Table(0, 0)
	table.Replace(world.ClusterIP(0, 30, 2))
	table.Replace(world.ClusterIP(1, 60, 2))
	reset(t, p, table)
	before := n.Own()
	n.once("CreateLoadBalancer", hnsfake.Fault{Code: hns.CodeInvalidPolicy})
	changes, _ := table.Replace(world.ClusterIP(0, 33, 2))
	_, err := p.Apply(t.Context(), changes)
	says(t, err, "10.0.0.1:80/tcp", "ns/svc-0:http", "0x803b000d")
	if after := n.Own(); after != before {
		t.Errorf("held:\n%s\nwant:\n%s", after, before)
	}
	apply(t, p, changes)
	if n.has(world.Addr(100, 31)) || !n.has(world.Addr(100, 34)) {
		t.Errorf("the change is not in force:\n%s", n.Own())
	}
	if repaired, err := p.Audit(t.Context(), true); repaired != 0 || err != nil {
		t.Errorf("an audit repaired %d, %v", repaired, err)
	}
}

// A call that fails but takes effect leaves an unknown load balancer with the key. The plane
// requests an audit, which adopts it.
func TestAnswerLost(t *testing.T) {
	n, p, table := started(t, 1, 2)
	n.always("CreateLoadBalancer", hnsfake.Fault{Code: hns.CodeServiceUnreachable, Done: true})
	changes, _ := table.Replace(world.ClusterIP(5, 30, 2))
	_, err := p.Apply(t.Context(), changes)
	says(t, err, "10.0.0.6:80/tcp", "HNS cannot be reached")
	n.FailWith(nil)
	_, err = p.Apply(t.Context(), changes)
	says(t, err, "already exists")
	select {
	case <-p.Drift():
	default:
		t.Fatal("no audit is requested")
	}
	if _, err := p.Audit(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if res, err := p.Apply(t.Context(), changes); err != nil || res.Written {
		t.Errorf("after the audit: written %t, %v", res.Written, err)
	}
	if repaired, err := p.Audit(t.Context(), true); repaired != 0 || err != nil {
		t.Errorf("an audit repaired %d, %v", repaired, err)
	}
}

// otherwise is an HNS that shows objects differently from the request: load balancers with another
// flag, IPv6 addresses in capitals, endpoints with another policy.
type otherwise struct{ *windowsNode }

func (o otherwise) balancer(l hns.LoadBalancer) hns.LoadBalancer {
	l.Flags |= 64
	return l
}

func (o otherwise) LoadBalancers(ctx context.Context) ([]hns.LoadBalancer, error) {
	all, err := o.windowsNode.LoadBalancers(ctx)
	for i := range all {
		all[i] = o.balancer(all[i])
	}
	return all, err
}

func (o otherwise) CreateLoadBalancer(ctx context.Context, l hns.LoadBalancer) (hns.LoadBalancer, error) {
	made, err := o.windowsNode.CreateLoadBalancer(ctx, l)
	return o.balancer(made), err
}

func (o otherwise) ModifyLoadBalancer(ctx context.Context, l hns.LoadBalancer) (hns.LoadBalancer, error) {
	made, err := o.windowsNode.ModifyLoadBalancer(ctx, l)
	return o.balancer(made), err
}

func (o otherwise) Endpoints(ctx context.Context, network string) ([]hns.Endpoint, error) {
	all, err := o.windowsNode.Endpoints(ctx, network)
	for i := range all {
		all[i].Policies = append(slices.Clone(all[i].Policies), hns.Policy{Type: "L2Driver"})
		all[i].IPConfigurations = slices.Clone(all[i].IPConfigurations)
		for j, c := range all[i].IPConfigurations {
			all[i].IPConfigurations[j].IPAddress = strings.ToUpper(c.IPAddress)
		}
	}
	return all, err
}

// Objects that HNS shows differently are still ours and unchanged: repairing them would cut
// connections with each audit. Stale ones are still removed.
func TestShownOtherwise(t *testing.T) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		n, w := newNode(hns.L2Bridge, hnsfake.Everything), planetest.World{Family: f}
		cfg := n.config(f)
		cfg.HNS = otherwise{n}
		p, table := newPlane(t, cfg), w.Table(3, 3)
		reset(t, p, table)
		for i := range 3 {
			apply(t, p, planetest.Changes(table.Replace(w.ClusterIP(1, 3*i, 3))))
			if repaired, err := p.Audit(t.Context(), true); repaired != 0 || err != nil {
				t.Errorf("%s: an audit repaired %d, %v", f, repaired, err)
			}
		}
		table.Replace(lb.Owner{Name: serviceName(1)}, nil)
		reset(t, p, table)
		n.isFresh(t, f, table)
	}
}
