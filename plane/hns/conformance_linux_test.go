package hns_test

import (
	"context"
	"maps"
	"net/netip"
	"testing"

	"kube-proxy/config/option"
	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
	"kube-proxy/test/scenario"
	"kube-proxy/trace"
)

// TestConformance resolves the packets of every scenario in the fake's load balancers: the column
// "kernelspace (HNS as assumed)" of docs/conformance.md, with the default configuration.
func TestConformance(t *testing.T) {
	planetest.Run(t, planetest.Config{Mode: "kernelspace", Stands: "HNS as assumed", Model: node{}.model,
		Trace: node{}.traced, Otherwise: differing(nil), DiffersIn: unasked})
}

// TestConformanceDSR does so with --enable-dsr: sources that other modes keep are kept.
func TestConformanceDSR(t *testing.T) {
	planetest.Run(t, planetest.Config{Mode: "kernelspace --enable-dsr", Stands: "HNS as assumed",
		Model:        node{dsr: true}.model,
		KeepsSources: true, Trace: node{dsr: true}.traced, DiffersIn: unasked,
		Otherwise: differing(map[planetest.Modelled][]string{
			// With DSR, the node sends external clients of a cluster IP to its own backends.
			planetest.ModelledInside: {"clusterip", "clusterip-single-endpoint", "detect-bridge", "detect-cluster-cidr",
				"detect-interface-prefix",
				"detect-node-cidr", "detect-node-cidr-changes", "external-policy-local-none-local", "masquerade-all",
				"session-affinity",
				"session-affinity-survives-changes", "source-ranges", "udp"},
		})})
}

// unasked are scenarios that the fake cannot show, with the reason.
var unasked = map[string]string{"first-connection": "the fake of HNS knows no connection that waits for its first " +
	"answer"}

// differing returns the lines that HNS cannot implement, by reason, without those of more.
func differing(more map[planetest.Modelled][]string) map[planetest.Modelled][]string {
	all := map[planetest.Modelled][]string{
		planetest.ModelledAffinity: {"changes-while-down", "restart", "session-affinity-survives-changes",
			"session-affinity-timeout"},
		planetest.ModelledFlows:  {"established-connections", "udp-endpoint-swapped"},
		planetest.ModelledInside: nil,
		planetest.ModelledNodePorts: {"node-address-changes", "nodeport-addresses-localhost",
			"nodeport-addresses-one-family", "nodeport-addresses-primary", "nodeport-addresses-ranges"},
		planetest.ModelledPorts: {"dead-endpoint", "multiple-slices"},
		planetest.ModelledRanges: {"node-address-changes", "source-ranges", "source-ranges-change",
			"source-ranges-local-policy", "source-ranges-node",
			"source-ranges-node-port"},
		planetest.ModelledSCTP: {"same-port-different-protocols", "sctp"},
		planetest.ModelledSplit: {"detect-bridge", "detect-cluster-cidr", "detect-cluster-cidr-one-family",
			"detect-interface-prefix", "detect-node-cidr",
			"detect-none", "external-policy-local", "external-policy-local-none-local", "external-policy-local-udp",
			"loadbalancer-address-on-node",
			"node-name-unknown", "policies-cross", "terminating-external-local"},
	}
	maps.Copy(all, more)
	return all
}

// TestConformanceVariants does so in an overlay network, and with an HNS that modifies nothing.
func TestConformanceVariants(t *testing.T) {
	old := hnsfake.Everything
	old.ModifyLoadbalancer = false
	for name, n := range map[string]node{
		"overlay":        {network: hns.Overlay},
		"without modify": {features: &old},
	} {
		t.Run(name, func(t *testing.T) {
			planetest.Run(t, planetest.Config{Mode: "kernelspace, " + name, Variant: true, Stands: "HNS as assumed",
				Model: n.model, Recreates: n.features != nil})
		})
	}
}

// TestRandomTransitions walks at random between the states of all scenarios.
func TestRandomTransitions(t *testing.T) {
	for name, n := range map[string]node{"l2bridge": {}, "overlay, DSR": {network: hns.Overlay, dsr: true}} {
		t.Run(name, func(t *testing.T) { planetest.Transitions(t, planetest.Config{Model: n.model}) })
	}
}

// node is the lab's node1 as a Windows node.
type node struct {
	network  hns.NetworkType // "" is L2Bridge
	features *hns.Features   // nil is everything
	dsr      bool
}

