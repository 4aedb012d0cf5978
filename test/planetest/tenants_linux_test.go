package planetest

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
	"kube-proxy/trace"
)

// listing is a plane that lists its frontends as lines. When a frontend changes its owner, and when
// a health check NodePort comes, the plane loses another one too.
type listing struct {
	Plane
	rows  map[lb.Key]*lb.Frontend
	loses lb.Key
}

func (p *listing) Reset(_ context.Context, want *lb.Table) (res plane.ResetResult, err error) {
	for f := range want.All() {
		p.rows[f.Key] = f
	}
	return res, nil
}

func (p *listing) Apply(_ context.Context, changes []lb.Change) (res plane.ApplyResult, err error) {
	for _, c := range changes {
		was := p.rows[c.Key]
		moves := was != nil && c.New != nil && was.Service != c.New.Service
		if moves || c.New != nil && c.New.Kind == lb.HealthCheck {
			delete(p.rows, p.loses)
		}
		p.rows[c.Key] = c.New
		if c.New == nil {
			delete(p.rows, c.Key)
		}
	}
	return res, nil
}

func (p *listing) Dump() (text string) {
	for _, f := range p.rows {
		text += f.String() + "\n"
	}
	return text
}

func (p *listing) TracePacket(context.Context, trace.Packet, mode.Walk) (is trace.Kernel, err error) {
	return
}

func (p *listing) Differences(context.Context, *lb.Table, func(trace.Difference) bool) error {
	return nil
}

// A new Service may take a key by its kind (SV-24), or for its health check NodePort at the node's
// address (TN-98), and nothing else with it.
func TestTenantsFindsLosses(t *testing.T) {
	w := World{Family: lb.IPv4}
	free, own := []netip.Addr{w.Addr(10, 9000)}, []netip.Addr{w.Addr(192, 1)}
	balanced := cluster.Service{Type: cluster.TypeLoadBalancer, LoadBalancerIPs: free}
	external, ofNode := cluster.Service{ExternalIPs: free}, cluster.Service{ExternalIPs: own}
	check := cluster.Service{Type: cluster.TypeLoadBalancer, ExternalPolicy: cluster.PolicyLocal,
		HealthCheckNodePort: 80}
	comes := func(n *neighbours, namespace string, host int, s cluster.Service) {
		s.Name, s.ClusterIPs = cluster.Name{Namespace: namespace, Name: "web"}, []netip.Addr{w.Addr(10, host)}
		s.Ports = []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}}
		n.acts(namespace, "comes", cluster.ServiceSet{Service: &s})
	}
	for _, c := range []struct {
		name          string
		first, second cluster.Service // both claim one address
		older         bool            // the second is older than the first
		loses         netip.Addr
		want          string
	}{
		{"a kind that precedes", external, balanced, false, netip.Addr{}, ""},
		{"the same kind", external, external, false, netip.Addr{}, ""},
		{"the same kind goes to an older one", external, external, true, netip.Addr{}, "against SV-24"},
		{"a frontend of another tenant is lost", external, balanced, false, w.Addr(10, 2),
			"no longer: 10.0.0.2:80/tcp"},
		{"another row of the loser is lost", external, balanced, false, w.Addr(10, 100),
			"no longer: 10.0.0.100:80/tcp"},
		{"a health check", ofNode, check, false, netip.Addr{}, ""},
		{"a health check, and a frontend of another tenant is lost", ofNode, check, false, w.Addr(10, 2),
			"no longer: 10.0.0.2:80/tcp"},
		{"a health check, and another row of the loser is lost", ofNode, check, false, w.Addr(10, 100),
			"no longer: 10.0.0.100:80/tcp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNeighbours(t, w.Family, func(testing.TB) Kernel {
				return Kernel{New: func(lb.Family) (Plane, error) {
					return &listing{rows: map[lb.Key]*lb.Frontend{}, loses: lb.Key{Addr: c.loses, Port: 80,
						Proto: lb.TCP}}, nil
				}}
			})
			comes(n, "first", 100, c.first)
			if c.older {
				n.created = 0
			}
			comes(n, "second", 101, c.second)
			found := strings.Join(n.problems, "\n")
			if !strings.Contains(found, c.want) || c.want == "" && found != "" {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}

// Only a health check NodePort that came takes a row, and only one of TCP that another Service
// claimed at an address of the node with the same port (TN-98).
func TestWhatHealthChecksTake(t *testing.T) {
	w := World{Family: lb.IPv4}
	n := &neighbours{World: w}
	n.victims.Node = []netip.Addr{w.Addr(192, 1)}
	at := func(kind lb.Kind, host netip.Addr, port uint16, proto lb.Proto) *lb.Frontend {
		return &lb.Frontend{Kind: kind, Key: lb.Key{Addr: host, Port: port, Proto: proto}}
	}
	service := func(of cluster.ServiceType, policy cluster.TrafficPolicy, port uint16) cluster.Event {
		return cluster.ServiceSet{Service: &cluster.Service{Type: of, ExternalPolicy: policy,
			HealthCheckNodePort: port}}
	}
	own, check := w.Addr(192, 1), service(cluster.TypeLoadBalancer, cluster.PolicyLocal, 31500)
	lost := at(lb.ExternalIP, own, 31500, lb.TCP)
	for _, c := range []struct {
		name     string
		now, was *lb.Frontend
		came     cluster.Event
		want     bool
	}{
		{"an external IP", nil, lost, check, true},
		{"a load balancer's address", nil, at(lb.LoadBalancer, own, 31500, lb.TCP), check, true},
		{"a cluster IP", nil, at(lb.ClusterIP, own, 31500, lb.TCP), check, false},
		{"a NodePort", nil, at(lb.NodePort, netip.Addr{}, 31500, lb.TCP), check, false},
		{"another protocol", nil, at(lb.ExternalIP, own, 31500, lb.UDP), check, false},
		{"another port", nil, at(lb.ExternalIP, own, 31501, lb.TCP), check, false},
		{"another address", nil, at(lb.ExternalIP, w.Addr(192, 2), 31500, lb.TCP), check, false},
		{"another Service has it", at(lb.ExternalIP, own, 31500, lb.TCP), lost, check, false},
		{"policy Cluster", nil, lost, service(cluster.TypeLoadBalancer, cluster.PolicyCluster, 31500), false},
		{"type NodePort", nil, lost, service(cluster.TypeNodePort, cluster.PolicyLocal, 31500), false},
		{"no Service came", nil, lost, cluster.ServiceGone{}, false},
	} {
		if got := n.checked(c.now, c.was, []cluster.Event{c.came}); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
