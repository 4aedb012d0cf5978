package hnsfake

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/plane/hns"
)

var (
	_   hns.HNS = (*Fake)(nil)
	ctx         = context.Background()
	vip         = netip.MustParseAddr("10.96.0.10")
)

// stage is a node with a network, a local pod, and one of another node.
type stage struct {
	*testing.T
	*Fake
	network, pod, remote string
}

func setUp(t *testing.T, kind hns.NetworkType, f hns.Features) *stage {
	s := &stage{T: t, Fake: New(f)}
	s.network = s.AddNetwork(hns.Network{Name: "cbr0", Type: kind, ManagementIP: "172.18.0.2"})
	s.pod = s.AddPod(s.network, "pod1", netip.MustParseAddr("10.1.1.11"))
	made, err := s.CreateEndpoint(ctx, s.elsewhere("10.1.2.14"))
	if err != nil {
		t.Fatal(err)
	}
	s.remote = made.ID
	return s
}

func (s *stage) elsewhere(addr string) hns.Endpoint {
	return hns.Endpoint{HostComputeNetwork: s.network, Flags: hns.RemoteEndpoint, MacAddress: "02-11-0A-01-02-0E",
		SchemaVersion:    hns.Version2,
		IPConfigurations: []hns.IPConfig{{IPAddress: addr}},
		Policies: []hns.Policy{
			{Type: hns.PolicyProviderAddress, Settings: []byte(`{"ProviderAddress":"172.18.0.3"}`)}}}
}

func (s *stage) balancer(endpoints ...string) hns.LoadBalancer {
	return hns.LoadBalancer{HostComputeEndpoints: endpoints, FrontendVIPs: []string{vip.String()},
		SchemaVersion: hns.Version2,
		PortMappings:  []hns.PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: 80}}}
}

func (s *stage) create(l hns.LoadBalancer) hns.LoadBalancer {
	s.Helper()
	made, err := s.CreateLoadBalancer(ctx, l)
	if err != nil {
		s.Fatal(err)
	}
	return made
}

func refused(t *testing.T, what string, err, kind error) {
	t.Helper()
	var e *hns.Error
	if !errors.As(err, &e) || !errors.Is(err, kind) {
		t.Errorf("%s: %v, want %v", what, err, kind)
	}
}

// An object needs those that it refers to, and a referenced object stays.
func TestReferences(t *testing.T) {
	s := setUp(t, hns.L2Bridge, Everything)
	l := s.create(s.balancer(s.pod, s.remote))
	refused(t, "delete an endpoint in use", s.DeleteEndpoint(ctx, s.remote), hns.ErrInUse)
	l.HostComputeEndpoints = []string{s.pod}
	if _, err := s.ModifyLoadBalancer(ctx, l); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteEndpoint(ctx, s.remote); err != nil {
		t.Error("what is not used any more:", err)
	}
	refused(t, "delete it again", s.DeleteEndpoint(ctx, s.remote), hns.ErrNotFound)
	l.HostComputeEndpoints = []string{s.remote}
	_, err := s.ModifyLoadBalancer(ctx, l)
	refused(t, "send to what has gone", err, hns.ErrNotFound)
	if err := s.DeleteLoadBalancer(ctx, l.ID); err != nil {
		t.Fatal(err)
	}
	refused(t, "delete a load balancer again", s.DeleteLoadBalancer(ctx, l.ID), hns.ErrNotFound)
	_, err = s.ModifyLoadBalancer(ctx, l)
	refused(t, "modify what has gone", err, hns.ErrNotFound)
	if st := s.State(); len(st.Endpoints) != 1 || len(st.LoadBalancers) != 0 || len(s.Touched()) != 0 {
		t.Errorf("left: %+v, touched %q", st, s.Touched())
	}
}

