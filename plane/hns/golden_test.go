package hns_test

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/hns"
	"kube-proxy/test/golden"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

// rendered is a table whose rendering is in testdata.
type rendered struct {
	cfg   hns.Config
	table *lb.Table
	// says are words of the notices about omissions.
	says []string
}

func goldens() map[string]rendered {
	shop, _, _ := planetest.Shop(lb.IPv4)
	shop6, _, _ := planetest.Shop(lb.IPv6)
	all := world.Table(0, 0)
	all.Replace(world.Full(1, 10, 2, 1, 3*time.Hour))
	all.Replace(world.ClusterIP(2, 0, 0))
	preserve := world.Table(0, 0)
	preserve.Replace(preserving(true))
	return map[string]rendered{
		"nothing": {table: &lb.Table{}}, "shop": {table: shop}, "shop-ipv6": {cfg: hns.Config{Family: lb.IPv6},
			table: shop6},
		"overlay-dsr":   {cfg: hns.Config{SourceVIP: netip.MustParseAddr("10.1.1.2"), DSR: true}, table: shop},
		"every-kind":    {table: all, cfg: hns.Config{DSR: true}, says: []string{"loadBalancerSourceRanges"}},
		"preserve":      {table: preserve, cfg: hns.Config{DSR: true}},
		"health-checks": {table: forwarded(), cfg: hns.Config{ForwardHealthCheckVIP: true}},
		"left-out":      {table: leftOut(), says: []string{"no SCTP", "one target port for each port"}},
	}
}

// forwarded returns a Service with a load balancer's address and a port for its health checks.
func forwarded() *lb.Table {
	t := &lb.Table{Node: world.Node()}
	o, fronts := world.ClusterIP(1, 10, 2)
	t.Replace(o, append(fronts, loadBalancer("198.0.0.2", fronts[0].Set(lb.Cluster)), healthCheck(32100)))
	return t
}

func loadBalancer(addr string, set *lb.BackendSet) *lb.Frontend {
	return &lb.Frontend{Key: lb.Key{Addr: netip.MustParseAddr(addr), Port: 80, Proto: lb.TCP}, Service: "ns/svc-1:http",
		Kind:   lb.LoadBalancer,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, Masq: true, To: set}}}
}

func healthCheck(port uint16) *lb.Frontend {
	return &lb.Frontend{Key: lb.Key{Port: port, Proto: lb.TCP}, Service: "ns/svc-1", Kind: lb.HealthCheck,
		LocalEndpoints: 1,
		Routes:         []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}}
}

// leftOut returns a table of frontends that HNS cannot serve: SCTP, and endpoints with several
// ports.
func leftOut() *lb.Table {
	t := &lb.Table{Node: world.Node()}
	set := func(proto lb.Proto, backends ...string) *lb.BackendSet {
		var all []lb.Backend
		for _, b := range backends {
			all = append(all, lb.Backend{Addr: netip.MustParseAddrPort(b)})
		}
		slices.SortFunc(all, lb.Backend.Compare)
		return &lb.BackendSet{ID: lb.SetID{Service: "ns/a:p", Proto: proto, Scope: lb.Cluster},
			Backends: lb.BackendsOf(all...)}
	}
	row := func(proto lb.Proto, backends ...string) *lb.Frontend {
		return &lb.Frontend{Key: lb.Key{Addr: world.Addr(10, 1), Port: 80, Proto: proto}, Service: "ns/a:p",
			Kind:   lb.ClusterIP,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set(proto, backends...)}}}
	}
	t.Replace(lb.Owner{Name: "ns/a"}, []*lb.Frontend{
		row(lb.SCTP, "100.0.0.1:80"), row(lb.TCP, "100.0.0.1:80"),
		row(lb.UDP, "100.0.0.1:8053", "100.0.0.1:8054", "100.0.0.2:8054", "100.0.0.3:8053", "100.0.0.4:9"),
	})
	return t
}

