package hns_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

var world = planetest.World{Family: lb.IPv4}

// says checks that an error contains all of these words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v: want %q in it", err, w)
		}
	}
}

// notices returns the plane's notices with their arguments.
func notices(p testPlane) string {
	var b strings.Builder
	for _, n := range p.Notices() {
		fmt.Fprintln(&b, n.Text, n.Args)
	}
	return b.String()
}

// A flag or KUBE_NETWORK names the network (CF-31). While it is missing or ambiguous, a Reset says
// what to do and writes nothing; later it succeeds (DP-48).
func TestNetworkCF31(t *testing.T) {
	t.Setenv("KUBE_NETWORK", "")
	_, err := hns.New(hns.Config{Family: lb.IPv4, HNS: hnsfake.New(hnsfake.Everything)})
	says(t, err, "--network-name", "winkernel.networkName", "KUBE_NETWORK")
	t.Setenv("KUBE_NETWORK", networkName)
	n := &windowsNode{Fake: hnsfake.New(hnsfake.Everything)}
	p := newPlane(t, hns.Config{Family: lb.IPv4, HNS: n})
	table := world.Table(2, 3)
	_, err = p.Reset(t.Context(), table)
	says(t, err, `no HNS network "cbr0"`, "--network-name", "KUBE_NETWORK")

	other := n.AddNetwork(hns.Network{Name: networkName, Type: "NAT"})
	_, err = p.Reset(t.Context(), table)
	says(t, err, "type NAT", "L2Bridge")
	n.addNetwork("l2bridge") // in any case
	reset(t, p, table)       // the other is no candidate
	n.RemoveNetwork(other)

	second := n.AddNetwork(hns.Network{Name: networkName, Type: hns.L2Tunnel})
	before := n.Own()
	_, err = p.Reset(t.Context(), &lb.Table{})
	says(t, err, "2 HNS networks", n.network, second, "remove")
	if n.Own() != before {
		t.Errorf("written though it is not known where:\n%s", n.Own())
	}
	if _, err := p.Apply(t.Context(), nil); !errors.Is(err, plane.ErrStateLost) {
		t.Errorf("apply after it: %v", err)
	}
	n.RemoveNetwork(second)
	reset(t, p, table)
}

// A network that is created again has another id and no objects. Every verb then requests a Reset,
// which waits for the network and writes everything (DP-48).
func TestNetworkComesBackDP48(t *testing.T) {
	for verb, meet := range map[string]func(testPlane, *lb.Table) error{
		"apply": func(p testPlane, table *lb.Table) error {
			changes, _ := table.Replace(world.ClusterIP(0, 30, 5))
			_, err := p.Apply(t.Context(), changes)
			return err
		},
		"probe": func(p testPlane, _ *lb.Table) error { return p.Probe(t.Context()) },
		"audit": func(p testPlane, _ *lb.Table) error { _, err := p.Audit(t.Context(), true); return err },
	} {
		for _, back := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, back %t", verb, back), func(t *testing.T) {
				n, p, table := started(t, 3, 3)
				n.RemoveNetwork(n.network)
				if back {
					n.addNetwork(hns.L2Bridge)
				}
				if err := meet(p, table); !errors.Is(err, plane.ErrStateLost) {
					t.Fatalf("%v, want an error that asks for a Reset", err)
				}
				if !back {
					_, err := p.Reset(t.Context(), table)
					says(t, err, "no HNS network")
					n.addNetwork(hns.L2Bridge)
				}
				reset(t, p, table)
				n.isFresh(t, lb.IPv4, table)
			})
		}
	}
}

