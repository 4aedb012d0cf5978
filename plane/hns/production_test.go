package hns_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/config/option"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

// Behaviour that has proven to work with HNS in production, with one test each.

// overlayNode returns a node in an overlay network with one other node.
func overlayNode(t *testing.T) (*windowsNode, testPlane) {
	t.Helper()
	n := newNode(hns.Overlay, hnsfake.Everything)
	n.SetNetwork(n.network, func(w *hns.Network) {
		w.Ipams = []hns.Ipam{{Subnets: []hns.Subnet{{IPAddressPrefix: "100.0.0.0/24"}}}}
		w.Policies = []hns.Policy{route("100.0.2.0/24", "192.0.0.2")}
	})
	cfg := n.config(lb.IPv4)
	cfg.SourceVIP = netip.MustParseAddr("100.0.0.250")
	return n, newPlane(t, cfg)
}

// service returns Service i with a cluster IP, and backends on this node (100.0.0.x) or elsewhere.
func service(i int, backends ...string) (lb.Owner, []*lb.Frontend) {
	name := serviceName(i)
	set := &lb.BackendSet{ID: lb.SetID{Service: name + ":http", Proto: lb.TCP, Scope: lb.Cluster},
		Backends: backendsOf(backends...)}
	return lb.Owner{Name: name}, []*lb.Frontend{{Key: lb.Key{Addr: world.Addr(10, i+1), Port: 80, Proto: lb.TCP},
		Service: set.ID.Service,
		Kind:    lb.ClusterIP, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}}}
}

func backendsOf(addrs ...string) lb.Backends {
	var all []lb.Backend
	for _, a := range addrs {
		all = append(all, lb.Backend{Addr: netip.AddrPortFrom(netip.MustParseAddr(a), 8080),
			Local: strings.HasPrefix(a, "100.0.0.")})
	}
	slices.SortFunc(all, lb.Backend.Compare)
	return lb.BackendsOf(all...)
}

// A Reset creates the local endpoint of the source VIP with the host's MAC, or uses an existing
// one; without it an overlay refuses load balancers. An audit restores it; --cleanup keeps it
// (WN-04).
func TestSourceEndpointWN04(t *testing.T) {
	n, p := overlayNode(t)
	table := &lb.Table{Node: world.Node()}
	table.Replace(service(0, "100.0.0.1", "100.0.2.1"))
	reset(t, p, table)
	e := n.endpointOf(t, "100.0.0.250")
	if e.Flags&hns.RemoteEndpoint != 0 || e.MacAddress != hostMAC ||
		string(e.Policies[0].Settings) != `{"ProviderAddress":"192.0.0.1"}` {
		t.Errorf("the source VIP's endpoint: %+v", e)
	}
	n.Damage(e.ID)
	if _, err := p.Audit(t.Context(), true); err != nil || !n.has(p.Source()) {
		t.Errorf("an audit does not make it again: %v", err)
	}
	n.Counts()
	reset(t, p, table)
	if made := n.writes(); made > 0 {
		t.Errorf("a restart wrote %d times", made)
	}
	asked := &hns.Options{}
	asked.Winkernel.NetworkName = networkName
	removed := mode.Removal{Families: []lb.Family{lb.IPv4}, Blocks: option.Blocks{asked}}
	if _, err := hns.Remove(t.Context(), func() (hns.HNS, error) { return n, nil }, removed); err != nil ||
		!n.has(p.Source()) {
		t.Errorf("--cleanup removes it: %v", err)
	}
	if left := n.State(); len(left.LoadBalancers) > 0 {
		t.Errorf("left: %+v", left.LoadBalancers)
	}

	n, p = overlayNode(t) // of others
	id := n.AddPod(n.network, "source_vip", p.Source())
	reset(t, p, table)
	if e := n.endpointOf(t, "100.0.0.250"); e.ID != id || len(n.Touched()) > 0 {
		t.Errorf("that of the CNI is not used: %+v", e)
	}
	n, p = overlayNode(t)
	n.SetNetwork(n.network, func(w *hns.Network) { w.HostMAC = "" })
	_, err := p.Reset(t.Context(), table)
	says(t, err, "host MAC", networkName)
}

