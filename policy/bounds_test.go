package policy_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// wide returns a Service with this number of ports, with a cluster IP and NodePorts.
func wide(ports int) *cluster.Service {
	s := benchService(1)
	s.Type, s.Ports = cluster.TypeLoadBalancer, nil
	for i := range ports {
		s.Ports = append(s.Ports, cluster.ServicePort{Name: fmt.Sprint("p", i), Protocol: cluster.UDP,
			Port: uint16(1 + i), NodePort: uint16(30_000 + i)})
	}
	return s
}

func addrRange(second byte, n int) (out []netip.Addr) {
	for i := range n {
		out = append(out, netip.AddrFrom4([4]byte{198, second, byte(i >> 8), byte(i)}))
	}
	return out
}

// A Service with many ports and addresses is served at its first addresses, with all ports each,
// and never loses its cluster IP and its NodePorts. The rest is reported.
func TestTooManyAddresses(t *testing.T) {
	for _, test := range []struct {
		story                          string
		ports, loadBalancer, external  int
		wantLoadBalancer, wantExternal int
		wantRefused                    string
	}{
		{"all nodes of a large cluster", 10, 0, 1600, 0, 1600, "[]"},
		{"as many as may be", 128, 1, 127, 1, 127, "[]"},
		{"one more", 128, 1, 128, 1, 127, "[spec.externalIPs 198.18.0.127 is one address too many for 128 ports]"},
		{"half a million rows", 1000, 0, 500, 0, 16, "[spec.externalIPs 198.18.0.16 is one address too many for 1000 " +
			"ports, and 483 others]"},
		{"the load balancer's come first", 1000, 20, 3, 16, 0, "[status.loadBalancer.ingress 198.19.0.16 is one " +
			"address too many for 1000 ports, and 3 others spec.externalIPs 198.18.0.0 is one address too many for " +
			"1000 ports, and 2 others]"},
		{"so many ports that no two addresses fit", 20_000, 1, 1, 1, 0,
			"[spec.externalIPs 198.18.0.0 is one address too many for 20000 ports]"},
	} {
		svc := wide(test.ports)
		svc.ExternalIPs, svc.LoadBalancerIPs = addrRange(18, test.external), addrRange(19, test.loadBalancer)
		v := cluster.View{Name: svc.Name, Service: svc}
		rows := map[lb.Kind]map[netip.Addr]int{lb.ClusterIP: {}, lb.NodePort: {}, lb.LoadBalancer: {},
			lb.ExternalIP: {}}
		for _, f := range policy.Resolve(v, benchSettings()) {
			rows[f.Kind][f.Key.Addr]++
		}
		for kind, addrs := range map[lb.Kind][]netip.Addr{
			lb.ClusterIP: svc.ClusterIPs, lb.NodePort: {{}},
			lb.LoadBalancer: svc.LoadBalancerIPs[:test.wantLoadBalancer],
			lb.ExternalIP:   svc.ExternalIPs[:test.wantExternal],
		} {
			if len(rows[kind]) != len(addrs) {
				t.Errorf("%s: %d addresses of kind %s, want %d", test.story, len(rows[kind]), kind, len(addrs))
			}
			for _, a := range addrs {
				if rows[kind][a] != test.ports {
					t.Errorf("%s: %s %s has %d of %d ports", test.story, kind, a, rows[kind][a], test.ports)
				}
			}
		}
		if got := fmt.Sprint(policy.Refused(v, benchSettings())); got != test.wantRefused {
			t.Errorf("%s: refused\n%s, want\n%s", test.story, got, test.wantRefused)
		}
	}
}