// A key has one load balancer, whatever its flags and endpoints; the node's address has none.
func TestOneLoadBalancerForAKey(t *testing.T) {
	s := setUp(t, hns.L2Bridge, Everything)
	s.create(s.balancer(s.pod))
	node := s.balancer(s.pod)
	node.FrontendVIPs = nil
	s.create(node)
	for what, change := range map[string]func(*hns.LoadBalancer){
		"again": func(*hns.LoadBalancer) {},
		"with other flags": func(l *hns.LoadBalancer) {
			l.Flags = hns.FlagDSR
			l.PortMappings[0].Flags = hns.MappingILB
		},
		"with another port": func(l *hns.LoadBalancer) { l.PortMappings[0].InternalPort = 8081 },
		"among others":      func(l *hns.LoadBalancer) { l.FrontendVIPs = []string{"10.96.0.11", vip.String()} },
		"of the node":       func(l *hns.LoadBalancer) { l.FrontendVIPs = nil },
	} {
		l := s.balancer(s.remote)
		change(&l)
		_, err := s.CreateLoadBalancer(ctx, l)
		refused(t, what, err, hns.ErrExists)
	}
	udp := s.balancer(s.pod)
	udp.PortMappings[0].Protocol = 17
	s.create(udp)
	s.Reserve(Key{Port: 30080, Proto: 6})
	node.PortMappings[0].ExternalPort = 30080
	_, err := s.CreateLoadBalancer(ctx, node)
	refused(t, "a port that a program of the node has", err, hns.ErrExists)
}

// Ids are equal in either case; load balancers show endpoint ids in lower case.
func TestCaseOfIDs(t *testing.T) {
	s := setUp(t, hns.L2Bridge, Everything)
	l := s.create(s.balancer(strings.ToLower(s.pod)))
	if l.ID != strings.ToUpper(l.ID) || l.HostComputeEndpoints[0] != strings.ToLower(s.pod) ||
		s.pod == strings.ToLower(s.pod) {
		t.Errorf("%s has %s", l.ID, l.HostComputeEndpoints[0])
	}
	refused(t, "delete an endpoint in use", s.DeleteEndpoint(ctx, strings.ToLower(s.pod)), hns.ErrInUse)
	l.ID, l.HostComputeEndpoints = strings.ToLower(l.ID), []string{s.remote}
	if _, err := s.ModifyLoadBalancer(ctx, l); err != nil {
		t.Error(err)
	}
	if got, err := s.Endpoints(ctx, strings.ToLower(s.network)); err != nil || len(got) != 2 {
		t.Errorf("%d endpoints, %v", len(got), err)
	}
	if err := s.DeleteLoadBalancer(ctx, l.ID); err != nil {
		t.Error(err)
	}
}

// An address has one endpoint of a network.
func TestOneEndpointForAnAddress(t *testing.T) {
	s := setUp(t, hns.Overlay, Everything)
	for _, addr := range []string{"10.1.1.11", "10.1.2.14"} {
		_, err := s.CreateEndpoint(ctx, s.elsewhere(addr))
		refused(t, addr, err, hns.ErrExists)
	}
	other := s.elsewhere("10.1.2.14")
	other.HostComputeNetwork = s.AddNetwork(hns.Network{Name: "other", Type: hns.L2Bridge})
	e, err := s.CreateEndpoint(ctx, other)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.CreateLoadBalancer(ctx, s.balancer(s.remote, e.ID))
	refused(t, "a load balancer over two networks", err, hns.ErrInvalid)
	for _, c := range []struct {
		network, addr string
		id            string
	}{{s.network, "10.1.2.14", s.remote}, {other.HostComputeNetwork, "10.1.2.14", e.ID}, {s.network, "10.1.2.15", ""}} {
		at, err := s.EndpointsAt(ctx, c.network, c.addr)
		if err != nil || len(at) != min(1, len(c.id)) || len(at) == 1 && at[0].ID != c.id {
			t.Errorf("at %s: %+v, %v, want %q", c.addr, at, err, c.id)
		}
	}
}