// Pods of an overlay network reach a cluster IP through a remote endpoint, which is deleted with
// the Service's last port (WN-06).
func TestClusterIPEndpointWN06(t *testing.T) {
	n, p := overlayNode(t)
	table := &lb.Table{Node: world.Node()}
	o, fronts := service(0, "100.0.0.1", "100.0.2.1")
	second := *fronts[0]
	second.Key.Port = 81
	table.Replace(o, append(fronts, &second))
	reset(t, p, table)
	vip := fronts[0].Key.Addr
	from := hnsfake.Packet{From: hnsfake.Pod, To: netip.AddrPortFrom(vip, 80), Proto: 6}
	if v := n.State().Resolve(from); len(v.Backends) != 2 {
		t.Errorf("a pod does not reach the cluster IP: %+v", v)
	}
	e := n.endpointOf(t, vip.String())
	if e.Flags&hns.RemoteEndpoint == 0 || e.MacAddress != hostMAC ||
		string(e.Policies[0].Settings) != `{"ProviderAddress":"192.0.0.1"}` {
		t.Errorf("the cluster IP's endpoint: %+v", e)
	}
	n.Damage(e.ID)
	if _, err := p.Audit(t.Context(), true); err != nil || len(n.State().Resolve(from).Backends) != 2 {
		t.Errorf("an audit does not make it again: %v", err)
	}
	n.Counts()
	reset(t, newPlane(t, p.Config()), table) // a restart
	if made := n.writes(); made > 0 {
		t.Errorf("a restart wrote %d times", made)
	}
	p = newPlane(t, p.Config())
	reset(t, p, table)
	apply(t, p, planetest.Changes(table.Replace(o, fronts)))
	if !n.has(vip) {
		t.Error("the endpoint went with the first port")
	}
	apply(t, p, planetest.Changes(table.Replace(o, nil)))
	if n.has(vip) {
		t.Errorf("the endpoint is left:\n%s", n.Own())
	}
}

// Backends see the node's address if one of them is another node or outside of the cluster, else
// the source VIP, also in l2bridge networks (kubernetes/kubernetes#91886, WN-08).
func TestSourceOfALoadBalancerWN08(t *testing.T) {
	for what, c := range map[string]struct {
		backends []string
		want     string
	}{
		"pods":                             {[]string{"100.0.0.1", "100.0.2.1"}, "100.0.0.250"},
		"this node":                        {[]string{"192.0.0.1"}, "100.0.0.250"},
		"another node":                     {[]string{"192.0.0.2"}, "192.0.0.1"},
		"a pod and another node":           {[]string{"100.0.2.1", "192.0.0.2"}, "192.0.0.1"},
		"the API server, not of a network": {[]string{"198.18.0.5"}, "192.0.0.1"},
	} {
		n, p := overlayNode(t)
		table := &lb.Table{Node: world.Node()}
		table.Replace(service(0, c.backends...))
		reset(t, p, table)
		if l, _ := n.balancerOf("10.0.0.1", 80); l.SourceVIP != c.want {
			t.Errorf("%s: source %q, want %q", what, l.SourceVIP, c.want)
		}
		// Another Service with the same backends gets the same source
		// (kubernetes/kubernetes#91912).
		apply(t, p, planetest.Changes(table.Replace(service(1, c.backends...))))
		if l, _ := n.balancerOf("10.0.0.2", 80); l.SourceVIP != c.want {
			t.Errorf("%s, the second Service: source %q, want %q", what, l.SourceVIP, c.want)
		}
	}
	n := newNode(hns.L2Bridge, hnsfake.Everything)
	cfg := n.config(lb.IPv4)
	cfg.SourceVIP = netip.MustParseAddr("192.0.0.1")
	reset(t, newPlane(t, cfg), world.Table(1, 3))
	if l, _ := n.balancerOf("10.0.0.1", 80); l.SourceVIP != "192.0.0.1" {
		t.Errorf("l2bridge: source %q", l.SourceVIP)
	}
}