// Endpoints times ports are limited: ready ones stay before draining ones, and with policy Local
// those of this node stay first. All nodes choose the same others, whatever the order in which the
// slices arrive.
func TestTooManyEndpoints(t *testing.T) {
	const ports, perSlice, room = 1000, 100, 262 // 2^18 / ports
	view := func(node string, local bool, seed uint64) cluster.View {
		svc := wide(ports)
		if local {
			svc.InternalPolicy = cluster.PolicyLocal
		}
		v := cluster.View{Name: svc.Name, Service: svc, Node: cluster.Facts{NodeName: node}}
		var slicePorts []cluster.SlicePort
		for _, p := range svc.Ports {
			slicePorts = append(slicePorts, cluster.SlicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
		}
		for i := range 5 { // 500 endpoints, 400 of them ready; the first 100 drain
			sl := &cluster.Slice{Name: cluster.Name{Namespace: "shop", Name: fmt.Sprint("web-", i)}, Service: svc.Name,
				Ports: slicePorts}
			for e := range perSlice {
				sl.Endpoints = sl.Endpoints.With(cluster.Endpoint{
					Addr:  netip.AddrFrom4([4]byte{100, 64, byte(i), byte(e)}),
					Where: cluster.At(fmt.Sprint("node-", e%2), ""),
					Ready: i > 0, Serving: true, Terminating: i == 0,
				})
			}
			v.Slices = append(v.Slices, sl)
		}
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(v.Slices), func(i, j int) {
			v.Slices[i], v.Slices[j] = v.Slices[j], v.Slices[i]
		})
		return v
	}
	set := func(v cluster.View, scope lb.Scope) []lb.Backend {
		rows := policy.Resolve(v, benchSettings())
		if len(rows) != 2*ports {
			t.Fatalf("%d rows", len(rows))
		}
		total := 0
		for _, f := range rows {
			if f.Kind == lb.ClusterIP {
				total += f.Routes[0].To.Backends.Len()
			}
		}
		if total > 1<<18 {
			t.Errorf("%d backends over all ports", total)
		}
		return slices.Collect(rows[0].Set(scope).Backends.All())
	}
	first := set(view("node-0", false, 1), lb.Cluster)
	if len(first) != room || first[0].Draining || first[0].Addr.Addr() != netip.MustParseAddr("100.64.1.0") ||
		first[room-1].Addr.Addr() != netip.MustParseAddr("100.64.3.61") {
		t.Errorf("%d backends, from %v to %v; want the first %d that are ready", len(first), first[0],
			first[len(first)-1], room)
	}
	addrs := func(backends []lb.Backend) (out []netip.AddrPort) {
		for _, b := range backends {
			out = append(out, b.Addr)
		}
		return out
	}
	if second := set(view("node-1", false, 2), lb.Cluster); !slices.Equal(addrs(first), addrs(second)) {
		t.Error("another node chooses other backends")
	}
	local := set(view("node-1", true, 3), lb.Local)
	if len(local) != 4*perSlice/2 {
		t.Errorf("%d backends on this node, want all %d that are ready here", len(local), 4*perSlice/2)
	}
	want := "[endpoints 100.64.3.62 is one endpoint too many for 1000 ports, and 237 others]"
	if got := fmt.Sprint(policy.Refused(view("node-0", false, 4), benchSettings())); got != want {
		t.Errorf("refused %s, want %s", got, want)
	}
	few := view("node-0", false, 5)
	few.Slices = few.Slices[:2] // as many as fit
	if got := policy.Refused(few, benchSettings()); got != nil {
		t.Errorf("refused %v, though all fit", got)
	}
}

// TN-05: ports in slices are limited, even if the Service does not have them: the first slices by
// name count, on every node, and a Refusal names the others. Slices without endpoints have no
// effect and no cost.
func TestTooManySlicePorts(t *testing.T) {
	junk := make([]cluster.SlicePort, 20_000)
	for i := range junk {
		junk[i] = cluster.SlicePort{Name: fmt.Sprint("junk", i), Protocol: cluster.TCP, Port: 1}
	}
	svc := wide(1)
	view := func(slices, endpoints int) cluster.View {
		v := cluster.View{Name: svc.Name, Service: svc}
		for i := range slices {
			sl := &cluster.Slice{Name: cluster.Name{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i)},
				Service: svc.Name}
			sl.Ports = append([]cluster.SlicePort{{Name: svc.Ports[0].Name, Protocol: svc.Ports[0].Protocol, Port: 80}},
				junk[1:]...)
			for e := range endpoints {
				sl.Endpoints = sl.Endpoints.With(cluster.Endpoint{
					Addr: netip.AddrFrom4([4]byte{100, 64, byte(i), byte(e)}), Ready: true, Serving: true})
			}
			v.Slices = append(v.Slices, sl)
		}
		return v
	}
	for _, tt := range []struct{ slices, endpoints, backends, more, ports int }{
		{13, 1, 13, 0, 1 + 260_000},
		{100, 1, 13, 86, 1 + 1<<18},
		{100, 0, 0, 0, 1},
	} {
		v := view(tt.slices, tt.endpoints)
		rows := policy.Resolve(v, benchSettings())
		got := 0
		if set := rows[0].Set(lb.Cluster); set != nil {
			got = set.Backends.Len()
		}
		left := 0
		for _, r := range policy.Refused(v, benchSettings()) {
			left += r.More
			if !strings.Contains(r.String(), "slice too many") || !strings.Contains(r.String(), "100.64.13.0") {
				t.Errorf("refused: %s", r)
			}
		}
		if cost := policy.CostOf(v, lb.IPv4); got != tt.backends || left != tt.more || cost.Ports != tt.ports {
			t.Errorf("%d slices: %d backends, %d left out, cost %+v; want %+v", tt.slices, got, left, cost, tt)
		}
	}
}

