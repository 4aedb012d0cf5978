package hns_test

import (
	"encoding/json"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/hns"
)

// Shapes includes every load balancer of the goldens, apart from addresses, ports and endpoints, so
// that selftest proves all of them on a node (WN-03).
func TestShapes(t *testing.T) {
	t.Setenv("KUBE_NETWORK", "")
	type form struct {
		atAddress bool
		source    string
		flags     hns.LoadBalancerFlags
		mapping   hns.PortMapping
		samePort  bool
	}
	formOf := func(l hns.LoadBalancer) form {
		m := l.PortMappings[0]
		samePort := m.InternalPort == m.ExternalPort
		m.InternalPort, m.ExternalPort = 0, 0
		return form{len(l.FrontendVIPs) > 0, l.SourceVIP, l.Flags, m, samePort}
	}
	for name, g := range goldens() {
		if g.cfg.Family == 0 {
			g.cfg.Family = lb.IPv4
		}
		kind := hns.L2Bridge
		if name == "overlay-dsr" {
			kind = hns.Overlay
		}
		text, _ := hns.RenderIn(kind, g.cfg, g.table) // it reports omissions
		var calls []struct {
			Call     string
			Settings hns.LoadBalancer
		}
		if err := json.Unmarshal(text, &calls); err != nil {
			t.Fatal(err)
		}
		network := hns.Network{Name: "x", Type: kind, HostMAC: "00-15-5D-00-00-01"}
		for _, p := range g.table.Node.NodePorts {
			if p.IsSingleIP() && p.Addr().Is4() {
				network.ManagementIP = p.Addr().String()
			}
		}
		all, err := hns.Shapes(g.cfg, network, hns.Features{V2: true, DSR: true, SessionAffinity: true,
			IPv6DualStack: true}, 31)
		if err != nil {
			t.Fatal(err)
		}
		forms := map[form]bool{}
		for _, l := range all {
			forms[formOf(l)] = true
		}
		if len(forms) != len(all) {
			t.Errorf("%s: %d shapes; %d differ", name, len(all), len(forms))
		}
		for _, c := range calls {
			if c.Call == "HcnCreateLoadBalancer" && !forms[formOf(c.Settings)] {
				t.Errorf("%s: no shape %+v", name, formOf(c.Settings))
			}
		}
	}
}