// Port mappings have the flags used in production. A flag that a build refuses is requested once,
// then left out; both forms are adopted (kubernetes/kubernetes#74825, #113742, WN-10).
func TestFlagsWN10(t *testing.T) {
	for build, external := range map[string]hns.PortMappingFlags{"17763": 0, "20348": hns.MappingVIPExternal,
		"26100": hns.MappingVIPExternal} {
		n := oldNode(hns.L2Bridge, build)
		p, table := n.plane(t, lb.IPv4), world.Table(0, 0)
		for i := range 3 {
			o, fronts := world.Full(i, 30*i, 3, 2, 0)
			fronts[3].Sources = nil
			table.Replace(o, fronts)
		}
		reset(t, p, table)
		for vip, want := range map[string]hns.PortMappingFlags{"10.0.0.1": 0, "203.0.0.1": external,
			"198.0.0.1": external, "": hns.MappingLocalRoutedVIP} {
			port := uint16(80)
			if vip == "" {
				port = 30000
			}
			if l, ok := n.balancerOf(vip, port); !ok || l.PortMappings[0].Flags != want {
				t.Errorf("%s, %q: %+v, want flags %d", build, vip, l, want)
			}
		}
		refusals := n.Counts()["CreateLoadBalancer"] - 12
		if want := 1 - int(external/hns.MappingVIPExternal); refusals != want {
			t.Errorf("%s: HNS was asked for %d load balancers that it refuses, want %d", build, refusals, want)
		}
		if reported := strings.Count(notices(p), "flag of load balancers"); reported != refusals {
			t.Errorf("%s: reported %d times", build, reported)
		}
		if repaired, err := p.Audit(t.Context(), true); repaired != 0 || err != nil {
			t.Errorf("%s: an audit repaired %d, %v", build, repaired, err)
		}
		if _, err := n.plane(t, lb.IPv4).Reset(t.Context(), &lb.Table{}); err != nil || n.Own() != "\n" {
			t.Errorf("%s: what is without the flag is not known as ours: %v\n%s", build, err, n.Own())
		}
	}
}

// Backends of policy Local see the client without --enable-dsr, and are on this node
// (kubernetes/kubernetes#93166, WN-12).
func TestLocalKeepsClientsWN12(t *testing.T) {
	n := newNode(hns.L2Bridge, hnsfake.Everything)
	table := world.Table(0, 0)
	table.Replace(world.Full(0, 0, 4, 1, 0))
	reset(t, n.plane(t, lb.IPv4), table)
	for _, to := range []netip.AddrPort{netip.MustParseAddrPort("203.0.0.1:80"),
		netip.MustParseAddrPort("192.0.0.1:30000")} {
		packet := hnsfake.Packet{From: hnsfake.Outside, To: to, Proto: 6, ToNode: to.Port() == 30000}
		if v := n.State().Resolve(packet); !v.Kept || len(v.Backends) != 1 || v.Backends[0].Addr() != world.Addr(100,
			0) {
			t.Errorf("%s: %+v, want the pod of this node to see the client", to, v)
		}
		packet.From = hnsfake.Pod
		if v := n.State().Resolve(packet); len(v.Backends) != 1 {
			t.Errorf("%s from a pod: %+v, want this node's endpoint alone", to, v)
		}
	}
	if l, _ := n.balancerOf("10.0.0.1", 80); l.Flags != 0 {
		t.Errorf("the cluster IP has direct return without --enable-dsr: %+v", l)
	}
}