// If a Service does not fit, the cluster IP is served first, then the NodePorts, the load-balancer
// addresses, and external IPs. A Refusal names the rest, and the served part weighs no more than
// the limit (TN-10).
func TestPartsInTheirOrder(t *testing.T) {
	const ports = 10
	svc := wide(ports)
	svc.LoadBalancerIPs, svc.ExternalIPs = addrRange(19, 2), addrRange(18, 2)
	v := cluster.View{Name: svc.Name, Service: svc}
	for _, test := range []struct {
		limit, older  int
		served        string
		wantObjects   int
		refused, more string
	}{
		{400, 0, "clusterip 1 nodeport 1 loadbalancer 2 externalip 2", 60, "[]", ""},
		{0, 0, "clusterip 1 nodeport 1 loadbalancer 2 externalip 2", 0, "[]", ""},
		{236, 0, "clusterip 1 nodeport 1 loadbalancer 2 externalip 1", 50, "[spec.externalIPs 198.18.0.1 ",
			"per Service"},
		{400, 340, "clusterip 1 nodeport 1 loadbalancer 2 externalip 2", 60, "[]", ""},
		{400, 341, "clusterip 1 nodeport 1 loadbalancer 2 externalip 1", 50, "[spec.externalIPs 198.18.0.1 ",
			"per namespace"},
		{400, 365, "clusterip 1 nodeport 1 loadbalancer 1 externalip 0", 30, "[status.loadBalancer.ingress 198.19.0.1 ",
			"per namespace"},
		{400, 380, "clusterip 1 nodeport 1 loadbalancer 0 externalip 0", 20, "[status.loadBalancer.ingress 198.19.0.0 ",
			"per namespace"},
		{400, 390, "clusterip 1 nodeport 0 loadbalancer 0 externalip 0", 10, "[spec.ports[].nodePort exceeds ",
			"per namespace"},
		{400, 391, "clusterip 0 nodeport 0 loadbalancer 0 externalip 0", 0, "[spec.clusterIPs ", "per namespace"},
		{400, 400, "clusterip 0 nodeport 0 loadbalancer 0 externalip 0", 0, "[spec.clusterIPs ", "per namespace"},
	} {
		s := benchSettings()
		s.Weigh = func(s lb.Size) int { return s.Ports*s.Copies(1) + s.Backends }
		s.MaxObjects, s.Older = test.limit, test.older
		rows := map[lb.Kind]int{}
		for _, f := range policy.Resolve(v, s) {
			rows[f.Kind]++
		}
		served, objects := "", 0
		for _, kind := range []lb.Kind{lb.ClusterIP, lb.NodePort, lb.LoadBalancer, lb.ExternalIP} {
			served += fmt.Sprintf("%s %d ", kind, rows[kind]/ports)
			objects += rows[kind]
		}
		if strings.TrimSpace(served) != test.served || test.limit > 0 && objects != test.wantObjects {
			t.Errorf("%d of %d: served %s, want %s", test.older, test.limit, served, test.served)
		}
		if got := fmt.Sprint(policy.Refused(v, s)); !strings.HasPrefix(got, test.refused) ||
			!strings.Contains(got, test.more) {
			t.Errorf("%d of %d: refused %s, want %s", test.older, test.limit, got, test.refused)
		}
		if x := policy.Explain(v, s); (x.Not != "") != (objects == 0) || objects == 0 &&
			!strings.Contains(x.Not, "limit of 400 objects per namespace") {
			t.Errorf("%d of %d: explained by %q", test.older, test.limit, x.Not)
		}
	}
}

// The weight of a Service does not depend on the readiness of its endpoints, so restarting pods add
// and remove nothing. A Service with too many endpoints for its quarter of the limit has fewer of
// them, but keeps its cluster IP (TN-10).
func TestWeightOfEndpoints(t *testing.T) {
	svc := wide(1)
	svc.Type = cluster.TypeClusterIP
	sl := &cluster.Slice{Service: svc.Name, Ports: []cluster.SlicePort{{Name: "p0", Protocol: cluster.UDP, Port: 80}}}
	for _, a := range addrRange(18, 100) {
		sl.Endpoints = sl.Endpoints.With(cluster.Endpoint{Addr: a, Ready: true, Serving: true})
	}
	v := cluster.View{Name: svc.Name, Service: svc, Slices: []*cluster.Slice{sl}}
	s := benchSettings()
	s.Weigh, s.MaxObjects = func(s lb.Size) int { return s.Ports*s.Copies(1) + 2*s.Backends }, 1000
	if got := policy.Objects(v, s); got != 201 {
		t.Errorf("%d objects, want 201", got)
	}
	sl.Endpoints = sl.Endpoints.Edited(func(i int, e *cluster.Endpoint) { e.Ready, e.Serving = i != 7, i != 7 })
	if got := policy.Objects(v, s); got != 201 {
		t.Errorf("%d objects when one is not ready, want 201", got)
	}
	s.MaxObjects = 100
	rows := policy.Resolve(v, s)
	if len(rows) != 1 || rows[0].Routes[0].To.Backends.Len() != 12 || policy.Objects(v, s) != 25 {
		t.Errorf("%d rows, %d objects, want one row with 12 backends and 25", len(rows), policy.Objects(v, s))
	}
	if got := fmt.Sprint(policy.Refused(v, s)); got != "[endpoints 198.18.0.13 is one endpoint too many for 1 ports, "+
		"and 86 others]" {
		t.Errorf("refused %s", got)
	}
}
