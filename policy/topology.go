package policy

import (
	"slices"

	"kube-proxy/cluster"
)

// hints is the meaning of an endpoint's topology hints for this node.
type hints uint8

const (
	hasNodes hints = 1 << iota // it is meant for certain nodes
	thisNode                   // this node is one of them
	hasZones                   // it is meant for certain zones
	thisZone                   // this node's zone is one of them
)

func hintsOf(e *cluster.Endpoint, facts *cluster.Facts) hints {
	if e.Hints == nil {
		return 0
	}
	var h hints
	if len(e.Hints.Nodes) > 0 {
		h |= hasNodes
		if facts.NodeName != "" && slices.Contains(e.Hints.Nodes, facts.NodeName) {
			h |= thisNode
		}
	}
	if len(e.Hints.Zones) > 0 {
		h |= hasZones
		if facts.Node != nil && facts.Node.Zone != "" && slices.Contains(e.Hints.Zones, facts.Node.Zone) {
			h |= thisZone
		}
	}
	return h
}

// chooseHints returns the hints that an endpoint must have to be chosen (SV-38): this node's if all
// ready endpoints have node hints and one names this node; else this zone's on the same terms; else
// any. One ready endpoint without hints of a kind disables that kind, because the author of the
// hints did not plan for it.
func chooseHints(k known) hints {
	switch {
	case k.every&hasNodes != 0 && k.some&thisNode != 0:
		return thisNode
	case k.every&hasZones != 0 && k.some&thisZone != 0:
		return thisZone
	}
	return 0
}