// A pod's endpoint is found whether HNS filters by address, ignores the filter or finds nothing.
// Policies that HNS adds do not change the owner (WN-14).
func TestFiltersWN14(t *testing.T) {
	for _, filter := range []string{"match", "everything", "nothing"} {
		facts := hnsfake.Assumed("26100")
		facts.Filter, facts.PoliciesAdded = filter, []string{"EncapOverhead", "L2Driver"}
		n := &windowsNode{Fake: hnsfake.With(facts)}
		n.addNetwork(hns.L2Bridge)
		p, table := n.plane(t, lb.IPv4), world.Table(0, 0)
		reset(t, p, table)
		for i := range 2 {
			n.Counts()
			apply(t, p, planetest.Changes(table.Replace(world.ClusterIP(i, 30*i, 9)))) // three pods of this node
			if l, _ := n.balancerOf(world.Addr(10, i+1).String(), 80); len(l.HostComputeEndpoints) != 9 {
				t.Errorf("%s: %+v, want nine endpoints", filter, l)
			}
			if lists := n.Counts()["Endpoints"]; lists > 1 || lists == 1 && filter != "nothing" {
				t.Errorf("%s: HNS was listed %d times", filter, lists)
			}
		}
		table = &lb.Table{Node: world.Node()}
		reset(t, n.plane(t, lb.IPv4), table)
		if own := n.Own(); own != "\n" {
			t.Errorf("%s: left:\n%s", filter, own)
		}
	}
}

// On Windows Server 2019 deletes sometimes fail, pods share addresses with our endpoints, and ports
// are refused: deletes are repeated, the pod's endpoint serves, and the error explains the port
// (kubernetes/kubernetes#113524, #138000, WN-16).
func TestServer2019WN16(t *testing.T) {
	n := oldNode(hns.L2Bridge, hnsfake.Builds[0])
	p, table := n.plane(t, lb.IPv4), world.Table(0, 0)
	reset(t, p, table)
	for i := range 20 {
		apply(t, p, planetest.Changes(table.Replace(world.ClusterIP(i, 30*i, 3))))
	}
	for i := range 20 {
		apply(t, p, planetest.Changes(table.Replace(lb.Owner{Name: serviceName(i)}, nil)))
	}
	if own := n.Own(); own != "\n" {
		t.Errorf("left:\n%s", own)
	}

	a := world.Addr(100, 601)
	apply(t, p, planetest.Changes(table.Replace(service(0, a.String()))))
	pod := n.AddPod(n.network, "pod", a) // beside ours
	o, fronts := service(1, a.String())
	fronts[0].Routes[0].To.Backends = lb.BackendsOf(lb.Backend{Addr: netip.AddrPortFrom(a, 8080), Local: true})
	apply(t, p, planetest.Changes(table.Replace(o, fronts)))
	if l, _ := n.balancerOf("10.0.0.2", 80); !slices.Equal(l.HostComputeEndpoints, []string{pod}) {
		t.Errorf("leads to %v, want the pod's %s", l.HostComputeEndpoints, pod)
	}
	if _, err := p.Audit(t.Context(), false); err != nil {
		t.Error(err)
	}
	if l, _ := n.balancerOf("10.0.0.1", 80); !slices.Equal(l.HostComputeEndpoints, []string{pod}) {
		t.Errorf("after the audit that leads to %v, too, want %s", l.HostComputeEndpoints, pod)
	}
	if e := n.State().Endpoints; len(e) != 20+1 { // the CNI's
		t.Errorf("%d endpoints are left, want the pods' alone", len(e))
	}

	_, fronts = world.Full(2767, 0, 3, 1, 0) // NodePort 32767
	changes, _ := table.Replace(lb.Owner{Name: "ns/svc-2767"}, fronts)
	_, err := p.Apply(t.Context(), changes)
	says(t, err, "32767", "0x803b0013", "netsh int ipv4 show", "dynamicport")
	if !errors.Is(err, hns.ErrExists) || strings.Count(err.Error(), "0x803b0013") != 1 {
		t.Error(fmt.Errorf("more than a row failed: %w", err))
	}
}