// Without a ManagementIP, which HNS adds last, everything except NodePorts is served; the next
// audit adds these.
func TestNoManagementIP(t *testing.T) {
	n := newNode(hns.L2Bridge, hnsfake.Everything)
	n.SetNetwork(n.network, func(w *hns.Network) { w.ManagementIP = "" })
	p, table := n.plane(t, lb.IPv4), world.Table(0, 0)
	table.Replace(world.Full(1, 0, 3, 3, 0))
	reset(t, p, table)
	if text := notices(p); strings.Count(text, "\n") < 1 || !strings.Contains(text, "ManagementIP") ||
		!strings.Contains(text, networkName) {
		t.Errorf("reported: %q", text)
	}
	if _, ok := n.balancerOf("10.0.0.2", 80); !ok {
		t.Errorf("the cluster IP is not served:\n%s", n.Own())
	}
	if l, ok := n.balancerOf("", 30001); ok {
		t.Errorf("the NodePort is served, by which address? %+v", l)
	}
	n.SetNetwork(n.network, func(w *hns.Network) { w.ManagementIP = "192.0.0.1" })
	if _, err := p.Audit(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.balancerOf("", 30001); !ok {
		t.Errorf("the NodePort is not served:\n%s", n.Own())
	}
	n.SetNetwork(n.network, func(w *hns.Network) { w.ManagementIP = "192.0.0" })
	_, err := p.Audit(t.Context(), true)
	says(t, err, "ManagementIP", "192.0.0", networkName)
}

// In an overlay, load balancers need the address of --source-vip (CF-31). Remote endpoints route to
// the node of their subnet, or are a node; others route to this node, with a notice (WN-04).
func TestOverlayCF31(t *testing.T) {
	n, p := overlayNode(t)
	n.noCNI = true
	table := &lb.Table{Node: world.Node()}
	table.Replace(service(0, "100.0.2.7", "192.0.0.1", "192.0.0.2", "198.18.0.5"))

	_, err := n.plane(t, lb.IPv4).Reset(t.Context(), table)
	says(t, err, "overlay", "--source-vip", "winkernel.sourceVip")

	reset(t, p, table)
	for a, provider := range map[string]string{"100.0.2.7": "192.0.0.2", "192.0.0.1": "192.0.0.1",
		"192.0.0.2": "192.0.0.2", "198.18.0.5": "192.0.0.1"} {
		if e := n.endpointOf(t, a); string(e.Policies[0].Settings) != fmt.Sprintf(`{"ProviderAddress":%q}`, provider) {
			t.Errorf("packets for %s go to %s, want %s", a, e.Policies[0].Settings, provider)
		}
	}
	if text := notices(p); !strings.Contains(text, "198.18.0.5") || strings.Count(text, "\n") != 1 {
		t.Errorf("reported: %s", text)
	}
	if l, _ := n.balancerOf("10.0.0.1", 80); l.SourceVIP != "192.0.0.1" || len(l.HostComputeEndpoints) != 4 {
		t.Errorf("%+v", l)
	}

	// An address that only a pod of this node can have gets no remote endpoint: the CNI plugin
	// needs it.
	owner, hostile := service(0)
	hostile[0].Set(lb.Cluster).Backends = lb.BackendsOf(
		lb.Backend{Addr: netip.MustParseAddrPort("100.0.0.77:8080")},
		lb.Backend{Addr: netip.MustParseAddrPort("100.0.2.7:8080")})
	changes, _ := table.Replace(owner, hostile)
	_, err = p.Apply(t.Context(), changes)
	says(t, err, "10.0.0.1:80/tcp", "ns/svc-0:http", "100.0.0.77", "CNI")
	if l, _ := n.balancerOf("10.0.0.1", 80); len(l.HostComputeEndpoints) != 1 ||
		n.has(netip.MustParseAddr("100.0.0.77")) {
		t.Errorf("the rest is not served, or the address is taken:\n%s", n.Own())
	}

	// The plane looks up a node that joined after the last audit once.
	n.SetNetwork(n.network, func(w *hns.Network) {
		w.Policies = append(w.Policies, route("100.0.3.0/24", "192.0.0.3"))
	})
	apply(t, p, planetest.Changes(table.Replace(service(0, "100.0.3.1"))))
	if e := n.endpointOf(t, "100.0.3.1"); !strings.Contains(string(e.Policies[0].Settings), "192.0.0.3") {
		t.Errorf("the new node's pod: %+v", e)
	}
	// Another node gets a subnet: an audit finds it.
	n.SetNetwork(n.network, func(w *hns.Network) { w.Policies[1] = route("100.0.3.0/24", "192.0.0.4") })
	if repaired, err := p.Audit(t.Context(), true); err != nil || repaired == 0 {
		t.Errorf("repaired %d, %v", repaired, err)
	}
	if e := n.endpointOf(t, "100.0.3.1"); !strings.Contains(string(e.Policies[0].Settings), "192.0.0.4") {
		t.Errorf("the pod of the node that took over: %+v", e)
	}

	// The family without a source VIP is not served, with a notice; the other is.
	cfg6 := n.config(lb.IPv6)
	cfg6.SourceVIP = p.Source()
	six, w6 := newPlane(t, cfg6), planetest.World{Family: lb.IPv6}
	reset(t, six, w6.Table(1, 1))
	if balancers, _ := n.own(lb.IPv6); len(balancers) > 0 || !strings.Contains(notices(six), "--source-vip") {
		t.Errorf("IPv6: %v", balancers)
	}
}

// Packets to a container's address use its own endpoint even if an EndpointSlice names another
// node; the address gets no second one (DP-49). A pod without an endpoint is left out, with an
// error, until its endpoint exists.
func TestContainerHasTheAddressDP49(t *testing.T) {
	n := newNode(hns.L2Bridge, hnsfake.Everything)
	n.noCNI = true
	p, table := n.plane(t, lb.IPv4), world.Table(0, 0)
	reset(t, p, table)
	id := n.AddPod(n.network, "pod", world.Addr(100, 1)) // the second backend, which is not Local
	changes, _ := table.Replace(world.ClusterIP(0, 0, 3))
	_, err := p.Apply(t.Context(), changes)
	says(t, err, "10.0.0.1:80/tcp", "ns/svc-0:http", "backend 100.0.0.0", "CNI")
	l, _ := n.balancerOf("10.0.0.1", 80)
	if len(l.HostComputeEndpoints) != 2 || !slices.Contains(l.HostComputeEndpoints, id) {
		t.Errorf("leads to %v, want the pod's %s among two", l.HostComputeEndpoints, id)
	}
	n.Counts()
	if _, err := p.Apply(t.Context(), changes); err == nil {
		t.Error("the pod is still missing, and no error says so")
	}
	if c := n.Counts(); len(c) != 2 || c["EndpointsAt"] != 1 || c["Networks"] != 1 {
		t.Errorf("to try again cost %v, want to ask for the pod once, and whether the network is still there", c)
	}
	n.AddPod(n.network, "late", world.Addr(100, 0))
	apply(t, p, changes)
	if l, _ := n.balancerOf("10.0.0.1", 80); len(l.HostComputeEndpoints) != 3 {
		t.Errorf("leads to %v, want three", l.HostComputeEndpoints)
	}
	apply(t, p, planetest.Changes(table.Replace(lb.Owner{Name: "ns/svc-0"}, nil)))
	if touched := n.Touched(); len(touched) > 0 || n.Own() != "\n" {
		t.Errorf("touched %q, left:\n%s", touched, n.Own())
	}
}

// A Reset adopts an earlier run's objects without a write, and removes those of deleted Services
// and of an older HNS in a dead network. Foreign objects stay, and a frontend with the key of one
// of them fails and names it (PN-76).
func TestAdoptsByExactMatchPN76(t *testing.T) {
	n := newNode(hns.L2Bridge, hnsfake.Everything)
	table := world.Table(3, 3)
	table.Replace(world.Full(10, 30, 3, 2, time.Hour))
	reset(t, n.plane(t, lb.IPv4), table)
	foreign := n.foreigners(t)
	n.Counts()
	restarted := n.plane(t, lb.IPv4)
	reset(t, restarted, table)
	if made := n.writes(); made > 0 {
		t.Errorf("a restart without changes wrote %d times", made)
	}
	table.Replace(lb.Owner{Name: "ns/svc-1"}, nil)
	table.Replace(lb.Owner{Name: "ns/svc-10"}, nil)
	res, err := n.plane(t, lb.IPv4).Reset(t.Context(), table)
	if err != nil || len(res.Dropped) != 4 {
		t.Errorf("dropped %v, error %v", res.Dropped, err)
	}
	// A foreign load balancer with two port mappings has these.
	_, _ = restarted.Apply(t.Context(), planetest.Changes(table.Replace(world.ClusterIP(99, 0, 3))))
	if touched := n.Touched(); len(touched) > 0 {
		t.Errorf("objects of others: %q", touched)
	}
	held := n.State()
	for what, id := range foreign {
		if !slices.ContainsFunc(held.LoadBalancers, func(l hns.LoadBalancer) bool { return l.ID == id }) &&
			!slices.ContainsFunc(held.Endpoints, func(e hns.Endpoint) bool { return e.ID == id }) {
			t.Errorf("gone: %s", what)
		}
	}
}

// foreigners creates foreign objects that resemble ours in part.
func (n *windowsNode) foreigners(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	endpoint := func(what, name, addr string, network string, flags hns.EndpointFlags) string {
		e, err := n.CreateEndpoint(t.Context(), hns.Endpoint{
			Name: name, HostComputeNetwork: network, Flags: flags, MacAddress: "02-11-00-00-00-01",
			SchemaVersion:    hns.Version2,
			IPConfigurations: []hns.IPConfig{{IPAddress: addr}},
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		n.Foreign(e.ID)
		all[what] = e.ID
		return e.ID
	}
	balancer := func(what string, l hns.LoadBalancer) {
		l.SchemaVersion = hns.Version2
		made, err := n.CreateLoadBalancer(t.Context(), l)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		n.Foreign(made.ID)
		all[what] = made.ID
	}
	swarm := n.AddNetwork(hns.Network{Name: "swarm", Type: hns.L2Bridge})
	theirs := endpoint("an endpoint of another network, named as ours", "kube-proxy 100.0.9.1", "100.0.9.1", swarm,
		hns.RemoteEndpoint)
	remote := endpoint("a remote endpoint of another name", "Ethernet 100.0.9.2", "100.0.9.2", n.network,
		hns.RemoteEndpoint)
	endpoint("one with our name and another address", "kube-proxy 100.0.9.3", "100.0.9.4", n.network,
		hns.RemoteEndpoint)
	endpoint("one with our name that is not remote", "kube-proxy 100.0.9.5", "100.0.9.5", n.network, 0)
	balancer("a load balancer of another network", hns.LoadBalancer{
		HostComputeEndpoints: []string{theirs}, FrontendVIPs: []string{"203.0.113.9"},
		PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 80,
			Flags: hns.MappingLocalRoutedVIP}},
	})
	balancer("one of this network with other flags", hns.LoadBalancer{
		HostComputeEndpoints: []string{remote}, FrontendVIPs: []string{"203.0.113.10"},
		PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 80, Flags: hns.MappingILB}},
	})
	balancer("one with two addresses", hns.LoadBalancer{
		HostComputeEndpoints: []string{remote}, FrontendVIPs: []string{"203.0.113.11", "203.0.113.12"},
		PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 80,
			Flags: hns.MappingLocalRoutedVIP}},
	})
	return all
}

