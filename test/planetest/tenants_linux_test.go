package planetest

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/trace"
)

// listing is a plane that lists its frontends as lines. When a frontend changes its owner the plane
// loses another one too.
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
		if was := p.rows[c.Key]; was != nil && c.New != nil && was.Service != c.New.Service {
			delete(p.rows, p.loses)
		}
		if p.rows[c.Key] = c.New; c.New == nil {
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

func (p *listing) TracePacket(context.Context, trace.Packet) (is trace.Kernel, err error) { return }

func (p *listing) Differences(context.Context, *lb.Table, func(trace.Difference) bool) error {
	return nil
}

// A new Service may take a key by its kind (SV-24), and nothing else with it.
func TestTenantsFindsLosses(t *testing.T) {
	w := World{Family: lb.IPv4}
	free := []netip.Addr{w.Addr(10, 9000)}
	balanced, external := cluster.Service{Type: cluster.TypeLoadBalancer, LoadBalancerIPs: free},
		cluster.Service{ExternalIPs: free}
	comes := func(n *neighbours, namespace string, host int, s cluster.Service) {
		s.Name, s.ClusterIPs = cluster.Name{Namespace: namespace, Name: "web"}, []netip.Addr{w.Addr(10, host)}
		s.Ports = []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}}
		n.acts(namespace, "comes", cluster.ServiceSet{Service: &s})
	}
	for _, c := range []struct {
		name   string
		second cluster.Service // it claims the external IP of the first
		older  bool            // than the first
		loses  netip.Addr
		want   string
	}{
		{"a kind that precedes", balanced, false, netip.Addr{}, ""},
		{"the same kind", external, false, netip.Addr{}, ""},
		{"the same kind goes to an older one", external, true, netip.Addr{}, "against SV-24"},
		{"a frontend of another tenant is lost", balanced, false, w.Addr(10, 2), "no longer: 10.0.0.2:80/tcp"},
		{"another row of the loser is lost", balanced, false, w.Addr(10, 100), "no longer: 10.0.0.100:80/tcp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNeighbours(t, w.Family, func(testing.TB) Kernel {
				return Kernel{New: func(lb.Family) (Plane, error) {
					return &listing{rows: map[lb.Key]*lb.Frontend{}, loses: lb.Key{Addr: c.loses, Port: 80,
						Proto: lb.TCP}}, nil
				}}
			})
			comes(n, "first", 100, external)
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