// With slow calls, as on Windows Server 2019 with many objects, a piece ends within some seconds of
// the bubble's clock (kubernetes/kubernetes#109124, WN-18).
func TestBatchWeightFollowsLatencyWN18(t *testing.T) {
	for _, c := range []struct {
		objectMillis float64
		least, most  int // load balancers in a piece
	}{{0.25, 10, 64}, {2, 2, 5}, {150, 1, 1}} {
		synctest.Test(t, func(t *testing.T) {
			facts := hnsfake.Assumed(hnsfake.Builds[0])
			facts.ObjectMillis = c.objectMillis
			n := &windowsNode{Fake: hnsfake.With(facts)}
			n.addNetwork(hns.L2Bridge)
			p, table := n.plane(t, lb.IPv4), world.Table(200, 1) // a pod of this node each
			n.schedule(table.Sorted()...)
			n.SetSlow()
			if p.MaxBatchWeight() != 64 {
				t.Errorf("before any call the pace is %d", p.MaxBatchWeight())
			}
			res, err := p.Reset(t.Context(), table)
			if err != nil || len(res.Later) != table.Len() {
				t.Fatalf("a Reset leaves %d of %d rows, %v", len(res.Later), table.Len(), err)
			}
			weigh := plane.Weights(p)
			var made int
			var took time.Duration
			for range 4 { // it learns the latency
				var changes []lb.Change
				for weight := 0; len(changes) == 0 || weight < p.MaxBatchWeight(); res.Later = res.Later[1:] {
					f := table.Get(res.Later[0])
					changes = append(changes, lb.Change{Key: f.Key, New: f})
					weight += weigh(f)
				}
				before, start := len(n.State().LoadBalancers), time.Now()
				if _, err := p.Apply(t.Context(), changes); err != nil {
					t.Fatal(err)
				}
				took, made = time.Since(start), len(n.State().LoadBalancers)-before
			}
			if maxBatchWeight := p.MaxBatchWeight(); maxBatchWeight < c.least || maxBatchWeight > c.most ||
				made > 2*maxBatchWeight || made > 1 && took > 5*time.Second {
				t.Errorf("%v ms for an object: the pace is %d, and an Apply made %d in %s; want %d to %d",
					c.objectMillis, maxBatchWeight, made, took, c.least, c.most)
			}
		})
	}
}

// Addresses with source ranges are not served or, if the cloud enforces the ranges, served to all;
// a warning and an event say which (WN-20).
func TestSourceRangesWN20(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		n := newNode(hns.L2Bridge, hnsfake.Everything)
		cfg := n.config(lb.IPv4)
		cfg.IgnoreSourceRanges = ignore
		p, table := newPlane(t, cfg), world.Table(0, 0)
		for i := range 2 {
			table.Replace(world.Full(i, 30*i, 3, 2, 0))
		}
		reset(t, p, table)
		if _, ok := n.balancerOf("198.0.0.1", 80); ok != ignore {
			t.Errorf("ignore %t: served %t", ignore, ok)
		}
		events := 0
		for _, note := range p.Notices() {
			if note.Event == nil {
				continue
			}
			events++
			e := note.Event("node1")
			for _, w := range []string{"node1", "198.0.0.1:80/tcp", "ns/svc-0", "loadBalancerSourceRanges"} {
				if !strings.Contains(e.Note, w) {
					t.Errorf("ignore %t: %q: want %q in it", ignore, e.Note, w)
				}
			}
			if strings.Contains(e.Note, "served to all clients") != ignore {
				t.Errorf("ignore %t: %q", ignore, e.Note)
			}
		}
		if events != 1 {
			t.Errorf("ignore %t: %d events, want 1", ignore, events)
		}
	}
}