// If another program's load balancer has a frontend's key, that frontend fails and names it; the
// others are served.
func TestOthersHaveTheKeyPN76(t *testing.T) {
	n := newNode(hns.L2Bridge, hnsfake.Everything)
	e := n.AddPod(n.network, "other", netip.MustParseAddr("100.0.9.9"))
	made, err := n.CreateLoadBalancer(t.Context(), hns.LoadBalancer{
		HostComputeEndpoints: []string{e}, FrontendVIPs: []string{"10.0.0.1", "10.0.0.200"},
		SchemaVersion: hns.Version2,
		PortMappings:  []hns.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 80}},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Foreign(made.ID)
	p := n.plane(t, lb.IPv4)
	failed, err := resetAll(p, world.Table(2, 3))
	says(t, err, "10.0.0.1:80/tcp", "ns/svc-0:http", "already exists", made.ID, "another program")
	if _, ok := n.balancerOf("10.0.0.2", 80); !ok || len(failed) != 1 || len(n.Touched()) > 0 {
		t.Errorf("failed %v, touched %q:\n%s", failed, n.Touched(), n.Own())
	}
}

// An audit reports each time what it cannot repair, except failures of Apply that the engine
// retries.
func TestAuditReports(t *testing.T) {
	n, p, table := started(t, 3, 2)
	n.noCNI = true
	changes, _ := table.Replace(world.ClusterIP(1, 60, 2)) // a missing pod
	if _, err := p.Apply(t.Context(), changes); err == nil {
		t.Fatal("no error without the pod")
	}
	if _, err := p.Audit(t.Context(), true); err != nil {
		t.Errorf("an audit repeats the error of Apply: %v", err)
	}
	l, _ := n.balancerOf("10.0.0.3", 80)
	n.Damage(l.ID)
	n.always("CreateLoadBalancer", hnsfake.Fault{Code: hns.CodeInvalidPolicy})
	for range 3 {
		_, err := p.Audit(t.Context(), true)
		says(t, err, "audit", "10.0.0.3:80/tcp", "ns/svc-2:http", "0x803b000d")
	}
	n.FailWith(nil)
	if repaired, err := p.Audit(t.Context(), true); repaired != 1 || err != nil {
		t.Errorf("repaired %d, %v", repaired, err)
	}
}