// Endpoints that HNS rejects, and those that it might reject.
func TestRefusedEndpoints(t *testing.T) {
	s := setUp(t, hns.Overlay, Everything)
	for what, change := range map[string]func(*hns.Endpoint){
		"an ID of ours":        func(e *hns.Endpoint) { e.ID = s.pod },
		"a namespace":          func(e *hns.Endpoint) { e.HostComputeNamespace = s.pod },
		"no schema version":    func(e *hns.Endpoint) { e.SchemaVersion = hns.Version{} },
		"a long name":          func(e *hns.Endpoint) { e.Name = strings.Repeat("n", 256) },
		"an unknown flag":      func(e *hns.Endpoint) { e.Flags |= 4 },
		"no address":           func(e *hns.Endpoint) { e.IPConfigurations = nil },
		"text for an address":  func(e *hns.Endpoint) { e.IPConfigurations[0].IPAddress = "10.1.2" },
		"address of everybody": func(e *hns.Endpoint) { e.IPConfigurations[0].IPAddress = "0.0.0.0" },
		"loopback":             func(e *hns.Endpoint) { e.IPConfigurations[0].IPAddress = "127.0.0.1" },
		"multicast":            func(e *hns.Endpoint) { e.IPConfigurations[0].IPAddress = "ff02::1" },
		"an address of a link": func(e *hns.Endpoint) { e.IPConfigurations[0].IPAddress = "fe80::1%eth0" },
		"a long prefix":        func(e *hns.Endpoint) { e.IPConfigurations[0].PrefixLength = 33 },
		"two of a family": func(e *hns.Endpoint) {
			e.IPConfigurations = append(e.IPConfigurations, hns.IPConfig{IPAddress: "10.1.2.16"})
		},
		"no hardware address": func(e *hns.Endpoint) { e.MacAddress = "" },
		"MAC with colons":     func(e *hns.Endpoint) { e.MacAddress = "02:11:0A:01:02:0E" },
		"no provider address": func(e *hns.Endpoint) { e.Policies = nil },
		"text for a provider": func(e *hns.Endpoint) {
			e.Policies[0].Settings = []byte(`{"ProviderAddress":"node2"}`)
		},
		"provider without value": func(e *hns.Endpoint) { e.Policies[0].Settings = nil },
	} {
		e := s.elsewhere("10.1.2.15")
		change(&e)
		_, err := s.CreateEndpoint(ctx, e)
		refused(t, what, err, hns.ErrInvalid)
	}
	e := s.elsewhere("10.1.2.15")
	e.HostComputeNetwork = "no such"
	_, err := s.CreateEndpoint(ctx, e)
	refused(t, "no such network", err, hns.ErrNotFound)
	if n := len(s.State().Endpoints); n != 2 {
		t.Errorf("%d endpoints", n)
	}
}

