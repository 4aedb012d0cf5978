package hns_test

import (
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
)

// preserving returns a Service with local and remote endpoints and all kinds of addresses; pods may
// see the external ones.
func preserving(preserve bool) (lb.Owner, []*lb.Frontend) {
	o, fronts := world.ClusterIP(1, 10, 2)
	set := fronts[0].Set(lb.Cluster)
	balancer, external := loadBalancer("198.0.0.2", set), loadBalancer("203.0.0.2", set)
	external.Kind = lb.ExternalIP
	balancer.PreserveDestination, external.PreserveDestination = preserve, preserve
	nodePort := &lb.Frontend{Key: lb.Key{Port: 30001, Proto: lb.TCP}, Service: external.Service, Kind: lb.NodePort,
		Routes: external.Routes}
	return o, append(fronts, balancer, external, nodePort)
}

// With the annotation preserve-destination, packets to external addresses reach local pods
// unchanged, with or without --enable-dsr; no others do. Without DSR in HNS they are served as
// usual, with a notice (kubernetes/kubernetes#74825, WN-12).
func TestPreserveDestination(t *testing.T) {
	without := hnsfake.Everything
	without.DSR = false
	const kept, dsr = hns.MappingVIPExternal | hns.MappingPreserveDIP | hns.MappingUseMux, hns.FlagDSR
	for name, c := range map[string]struct {
		asked    bool
		features hns.Features
		mapping  hns.PortMappingFlags  // of the outer addresses
		flags    hns.LoadBalancerFlags // of them
		says     bool
	}{
		"with DSR":                {true, hnsfake.Everything, kept, dsr, false},
		"without --enable-dsr":    {false, hnsfake.Everything, kept, dsr, false},
		"an HNS that has not DSR": {true, without, hns.MappingVIPExternal, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(hns.L2Bridge, c.features)
			cfg := n.config(lb.IPv4)
			cfg.DSR = c.asked
			p, table := newPlane(t, cfg), world.Table(0, 0)
			table.Replace(preserving(true))
			reset(t, p, table)
			inner := hns.LoadBalancerFlags(0) // of the cluster IP
			if c.asked && c.features.DSR {
				inner = dsr
			}
			for vip, want := range map[string]struct {
				port    uint16
				mapping hns.PortMappingFlags
				flags   hns.LoadBalancerFlags
			}{
				"198.0.0.2": {80, c.mapping, c.flags}, "203.0.0.2": {80, c.mapping, c.flags},
				"10.0.0.2": {80, 0, inner}, "": {30001, hns.MappingLocalRoutedVIP, 0},
			} {
				endpoints := 2
				if want.mapping&hns.MappingPreserveDIP != 0 {
					endpoints = 1 // of this node
				}
				if l, ok := n.balancerOf(vip, want.port); !ok || l.PortMappings[0].Flags != want.mapping ||
					l.Flags != want.flags ||
					len(l.HostComputeEndpoints) != endpoints {
					t.Errorf("%q: %+v, want flags %d of the mapping and %d, %d endpoints", vip, l, want.mapping,
						want.flags, endpoints)
				}
			}
			if reported := strings.Contains(notices(p), "preserve-destination"); reported != c.says {
				t.Errorf("reported %t, want %t", reported, c.says)
			}
		})
	}
}

// The next run adopts such load balancers, changes them with the annotation, and deletes them with
// the Service (PN-76).
func TestPreserveDestinationIsOursPN76(t *testing.T) {
	n := newNode(hns.L2Bridge, hnsfake.Everything)
	cfg := n.config(lb.IPv4)
	cfg.DSR = true
	table := world.Table(0, 0)
	table.Replace(preserving(true))
	p := newPlane(t, cfg)
	reset(t, p, table)
	n.Counts()
	p = newPlane(t, cfg)
	reset(t, p, table)
	if made := n.writes(); made > 0 {
		t.Errorf("a restart without changes wrote %d times", made)
	}
	for _, preserve := range []bool{false, true} {
		changes, _ := table.Replace(preserving(preserve))
		if len(changes) != 2 {
			t.Errorf("preserve %t: %d changes, want those of the two outer addresses", preserve, len(changes))
		}
		apply(t, p, changes)
		l, _ := n.balancerOf("198.0.0.2", 80)
		if has := l.PortMappings[0].Flags&hns.MappingPreserveDIP != 0; has != preserve {
			t.Errorf("preserve %t: %+v", preserve, l)
		}
	}
	table.Replace(lb.Owner{Name: "ns/svc-1"}, nil)
	reset(t, newPlane(t, cfg), table)
	if own := n.Own(); own != "\n" {
		t.Errorf("left of a Service that went while there was no proxy:\n%s", own)
	}
}