// An old HNS serves without affinity, DSR and modification. Each lack is reported once, with an
// example (DP-45).
func TestOldVersionDP45(t *testing.T) {
	n := newNode(hns.L2Bridge, hns.Features{V2: true})
	cfg := n.config(lb.IPv4)
	cfg.DSR = true
	p, table := newPlane(t, cfg), world.Table(0, 0)
	for i := range 3 {
		table.Replace(world.Full(i, 30*i, 3, 2, time.Hour))
	}
	reset(t, p, table)
	text := notices(p)
	for _, once := range []string{"no session affinity", "direct server return", "loadBalancerSourceRanges",
		"does not distinguish sources"} {
		if strings.Count(text, once) != 1 {
			t.Errorf("%q is not reported once:\n%s", once, text)
		}
	}
	if strings.Count(text, "ns/svc-") != 3 || notices(p) != "" {
		t.Errorf("reported:\n%s", text)
	}
	if l, ok := n.balancerOf("10.0.0.1", 80); !ok || l.Flags != 0 ||
		l.PortMappings[0].DistributionType != hns.PerConnection {
		t.Errorf("%+v", l)
	}
	if l, ok := n.balancerOf("198.0.0.1", 80); ok {
		t.Errorf("an address with source ranges is open to everybody: %+v", l)
	}
	apply(t, p, planetest.Changes(table.Replace(world.Full(7, 300, 3, 2, time.Hour))))
	if text := notices(p); text != "" {
		t.Errorf("reported again:\n%s", text)
	}
}

