package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	discovery "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
)

const (
	// slicesAtOnce is how many EndpointSlices are requested at once, and maxSlicePages how often.
	slicesAtOnce  = 200
	maxSlicePages = 25
)

// Pods returns the addresses of a Pod, by the EndpointSlices of its namespace that it is an
// endpoint of: of Pods themselves a proxy may ask nothing. Without a namespace it is those of all
// Pods of that name. None means that no slice names it. It requests so many slices
// and no more, each page once, and waited for as long as ctx lets.
func Pods(ctx context.Context, cfg Config, pod cluster.Name) (map[cluster.Name][]netip.Addr, error) {
	ctx = klog.NewContext(ctx, clientLog(cfg.Log))
	config, err := cfg.RESTConfig()
	if err != nil {
		return nil, err
	}
	clients, err := Clients(config, discovery.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	out := map[cluster.Name][]netip.Addr{}
	next := ""
	for range maxSlicePages {
		var page discovery.EndpointSliceList
		err := clients[0].Get().Namespace(pod.Namespace).Resource("endpointslices").Param("limit",
			strconv.Itoa(slicesAtOnce)).Param("continue", next).
			MaxRetries(0).Do(ctx).Into(&page)
		if err != nil {
			return nil, fmt.Errorf("kube: list EndpointSlices of %s: %w", scope(pod.Namespace), err)
		}
		for i := range page.Items {
			podAddrs(&page.Items[i], pod, out)
		}
		next = page.Continue
		if next == "" {
			return out, nil
		}
	}
	switch {
	case pod.Namespace == "": // another of the name may be in those that were not read
		return nil, fmt.Errorf("kube: the cluster has more than %d EndpointSlices, which is too many to look "+
			"through: say in which namespace it is", slicesAtOnce*maxSlicePages)
	case len(out) == 0:
		return nil, fmt.Errorf("kube: %s has more than %d EndpointSlices, and the first do not name it",
			scope(pod.Namespace), slicesAtOnce*maxSlicePages)
	}
	return out, nil
}

func scope(namespace string) string {
	if namespace == "" {
		return "all namespaces"
	}
	return "namespace " + namespace
}

// podAddrs adds the addresses that a slice has for a Pod, each once. A slice speaks for Pods of its
// own namespace alone.
func podAddrs(s *discovery.EndpointSlice, pod cluster.Name, out map[cluster.Name][]netip.Addr) {
	if pod.Namespace != "" && pod.Namespace != s.Namespace {
		return
	}
	pod.Namespace = s.Namespace
	for i := range s.Endpoints {
		ref := s.Endpoints[i].TargetRef
		if ref == nil || ref.Kind != "Pod" || ref.Name != pod.Name || ref.Namespace != "" &&
			ref.Namespace != pod.Namespace {
			continue
		}
		for _, text := range s.Endpoints[i].Addresses {
			if a, ok := convert.ParseAddr(text); ok && !slices.Contains(out[pod], a) {
				out[pod] = append(out[pod], a)
			}
		}
	}
}
