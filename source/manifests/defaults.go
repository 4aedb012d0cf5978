package manifests

import (
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
)

// service adds the defaults of an API server, and converts.
func service(s *core.Service) (*cluster.Service, []convert.Problem) {
	spec := &s.Spec
	if spec.ClusterIP == "" && len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	var found []convert.Problem
	if len(spec.ClusterIPs) > 0 && spec.ClusterIP != spec.ClusterIPs[0] {
		found = append(found, convert.Problem{Field: "spec.clusterIPs[0]", Value: spec.ClusterIPs[0],
			What: fmt.Sprintf("differs from spec.clusterIP %q", spec.ClusterIP), Refused: true})
	}
	if len(spec.IPFamilies) == 0 {
		for _, ip := range spec.ClusterIPs {
			a, ok := convert.ParseAddr(ip)
			switch {
			case !ok: // the conversion reports it
				spec.IPFamilies = append(spec.IPFamilies, "")
			case a.Is4():
				spec.IPFamilies = append(spec.IPFamilies, core.IPv4Protocol)
			default:
				spec.IPFamilies = append(spec.IPFamilies, core.IPv6Protocol)
			}
		}
	}
	if spec.ClusterIP == core.ClusterIPNone {
		spec.IPFamilies = nil
	}
	for i, p := range spec.Ports {
		found = append(found, portName(fmt.Sprintf("spec.ports[%d].name", i), p.Name)...)
	}
	if spec.ClusterIP == "" && spec.Type != core.ServiceTypeExternalName && convert.ServiceSelected(s.Labels) {
		found = append(found, convert.Problem{Field: "spec.clusterIP",
			What: "is missing, and nothing allocates one here", Then: "the Service is not proxied"})
	}
	out, more := convert.Service(s)
	return out, append(found, more...)
}

// slice adds the defaults of an API server, and converts.
func slice(s *discovery.EndpointSlice) (*cluster.Slice, []convert.Problem) {
	var found []convert.Problem
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Name == nil {
			p.Name = new("")
		}
		found = append(found, portName(fmt.Sprintf("ports[%d].name", i), *p.Name)...)
	}
	out, more := convert.Slice(s)
	for i := range more {
		// A fault of one port or endpoint affects that one only, also without an API server.
		more[i].Refused = false
	}
	return out, append(found, more...)
}

func portName(field, name string) []convert.Problem {
	if name == "" {
		return nil
	}
	return invalid(field, name, validation.IsDNS1123Label(name))
}

func validateNames(o id, k kindOf) []convert.Problem {
	found := invalid("metadata.name", o.name.Name, k.name(o.name.Name))
	if k.namespaced {
		found = append(found, invalid("metadata.namespace", o.name.Namespace,
			validation.IsDNS1123Label(o.name.Namespace))...)
	}
	return found
}

func invalid(field, value string, why []string) []convert.Problem {
	if len(why) == 0 {
		return nil
	}
	return []convert.Problem{{Field: field, Value: value, What: "is not a valid name: " + strings.Join(why, "; "),
		Refused: true}}
}