// The requests for each kind of frontend equal testdata, every time. Frontends that HNS cannot
// serve are reported and left out (DP-45, CF-31, CF-32).
func TestRenderDP45(t *testing.T) {
	t.Setenv("KUBE_NETWORK", "")
	for name, g := range goldens() {
		t.Run(name, func(t *testing.T) {
			if g.cfg.Family == 0 {
				g.cfg.Family = lb.IPv4
			}
			kind := hns.L2Bridge
			if name == "overlay-dsr" {
				kind = hns.Overlay
			}
			got, err := hns.RenderIn(kind, g.cfg, g.table)
			if len(g.says) > 0 {
				says(t, err, g.says...)
			} else if err != nil {
				t.Error(err)
			}
			golden.Equal(t, filepath.Join("testdata", name+".json"), string(got))
			var calls []hns.Request
			if err := json.Unmarshal(got, &calls); err != nil || len(calls) == 0 && name != "nothing" {
				t.Errorf("%d calls, %v", len(calls), err)
			}
			again, _ := hns.RenderIn(kind, g.cfg, g.table)
			if string(again) != string(got) {
				t.Error("another time it is another text")
			}
		})
	}
}

// Forwarded health checks follow their Service's ports and addresses, and end with it; the
// Service's own ports take precedence (CF-32).
func TestForwardHealthChecksCF32(t *testing.T) {
	n := newNode(hns.L2Bridge, hnsfake.Everything)
	cfg := n.config(lb.IPv4)
	cfg.ForwardHealthCheckVIP, cfg.RootEndpoint = true, "root_ep"
	p := newPlane(t, cfg)
	table := forwarded()
	reset(t, p, table)
	if text := notices(p); !strings.Contains(text, "root_ep") {
		t.Errorf("reported without the endpoint: %q", text)
	}
	root := n.AddPod(n.network, "root_ep", netip.MustParseAddr("100.0.0.253"))
	reset(t, p, table)
	expect := func(when string, want ...string) {
		t.Helper()
		got := map[string]bool{}
		for _, l := range n.State().LoadBalancers {
			if l.HostComputeEndpoints[0] == root {
				got[netip.AddrPortFrom(netip.MustParseAddr(l.FrontendVIPs[0]), l.PortMappings[0].ExternalPort).
					String()] = true
			}
		}
		for _, w := range want {
			if !got[w] {
				t.Errorf("%s: %s is not forwarded: %v", when, w, got)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: forwarded %v, want %v", when, got, want)
		}
	}
	expect("after a reset", "198.0.0.2:32100")
	o, fronts := world.ClusterIP(1, 10, 2)
	set := fronts[0].Set(lb.Cluster)
	change := func(fronts ...*lb.Frontend) {
		t.Helper()
		apply(t, p, planetest.Changes(table.Replace(o, fronts)))
	}
	change(fronts[0], loadBalancer("198.0.0.2", set), loadBalancer("198.0.0.3", set), healthCheck(32100))
	expect("another address", "198.0.0.2:32100", "198.0.0.3:32100")
	change(fronts[0], loadBalancer("198.0.0.3", set), healthCheck(32101))
	expect("another port", "198.0.0.3:32101")
	if repaired, err := p.Audit(t.Context(), true); repaired != 0 || err != nil {
		t.Errorf("an audit repaired %d, %v", repaired, err)
	}
	change(fronts[0], loadBalancer("198.0.0.3", set), healthCheck(80))
	expect("the Service's own port")
	if _, ok := n.balancerOf("198.0.0.3", 80); !ok {
		t.Errorf("the Service's own port is not served:\n%s", n.Own())
	}
	change(fronts[0], loadBalancer("198.0.0.3", set))
	expect("no health check")
	change(fronts[0], loadBalancer("198.0.0.3", set), healthCheck(32101))
	expect("one again", "198.0.0.3:32101")
	change()
	expect("gone")
	reset(t, newPlane(t, cfg), table)
	if own := n.Own(); own != "\n" {
		t.Errorf("left:\n%s", own)
	}
}
