package convert

import (
	"fmt"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"

	"kube-proxy/cluster"
)

// taintToBeDeleted is how the cluster autoscaler marks a node that it is about to remove (HT-06).
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// Node converts a Node: internal addresses before external ones, each group in the API's order
// (PR-03).
func Node(in *core.Node) (*cluster.Node, []Problem) {
	ps := problems{kind: "Node", name: cluster.Name{Name: in.Name}}
	out := &cluster.Node{
		Name:    strings.Clone(in.Name),
		Zone:    strings.Clone(in.Labels[core.LabelTopologyZone]),
		Leaving: in.DeletionTimestamp != nil,
	}
	for _, t := range in.Spec.Taints {
		out.Leaving = out.Leaving || t.Key == taintToBeDeleted
	}
	for _, want := range []core.NodeAddressType{core.NodeInternalIP, core.NodeExternalIP} {
		for i, addr := range in.Status.Addresses {
			if addr.Type != want {
				continue
			}
			a, ok := ParseAddr(addr.Address)
			if !ok {
				ps.add(Problem{Field: fmt.Sprintf("status.addresses[%d].address", i), Value: addr.Address,
					What: "is not an IP address", Then: "it is ignored"})
			} else if !slices.Contains(out.Addrs, a) {
				out.Addrs = append(out.Addrs, a)
			}
		}
	}
	podCIDRs := in.Spec.PodCIDRs
	if len(podCIDRs) == 0 && in.Spec.PodCIDR != "" {
		podCIDRs = []string{in.Spec.PodCIDR}
	}
	out.PodCIDRs = prefixes(&ps, "spec.podCIDRs", podCIDRs)
	return out, ps.done()
}

// ServiceCIDR converts a ServiceCIDR (SV-03).
func ServiceCIDR(in *networking.ServiceCIDR) (*cluster.ServiceCIDR, []Problem) {
	ps := problems{kind: "ServiceCIDR", name: cluster.Name{Name: in.Name}}
	out := &cluster.ServiceCIDR{Name: strings.Clone(in.Name), Prefixes: prefixes(&ps, "spec.cidrs", in.Spec.CIDRs)}
	return out, ps.done()
}
