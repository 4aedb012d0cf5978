package convert

import "kube-proxy/cluster"

// SetEvent returns the event for a new or changed value: a *cluster.Service, *cluster.Slice,
// *cluster.Node or *cluster.ServiceCIDR.
func SetEvent(value any) cluster.Event {
	switch v := value.(type) {
	case *cluster.Service:
		return cluster.ServiceSet{Service: v}
	case *cluster.Slice:
		return cluster.SliceSet{Slice: v}
	case *cluster.Node:
		return cluster.NodeSet{Node: v}
	default:
		return cluster.CIDRSet{CIDR: v.(*cluster.ServiceCIDR)}
	}
}

// GoneEvent returns the event for a deleted API object of one of the four kinds.
func GoneEvent(kind string, name cluster.Name) cluster.Event {
	switch kind {
	case "Service":
		return cluster.ServiceGone{Name: name}
	case "EndpointSlice":
		return cluster.SliceGone{Name: name}
	case "Node":
		return cluster.NodeGone{Name: name.Name}
	default:
		return cluster.CIDRGone{Name: name.Name}
	}
}