// Failures of load balancers have upstream's metrics; those of endpoints, and calls that were not
// made, do not count (MT-23).
func TestFailuresOfLoadBalancersMT23(t *testing.T) {
	n, p, _ := started(t, 1, 1)
	failed := func(name string, call func(context.Context) error) {
		t.Helper()
		n.once(name, hnsfake.Fault{Code: hns.CodeInvalidPolicy})
		if call(t.Context()) == nil {
			t.Errorf("%s: no error", name)
		}
	}
	failed("CreateLoadBalancer", func(ctx context.Context) error {
		_, err := p.HNS().CreateLoadBalancer(ctx, hns.LoadBalancer{})
		return err
	})
	for range 2 {
		failed("ModifyLoadBalancer", func(ctx context.Context) error {
			_, err := p.HNS().ModifyLoadBalancer(ctx, hns.LoadBalancer{})
			return err
		})
	}
	remove := func(ctx context.Context) error { return p.HNS().DeleteLoadBalancer(ctx, "none") }
	for range 3 {
		failed("DeleteLoadBalancer", remove)
	}
	failed("CreateEndpoint", func(ctx context.Context) error {
		_, err := p.HNS().CreateEndpoint(ctx, hns.Endpoint{})
		return err
	})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if remove(ended) == nil {
		t.Error("a call after the end of its context")
	}
	got := map[string]float64{}
	if err := p.Measure(func(name string, v float64, _ ...string) { got[name] = v }); err != nil {
		t.Fatal(err)
	}
	for i, kind := range []string{"create", "update", "delete"} {
		if v := got["winkernel_lb_"+kind+"_failures_total"]; v != float64(i+1) {
			t.Errorf("%s: %g failures, want %d", kind, v, i+1)
		}
	}
}

// The metrics report the plane's content and calls.
func TestMeasure(t *testing.T) {
	n, p, table := started(t, 4, 3)
	n.once("CreateLoadBalancer", hnsfake.Fault{Code: hns.CodeInvalidPolicy})
	changes, _ := table.Replace(world.ClusterIP(9, 30, 3))
	if _, err := p.Apply(t.Context(), changes); err == nil {
		t.Error("no error")
	}
	got := map[string]float64{}
	if err := p.Measure(func(name string, v float64, labels ...string) {
		got[strings.Join(append([]string{name}, labels...), " ")] = v
	}); err != nil {
		t.Fatal(err)
	}
	balancers, endpoints := n.own(lb.IPv4)
	for name, want := range map[string]float64{
		"hns_load_balancers": float64(len(balancers)), "hns_remote_endpoints": float64(len(endpoints)),
		"hns_calls_total create error": 1, "hns_calls_total create success": 4 + 4*2 + 2,
		"hns_calls_total list success":   2,
		"hns_calls_total delete success": 2, "hns_calls_total modify success": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	if len(balancers) != 4 || len(endpoints) != 8 {
		t.Errorf("%d load balancers, %d endpoints", len(balancers), len(endpoints))
	}
}