func TestRefusedLoadBalancers(t *testing.T) {
	s := setUp(t, hns.L2Bridge, Everything)
	six := s.AddPod(s.network, "pod2", netip.MustParseAddr("10.1.1.12"), netip.MustParseAddr("fd00:10:1:1::12"))
	mapping := func(change func(*hns.PortMapping)) func(*hns.LoadBalancer) {
		return func(l *hns.LoadBalancer) { change(&l.PortMappings[0]) }
	}
	cases := map[string]func(*hns.LoadBalancer){
		"an ID of ours":          func(l *hns.LoadBalancer) { l.ID = s.pod },
		"no schema version":      func(l *hns.LoadBalancer) { l.SchemaVersion = hns.Version{} },
		"no endpoints":           func(l *hns.LoadBalancer) { l.HostComputeEndpoints = nil },
		"one twice":              func(l *hns.LoadBalancer) { l.HostComputeEndpoints = []string{s.pod, s.pod} },
		"text for an address":    func(l *hns.LoadBalancer) { l.FrontendVIPs = []string{"web"} },
		"no address in the list": func(l *hns.LoadBalancer) { l.FrontendVIPs = []string{""} },
		"an address twice":       func(l *hns.LoadBalancer) { l.FrontendVIPs = []string{"10.96.0.10", "10.96.0.10"} },
		"IPv6 without its flag":  func(l *hns.LoadBalancer) { l.FrontendVIPs = []string{"fd00:10:96::10"} },
		"its flag without IPv6":  func(l *hns.LoadBalancer) { l.Flags = hns.FlagIPv6 },
		"both families": func(l *hns.LoadBalancer) {
			l.FrontendVIPs, l.Flags, l.HostComputeEndpoints = []string{"10.96.0.10", "fd00:10:96::10"}, hns.FlagIPv6,
				[]string{six}
		},
		"IPv6 to an endpoint without": func(l *hns.LoadBalancer) {
			l.FrontendVIPs, l.Flags = []string{"fd00:10:96::10"}, hns.FlagIPv6
		},
		"an unknown flag": func(l *hns.LoadBalancer) { l.Flags = 4 },
		"no port":         func(l *hns.LoadBalancer) { l.PortMappings = nil },
		"two ports": func(l *hns.LoadBalancer) {
			l.PortMappings = append(l.PortMappings, l.PortMappings[0])
		},
		"source of another family":  func(l *hns.LoadBalancer) { l.SourceVIP = "fd00:10:1:1::12" },
		"SCTP":                      mapping(func(m *hns.PortMapping) { m.Protocol = 132 }),
		"internal port 0":           mapping(func(m *hns.PortMapping) { m.InternalPort = 0 }),
		"external port 0":           mapping(func(m *hns.PortMapping) { m.ExternalPort = 0 }),
		"a mapping's unknown flag":  mapping(func(m *hns.PortMapping) { m.Flags = 32 }),
		"a multiplexer without DSR": mapping(func(m *hns.PortMapping) { m.Flags = hns.MappingUseMux }),
		"preserved without DSR":     mapping(func(m *hns.PortMapping) { m.Flags = hns.MappingPreserveDIP }),
		"an unknown distribution":   mapping(func(m *hns.PortMapping) { m.DistributionType = 3 }),
	}
	for what, change := range cases {
		l := s.balancer(s.pod)
		change(&l)
		_, err := s.CreateLoadBalancer(ctx, l)
		refused(t, what, err, hns.ErrInvalid)
	}
	_, err := s.CreateLoadBalancer(ctx, s.balancer("no such"))
	refused(t, "no such endpoint", err, hns.ErrNotFound)

	overlay := setUp(t, hns.Overlay, Everything)
	_, err = overlay.CreateLoadBalancer(ctx, overlay.balancer(overlay.remote))
	refused(t, "no source in an overlay network", err, hns.ErrInvalid)
	l := overlay.balancer(overlay.remote)
	l.SourceVIP = "10.1.2.14"
	_, err = overlay.CreateLoadBalancer(ctx, l)
	refused(t, "a source that is not of this node", err, hns.ErrInvalid)
	l.SourceVIP = "10.1.1.11"
	overlay.create(l)
	l.SourceVIP, l.FrontendVIPs = "172.18.0.2", []string{"10.96.0.11"}
	overlay.create(l)

	made := s.create(s.balancer(s.pod))
	for what, change := range map[string]func(*hns.LoadBalancer){
		"the address": func(l *hns.LoadBalancer) { l.FrontendVIPs = []string{"10.96.0.11"} },
		"the port":    mapping(func(m *hns.PortMapping) { m.InternalPort = 8081 }),
		"the flags":   func(l *hns.LoadBalancer) { l.Flags = hns.FlagDSR },
		"all of it":   func(l *hns.LoadBalancer) { l.HostComputeEndpoints = nil },
	} {
		l := cloneBalancer(made)
		change(&l)
		_, err := s.ModifyLoadBalancer(ctx, l)
		refused(t, "in place: "+what, err, hns.ErrInvalid)
	}
}

