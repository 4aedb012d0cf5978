package hns

import (
	"fmt"
	"slices"

	"kube-proxy/event"
	"kube-proxy/internal/once"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// lack is a reason why HNS cannot serve a frontend as requested.
type lack uint8

const (
	// Not served, wholly or in part:
	lackSCTP lack = iota
	lackSources
	lackSourceVIP
	lackPorts
	// Served differently:
	lackSplit
	lackAffinity
	lackPreserve
	lackProvider
	lackFlag
	lackRanges
	lackHealthPort
	// Limits of the node:
	lackRoot
	lackDSR
	lackManagement
	lacks
)

// lackTexts are the messages of the lacks.
var lackTexts = [lacks]string{
	lackSCTP: "HNS has no SCTP: SCTP ports of Services are not served",
	lackSources: "HNS cannot restrict sources: this node does not serve the load-balancer addresses of Services with " +
		"loadBalancerSourceRanges, but their other addresses",
	lackRanges: "HNS cannot restrict sources: load-balancer addresses of Services with loadBalancerSourceRanges " +
		"are served to all clients, because --windows-ignore-source-ranges (windowsIgnoreSourceRanges) is set",
	lackHealthPort: "This build of Windows does not forward a port on which a program of the node listens: health " +
		"checks of load balancers reach only the node's own addresses",
	lackSplit: "HNS does not distinguish sources: with externalTrafficPolicy Local, pods and the node, like clients " +
		"outside, reach only endpoints of this node",
	lackPorts: "HNS has one target port for each port of a Service: if endpoints have several, only those with " +
		"the most frequent one are used",
	lackAffinity: "This version of HNS has no session affinity: Services are served without it",
	lackPreserve: "This version of HNS has no direct server return, which the annotation preserve-destination needs: " +
		"packets arrive at the endpoints' own addresses",
	lackProvider: "The HNS network does not know the backend's node: packets are sent to this node, which routes them",
	lackFlag: "This build of Windows rejects a flag of load balancers, which are written without it: connections " +
		"to external addresses (16) may end when endpoints change, NodePorts (2) may be unreachable from this node, " +
		"preserve-destination (4) from other nodes",
	lackRoot: "No endpoint of the HNS network has the name of --root-hnsendpoint-name " +
		"(winkernel.rootHnsEndpointName): health checks of load balancers are not forwarded",
	lackDSR: "This version of HNS has no direct server return: --enable-dsr (winkernel.enableDSR) has no effect",
	lackSourceVIP: "The HNS network is an overlay, and --source-vip (winkernel.sourceVip) is of the other IP family: " +
		"Services of this family are not served",
	lackManagement: "The HNS network has no ManagementIP, this node's address, yet: NodePorts on selected addresses " +
		"are not served until then",
}

// notices collects each message once in the life of a plane.
type notices struct {
	reported once.Keys[lack]
	all      []mode.Notice
}

// leftOut returns the notices about frontends that are not served.
func (n *notices) leftOut() (all []mode.Notice) {
	for _, one := range n.all {
		if i := slices.Index(lackTexts[:], one.Text); lack(i) <= lackPorts {
			all = append(all, one)
		}
	}
	return all
}

func (n *notices) report(l lack, args ...any) {
	if n.reported.First(l) {
		n.all = append(n.all, mode.Notice{Text: lackTexts[l], Args: args})
	}
}

// lacking records the first frontend with a lack.
func (n *notices) lacking(l lack, of string, key lb.Key) {
	what := "service"
	if l == lackProvider {
		what = "backend"
	}
	before := len(n.all)
	n.report(l, what, of, "key", key.String())
	if len(n.all) > before && (l == lackSources || l == lackRanges) {
		n.all[before].Event = func(node string) event.Event {
			return event.SourceRangesUnsupported(node, of, key.String(), lackTexts[l])
		}
	}
}

// facts records the lacks of the node.
func (n *notices) facts(f *facts, cfg Config) {
	if f.wantDSR && !f.features.DSR {
		n.report(lackDSR)
	}
	if f.family == lb.IPv4 && !f.management.IsValid() && len(f.node.NodePorts) > 0 {
		n.report(lackManagement, "network", fmt.Sprintf("%s (%s)", f.name, f.id))
	}
	if cfg.ForwardHealthCheckVIP && f.root == "" {
		n.report(lackRoot, "endpoint", cfg.RootEndpoint)
	}
}

// Notices implements mode.Plane.
func (p *Plane) Notices() []mode.Notice {
	all := p.notices.all
	p.notices.all = nil
	return all
}