// Health checks reach /healthz of Services without a healthCheckNodePort. If Windows refuses to
// forward a port on which this proxy listens, a notice says so, and each Reset tries once
// (kubernetes/kubernetes#99287, kubernetes/community#8883, WN-22).
func TestForwardHealthzWN22(t *testing.T) {
	for _, build := range hnsfake.Builds {
		n := oldNode(hns.L2Bridge, build)
		root := n.AddPod(n.network, "cbr0", netip.MustParseAddr("100.0.0.253"))
		n.Reserve(hnsfake.Key{Port: 10256, Proto: 6}) // the proxy's own listener
		cfg := n.config(lb.IPv4)
		cfg.ForwardHealthCheckVIP, cfg.HealthzPort = true, 10256
		p, table := newPlane(t, cfg), &lb.Table{Node: world.Node()}
		for i := range 3 {
			o, fronts := world.ClusterIP(i, 30*i, 2)
			balancer := loadBalancer(fmt.Sprintf("198.0.0.%d", i+1), fronts[0].Set(lb.Cluster))
			balancer.Service = fronts[0].Service
			table.Replace(o, append(fronts, balancer))
		}
		reset(t, p, table)
		refused := build == hnsfake.Builds[0]
		l, ok := n.balancerOf("198.0.0.1", 10256)
		if ok == refused || ok && l.HostComputeEndpoints[0] != root {
			t.Errorf("%s: forwarded %t to %v", build, ok, l.HostComputeEndpoints)
		}
		if reported := strings.Count(notices(p), "does not forward a port"); reported != map[bool]int{
			true: 1}[refused] {
			t.Errorf("%s: reported %d times", build, reported)
		}
		n.Counts()
		if repaired, err := p.Audit(t.Context(), true); repaired != 0 || err != nil ||
			n.Counts()["CreateLoadBalancer"] > 0 {
			t.Errorf("%s: an audit repaired %d, %v", build, repaired, err)
		}
		// With a port of its own, the Service's checks go there.
		o, fronts := world.ClusterIP(1, 30, 2)
		changes, _ := table.Replace(o, append(fronts, loadBalancer("198.0.0.2", fronts[0].Set(lb.Cluster)),
			healthCheck(32100)))
		apply(t, p, changes)
		if _, ok := n.balancerOf("198.0.0.2", 32100); !ok {
			t.Errorf("%s: the Service's own check is not forwarded:\n%s", build, n.Own())
		}
		if _, ok := n.balancerOf("198.0.0.2", 10256); ok {
			t.Errorf("%s: /healthz is forwarded beside it", build)
		}
	}
}

// unchanging is an HNS that accepts modifications of load balancers and ignores them.
type unchanging struct {
	*hnsfake.Fake
	asked int
}

func (u *unchanging) ModifyLoadBalancer(ctx context.Context, l hns.LoadBalancer) (hns.LoadBalancer, error) {
	u.asked++
	all, err := u.LoadBalancers(ctx)
	i := slices.IndexFunc(all, func(o hns.LoadBalancer) bool { return strings.EqualFold(o.ID, l.ID) })
	if i < 0 {
		return l, errors.Join(err, hns.ErrNotFound)
	}
	return all[i], err
}

// HNS 15.4 ignores modifications: from then on the load balancer is deleted and created again, also
// after a Reset (kubernetes/kubernetes#131466, WN-28).
func TestModificationsIgnored(t *testing.T) {
	n, overlay := overlayNode(t)
	h := &unchanging{Fake: n.Fake}
	cfg := overlay.Config()
	cfg.HNS = h
	made, err := hns.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p, table := testPlane{made, n}, world.Table(0, 0)
	table.Replace(service(0, "100.0.2.1"))
	reset(t, p, table)
	for _, backends := range [][]string{{"100.0.2.1", "100.0.2.2"}, {"100.0.2.2"}, {"100.0.2.1", "100.0.2.3"}} {
		apply(t, p, planetest.Changes(table.Replace(service(0, backends...))))
		if l, _ := n.balancerOf("10.0.0.1", 80); len(l.HostComputeEndpoints) != len(backends) ||
			!n.has(world.Addr(10, 1)) {
			t.Errorf("want endpoints for %v and the cluster IP:\n%s", backends, n.Own())
		}
		if repaired, err := p.Audit(t.Context(), true); repaired != 0 || err != nil {
			t.Errorf("an audit repairs %d, %v", repaired, err)
		}
		reset(t, p, table)
	}
	if h.asked != 1 {
		t.Errorf("HNS was asked %d times to modify, want once", h.asked)
	}
}
