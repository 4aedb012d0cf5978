package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	discovery "k8s.io/api/discovery/v1"

	"kube-proxy/cluster"
)

const (
	// slicesAtOnce is how many EndpointSlices are asked for at once, and mostSlicePages how often.
	slicesAtOnce   = 200
	mostSlicePages = 25
)

// PodAddrs returns the addresses of a Pod, by the EndpointSlices of its namespace that it is an endpoint of: of Pods themselves a proxy may ask
// nothing. None means that no slice names the Pod. It asks the API server once, and waits for as long as ctx lets it.
func PodAddrs(ctx context.Context, cfg Config, pod cluster.Name) ([]netip.Addr, error) {
	directKlog(cfg.Log)
	config, err := cfg.RESTConfig()
	if err != nil {
		return nil, err
	}
	clients, err := newClients(config, discovery.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	next := ""
	for range mostSlicePages {
		var page discovery.EndpointSliceList
		err := clients[0].Get().Namespace(pod.Namespace).Resource("endpointslices").Param("limit", strconv.Itoa(slicesAtOnce)).Param("continue", next).
			MaxRetries(0).Do(ctx).Into(&page)
		if err != nil {
			return nil, fmt.Errorf("kube: list EndpointSlices of namespace %s: %w", pod.Namespace, err)
		}
		for i := range page.Items {
			out = podAddrs(&page.Items[i], pod, out)
		}
		if next = page.Continue; next == "" {
			return out, nil
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("kube: namespace %s has more than %d EndpointSlices, and the first do not name it", pod.Namespace, slicesAtOnce*mostSlicePages)
	}
	return out, nil
}

// podAddrs appends the addresses that a slice has for a Pod, each once.
func podAddrs(s *discovery.EndpointSlice, pod cluster.Name, out []netip.Addr) []netip.Addr {
	for i := range s.Endpoints {
		ref := s.Endpoints[i].TargetRef
		if ref == nil || ref.Kind != "Pod" || ref.Name != pod.Name || ref.Namespace != "" && ref.Namespace != pod.Namespace {
			continue
		}
		for _, text := range s.Endpoints[i].Addresses {
			if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(out, a.Unmap()) {
				out = append(out, a.Unmap())
			}
		}
	}
	return out
}
