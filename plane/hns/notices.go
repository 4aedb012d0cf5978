package hns

import (
	"fmt"
	"slices"

	"kube-proxy/event"
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
	lackSCTP: "HNS has no SCTP: ports of Services with that protocol are not served",
	lackSources: "HNS cannot keep out sources: where a Service has loadBalancerSourceRanges, the load balancer's addresses are not served by this node; " +
		"its other addresses are",
	lackRanges: "HNS cannot keep out sources: where a Service has loadBalancerSourceRanges, the load balancer's addresses are served to all clients, as " +
		"--windows-ignore-source-ranges (windowsIgnoreSourceRanges) asks",
	lackHealthPort: "this build of Windows does not forward a port on which a program of the node listens: health checks of load balancers reach the node's own " +
		"addresses alone",
	lackSplit: "HNS does not tell sources apart: where externalTrafficPolicy is Local, pods and this node itself are led as clients from " +
		"outside are, to endpoints of this node alone",
	lackPorts: "HNS leads a port of a Service to one port of its endpoints: where they have several, the port that most have is served, and the " +
		"other endpoints are not used",
	lackAffinity: "this version of HNS has no session affinity: Services that ask for it are served without",
	lackPreserve: "this version of HNS has no direct server return, which the annotation preserve-destination needs: packets to such Services go to " +
		"their endpoints' own addresses",
	lackProvider: "which node has a backend is not known to the HNS network: packets are sent to this node, which forwards them by its routes",
	lackFlag: "this build of Windows does not take a flag of load balancers, which are written without it: connections to external addresses (16) may end " +
		"when endpoints change, NodePorts (2) may not be reached from this node, preserve-destination (4) from other nodes",
	lackRoot:       "no HNS endpoint of the network has the name that --root-hnsendpoint-name (winkernel.rootHnsEndpointName) says: health checks of load balancers are not forwarded",
	lackDSR:        "this version of HNS has no direct server return: --enable-dsr (winkernel.enableDSR) has no effect",
	lackSourceVIP:  "the HNS network is an overlay, and --source-vip (winkernel.sourceVip) is of the other family: Services of this one are not served",
	lackManagement: "the HNS network does not tell its ManagementIP, this node's address: NodePorts that only answer on some addresses are not served until it does",
}

// notices collects each message once in the life of a plane.
type notices struct {
	told [lacks]bool
	all  []mode.Notice
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

func (n *notices) tell(l lack, args ...any) {
	if !n.told[l] {
		n.told[l] = true
		n.all = append(n.all, mode.Notice{Text: lackTexts[l], Args: args})
	}
}

// lacking reports the first frontend with a lack.
func (n *notices) lacking(l lack, of string, key lb.Key) {
	what := "service"
	if l == lackProvider {
		what = "backend"
	}
	before := len(n.all)
	n.tell(l, what, of, "key", key.String())
	if len(n.all) > before && (l == lackSources || l == lackRanges) {
		n.all[before].Event = func(node string) event.Event {
			return event.SourceRangesUnsupported(node, of, key.String(), lackTexts[l])
		}
	}
}

// facts reports the lacks of the node.
func (n *notices) facts(f *facts, cfg Config) {
	if f.wantDSR && !f.features.DSR {
		n.tell(lackDSR)
	}
	if f.family == lb.IPv4 && !f.management.IsValid() && len(f.node.NodePorts) > 0 {
		n.tell(lackManagement, "network", fmt.Sprintf("%s (%s)", f.name, f.id))
	}
	if cfg.ForwardHealthCheckVIP && f.root == "" {
		n.tell(lackRoot, "endpoint", cfg.RootEndpoint)
	}
}

// Notices is part of mode.Plane.
func (p *Plane) Notices() []mode.Notice {
	all := p.notices.all
	p.notices.all = nil
	return all
}