// traced returns the mode's description for trace.
func (n node) traced(f lb.Family) trace.Mode {
	asked := &hns.Options{}
	asked.Winkernel.EnableDSR = n.dsr
	s := mode.Settings{Family: f, Blocks: option.Blocks{asked}}
	how := hns.Mode().Trace(s)
	how.Served = hns.KeptIn(s, n.hnsNetwork())
	return how
}

// stand is a fake HNS in the lab's place.
type stand struct {
	*hnsfake.Fake
	cfg hns.Config
	// state is the content of HNS; nil if it may have changed.
	state *hnsfake.State
}

// sourceVIP is an address of node1's pod range that no pod has.
func sourceVIP(six bool) netip.Addr {
	if six {
		return netlab.Node1Pods6.Addr().Next().Next()
	}
	return netlab.Node1Pods4.Addr().Next().Next()
}

func (n node) model(f lb.Family, _ scenario.Settings) (planetest.Model, error) {
	features := hnsfake.Everything
	if n.features != nil {
		features = *n.features
	}
	s := &stand{Fake: hnsfake.New(features)}
	id := s.AddNetwork(n.hnsNetwork())
	for _, h := range netlab.Hosts() {
		if h.Pod() && h.Node == netlab.Node1 {
			s.AddPod(id, h.Name, h.V4, h.V6)
		}
	}
	s.cfg = hns.Config{Family: f, HNS: s.Fake, Network: networkName, DSR: n.dsr}
	if n.network == hns.Overlay {
		s.cfg.SourceVIP = sourceVIP(f == lb.IPv6)
		s.SetServices(netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/108"))
	}
	return s, nil
}

func (n node) hnsNetwork() hns.Network {
	host, _ := netlab.HostByName(netlab.Node1)
	other, _ := netlab.HostByName(netlab.Node2)
	net := hns.Network{Name: networkName, Type: n.network, ManagementIP: host.V4.String(), HostMAC: hostMAC,
		Ipams: []hns.Ipam{{Type: "Static", Subnets: []hns.Subnet{
			{IPAddressPrefix: netlab.Node1Pods4.String()}, {IPAddressPrefix: netlab.Node1Pods6.String()}}}}}
	if n.network == "" {
		net.Type = hns.L2Bridge
	}
	if n.network == hns.Overlay {
		for pods, node := range map[netip.Prefix]netip.Addr{netlab.Node2Pods4: other.V4, netlab.Node2Pods6: other.V6} {
			net.Policies = append(net.Policies, route(pods.String(), node.String()))
		}
	}
	return net
}

func (s *stand) New() (planetest.Plane, error) {
	p, err := hns.New(s.cfg)
	if err != nil {
		return nil, err
	}
	return watched{p, s}, nil
}

// Meets implements planetest.Model.
func (s *stand) Meets(c planetest.Connection) planetest.Meeting {
	from := hnsfake.Outside
	switch h, _ := netlab.HostByName(c.From); {
	case h.Pod() && h.Node == netlab.Node1:
		from = hnsfake.Pod
	case h.Name == netlab.Node1:
		from = hnsfake.Host
	}
	v := s.now().Resolve(hnsfake.Packet{From: from, To: c.To, Proto: uint32(c.Proto), ToNode: c.ToNode})
	return planetest.Meeting{By: v.LoadBalancer, Backends: v.Backends, Sticky: v.Sticky, Kept: v.Kept}
}

// Lives implements planetest.Model.
func (s *stand) Lives(m planetest.Meeting, _ netip.AddrPort) bool { return s.now().Lives(m.By) }

func (s *stand) now() *hnsfake.State {
	if s.state == nil {
		s.state = s.State()
	}
	return s.state
}

// watched is a plane whose state is read after each write.
type watched struct {
	*hns.Plane
	s *stand
}

// Dump returns the objects of the plane.
func (w watched) Dump() string { return w.s.Own() }

func (w watched) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	w.s.state = nil
	return w.Plane.Reset(ctx, want)
}

func (w watched) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	w.s.state = nil
	return w.Plane.Apply(ctx, changes)
}

func (w watched) SetNode(ctx context.Context, n lb.Node) error {
	w.s.state = nil
	return w.Plane.SetNode(ctx, n)
}