// Older versions reject unknown fields.
func TestFeatures(t *testing.T) {
	balancer := func(change func(*hns.LoadBalancer)) func(*stage) error {
		return func(s *stage) error {
			l := s.balancer(s.pod)
			change(&l)
			return second(s.CreateLoadBalancer(ctx, l))
		}
	}
	for what, c := range map[string]struct {
		without func(*hns.Features)
		ask     func(s *stage) error
		want    error
	}{
		"DSR": {func(f *hns.Features) { f.DSR = false }, balancer(func(l *hns.LoadBalancer) { l.Flags = hns.FlagDSR }),
			hns.ErrInvalid},
		"session affinity": {func(f *hns.Features) { f.SessionAffinity = false },
			balancer(func(l *hns.LoadBalancer) { l.PortMappings[0].DistributionType = hns.PerClient }), hns.ErrInvalid},
		"IPv6": {func(f *hns.Features) { f.IPv6DualStack = false }, func(s *stage) error {
			return second(s.CreateEndpoint(ctx, s.elsewhere("fd00:10:1:2::14")))
		}, hns.ErrInvalid},
		"IPv6 of a frontend": {func(f *hns.Features) { f.IPv6DualStack = false },
			balancer(func(l *hns.LoadBalancer) { l.FrontendVIPs, l.Flags = nil, hns.FlagIPv6 }), hns.ErrInvalid},
		"modify": {func(f *hns.Features) { f.ModifyLoadbalancer = false }, func(s *stage) error {
			return second(s.ModifyLoadBalancer(ctx, s.create(s.balancer(s.pod))))
		}, hns.ErrUnsupported},
		"schema version 2": {func(f *hns.Features) { f.V2 = false }, func(s *stage) error {
			return second(s.Networks(ctx, "cbr0"))
		}, hns.ErrUnsupported},
	} {
		s := setUp(t, hns.L2Bridge, Everything)
		f := Everything
		c.without(&f)
		s.SetFeatures(f)
		refused(t, what, c.ask(s), c.want)
		f.Build = s.facts.Build
		if got, err := s.Features(ctx); err != nil || got != f {
			t.Errorf("%s: features %+v, %v", what, got, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// A call fails as configured: before it takes effect, after, or with its context. All methods pass
// through one function, and plane/hns tests most of them.
func TestFaults(t *testing.T) {
	for what, c := range map[string]struct {
		fault   Fault
		want    error
		happens bool
	}{
		"access denied":   {Fault{Code: hns.CodeAccessDenied}, hns.ErrDenied, false},
		"answer is lost":  {Fault{Code: hns.CodeServiceUnreachable, Done: true}, hns.ErrRPC, true},
		"hangs":           {Fault{Hangs: true}, hns.ErrTimeout, false},
		"hangs when done": {Fault{Hangs: true, Done: true}, hns.ErrTimeout, true},
		"of a kind":       {Fault{Kind: hns.ErrInUse}, hns.ErrInUse, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := setUp(t, hns.L2Bridge, Everything)
			l := s.create(s.balancer(s.pod))
			s.FailWith(func(Call) *Fault { return &c.fault })
			soon, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			refused(t, what, s.DeleteLoadBalancer(soon, l.ID), c.want)
			if hung := soon.Err() != nil; hung != (what == "hangs") {
				t.Errorf("%s: the call hung: %t", what, hung)
			}
			s.FailWith(nil)
			cancel()
			refused(t, what+", cancelled", s.DeleteLoadBalancer(soon, l.ID), hns.ErrTimeout)
			if happens := !s.State().Lives(l.ID); happens != c.happens {
				t.Errorf("%s: takes effect: %t", what, happens)
			}
		})
	}
}

// A late call takes effect some calls later, on the state at that time.
func TestLate(t *testing.T) {
	s := setUp(t, hns.L2Bridge, Everything)
	l := s.create(s.balancer(s.pod))
	s.FailWith(func(c Call) *Fault {
		if c.Name == "DeleteLoadBalancer" || c.Name == "CreateLoadBalancer" {
			return &Fault{Late: 2}
		}
		return nil
	})
	refused(t, "a late delete", s.DeleteLoadBalancer(ctx, l.ID), hns.ErrTimeout)
	for i, want := range []int{1, 0} {
		if got, err := s.LoadBalancers(ctx); err != nil || len(got) != want {
			t.Errorf("%d calls later: %d load balancers, %v, want %d", i+1, len(got), err, want)
		}
	}
	refused(t, "a late create", second(s.CreateLoadBalancer(ctx, s.balancer(s.pod))), hns.ErrTimeout)
	s.FailWith(nil)
	s.create(s.balancer(s.remote))
	s.CatchUp()
	if got, err := s.LoadBalancers(ctx); err != nil || len(got) != 1 ||
		got[0].HostComputeEndpoints[0] != strings.ToLower(s.remote) {
		t.Errorf("after one that came before it: %+v, %v", got, err)
	}
}

// Actions of other programs: a network is deleted with everything in it, a pod although it is used.
func TestOthers(t *testing.T) {
	s := setUp(t, hns.L2Bridge, Everything)
	l := s.create(s.balancer(s.pod, s.remote))
	s.RemovePod(s.pod)
	st := s.State()
	if len(st.LoadBalancers) != 1 || len(st.LoadBalancers[0].HostComputeEndpoints) != 1 || len(st.Endpoints) != 1 {
		t.Errorf("without the pod: %+v", st)
	}
	s.Foreign(l.ID)
	s.Damage(s.remote)
	if st := s.State(); len(st.LoadBalancers) != 0 || len(st.Endpoints) != 0 {
		t.Errorf("without the other: %+v", st)
	}
	s.pod = s.AddPod(s.network, "pod1", netip.MustParseAddr("10.1.1.11"))
	l = s.create(s.balancer(s.pod))
	s.Foreign(l.ID)
	if err := s.DeleteLoadBalancer(ctx, l.ID); err != nil || len(s.Touched()) != 1 {
		t.Errorf("touched %q, %v", s.Touched(), err)
	}
	s.create(s.balancer(s.pod))
	s.RemoveNetwork(s.network)
	if st := s.State(); len(st.LoadBalancers) != 0 || len(st.Endpoints) != 0 || len(st.Networks) != 0 {
		t.Errorf("without the network: %+v", st)
	}
	if again := s.AddNetwork(hns.Network{Name: "cbr0", Type: hns.L2Bridge}); again == s.network {
		t.Error("the network came back with its old ID")
	}
}

// The load balancer of a packet, its possible destinations, and the source that the backend sees.
func TestResolve(t *testing.T) {
	const dsr, ilb, local = hns.FlagDSR, hns.MappingILB, hns.MappingLocalRoutedVIP
	clusterIP, node := netip.MustParseAddrPort("10.96.0.10:80"), netip.MustParseAddrPort("172.18.0.2:80")
	pod, remote := netip.MustParseAddrPort("10.1.1.11:8080"), netip.MustParseAddrPort("10.1.2.14:8080")
	both, here := []netip.AddrPort{pod, remote}, []netip.AddrPort{pod}
	for what, c := range map[string]struct {
		flags   hns.LoadBalancerFlags
		mapping hns.PortMappingFlags
		vip     bool
		from    Source
		want    []netip.AddrPort
		kept    bool
	}{
		"a pod to an address":                        {0, 0, true, Pod, both, false},
		"a pod to an address, with DSR":              {dsr, 0, true, Pod, both, true},
		"a pod to an address, inside alone":          {0, ilb, true, Pod, both, false},
		"the host to an address":                     {0, 0, true, Host, both, false},
		"the host to an address, routed":             {0, local, true, Host, both, false},
		"the host to an address, routed and inside":  {0, local | ilb, true, Host, both, false},
		"from outside to an address":                 {0, 0, true, Outside, both, false},
		"from outside to an address, with DSR":       {dsr, 0, true, Outside, here, true},
		"from outside to an address, inside alone":   {0, ilb, true, Outside, nil, false},
		"a pod to the node":                          {0, 0, false, Pod, nil, false},
		"a pod to the node, routed":                  {0, local, false, Pod, both, false},
		"the host to itself":                         {0, 0, false, Host, nil, false},
		"the host to itself, routed":                 {0, local, false, Host, both, false},
		"from outside to the node":                   {0, 0, false, Outside, both, false},
		"from outside to the node, with DSR":         {dsr, 0, false, Outside, here, true},
		"from outside to the node, kept destination": {dsr, hns.MappingPreserveDIP, false, Outside, here, true},
	} {
		s := setUp(t, hns.L2Bridge, Everything)
		l := s.balancer(s.pod, s.remote)
		l.Flags, l.PortMappings[0].Flags = c.flags, c.mapping
		p := Packet{From: c.from, To: clusterIP, Proto: 6}
		if !c.vip {
			l.FrontendVIPs, p.To, p.ToNode = nil, node, true
		}
		l = s.create(l)
		want := Verdict{LoadBalancer: l.ID, Backends: c.want, Kept: c.kept}
		if c.want == nil {
			want = Verdict{}
		}
		if got := s.State().Resolve(p); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
		for other, q := range map[string]Packet{
			"another port":         {From: c.from, To: netip.AddrPortFrom(p.To.Addr(), 81), Proto: 6, ToNode: p.ToNode},
			"another protocol":     {From: c.from, To: p.To, Proto: 17, ToNode: p.ToNode},
			"another address":      {From: c.from, To: netip.MustParseAddrPort("10.96.0.11:80"), Proto: 6},
			"an address like that": {From: c.from, To: netip.MustParseAddrPort("[::ffff:10.96.0.10]:80"), Proto: 6},
		} {
			if got := s.State().Resolve(q); !reflect.DeepEqual(got, Verdict{}) {
				t.Errorf("%s: %s: %+v", what, other, got)
			}
		}
	}
}

// A load balancer with the node's address precedes one without an address. Affinity follows the
// mapping. A connection lives as long as its load balancer.
func TestResolveOrder(t *testing.T) {
	s := setUp(t, hns.L2Bridge, Everything)
	node, address := s.balancer(s.pod), s.balancer(s.remote)
	node.FrontendVIPs, address.FrontendVIPs = nil, []string{"172.18.0.2"}
	address.PortMappings[0].DistributionType = hns.PerClient
	s.create(node)
	l := s.create(address)
	v := s.State().Resolve(Packet{From: Outside, To: netip.MustParseAddrPort("172.18.0.2:80"), Proto: 6, ToNode: true})
	if v.LoadBalancer != l.ID || !v.Sticky || !s.State().Lives(l.ID) {
		t.Errorf("%+v, want %s", v, l.ID)
	}
	if err := s.DeleteLoadBalancer(ctx, l.ID); err != nil || s.State().Lives(l.ID) {
		t.Errorf("a connection outlives its load balancer: %v", err)
	}
	v = s.State().Resolve(Packet{From: Outside, To: netip.MustParseAddrPort("172.18.0.2:80"), Proto: 6, ToNode: true})
	if v.LoadBalancer == "" || v.Sticky {
		t.Errorf("%+v, want that of the node", v)
	}
}

// In an overlay network packets reach the node of the endpoint, and arrive if the pod is on it.
func TestResolveOverlay(t *testing.T) {
	for what, c := range map[string]struct {
		addr, node string
		arrives    bool
	}{
		"the node of the pod":            {"10.1.2.15", "172.18.0.3", true},
		"another node":                   {"10.1.2.15", "172.18.0.4", false},
		"the node of the longest prefix": {"10.1.2.200", "172.18.0.4", true},
		"that of a shorter one":          {"10.1.2.200", "172.18.0.3", false},
		"that, as if it were a node":     {"172.18.0.5", "172.18.0.5", false},
		"that, by another node":          {"172.18.0.5", "172.18.0.3", false},
		"what the network does not know": {"172.18.0.5", "172.18.0.2", true},
		"a node of the network":          {"172.18.0.3", "172.18.0.3", true},
	} {
		s := setUp(t, hns.Overlay, Everything)
		s.SetNetwork(s.network, func(n *hns.Network) {
			for pods, node := range map[string]string{"10.1.2.0/24": "172.18.0.3", "10.1.2.128/25": "172.18.0.4"} {
				n.Policies = append(n.Policies, hns.Policy{Type: hns.PolicyRemoteSubnetRoute,
					Settings: []byte(`{"DestinationPrefix":"` + pods + `","ProviderAddress":"` + node + `"}`)})
			}
		})
		e := s.elsewhere(c.addr)
		e.Policies[0].Settings = []byte(`{"ProviderAddress":"` + c.node + `"}`)
		made, err := s.CreateEndpoint(ctx, e)
		if err != nil {
			t.Fatal(err)
		}
		l := s.balancer(made.ID)
		l.SourceVIP = "10.1.1.11"
		s.create(l)
		if got := s.State().Resolve(Packet{From: Pod, To: netip.AddrPortFrom(vip, 80),
			Proto: 6}); (len(got.Backends) == 1) != c.arrives {
			t.Errorf("%s: %+v, arrives: %t", what, got, c.arrives)
		}
	}
}
