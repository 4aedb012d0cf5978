package kube

import (
	"context"
	"fmt"
	"net/netip"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"kube-proxy/source/convert"
)

// Nodes reads Nodes other than the proxy's own, one by one.
type Nodes struct {
	client rest.Interface
	log    klog.Logger
}

// nodesPerSecond is the most requests of a Nodes; its caller limits them further, by namespace.
const nodesPerSecond = 50

// NewNodes returns a reader of Nodes.
func NewNodes(cfg Config) (*Nodes, error) {
	config, err := cfg.RESTConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = nodesPerSecond, nodesPerSecond
	clients, err := Clients(config, core.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &Nodes{clients[0], clientLog(cfg.Log)}, nil
}

// Get returns the internal addresses of a Node and its pod CIDRs, with one request; found is false
// if no such Node exists.
func (n *Nodes) Get(ctx context.Context, name string) (addrs []netip.Addr, pods []netip.Prefix, found bool, err error) {
	var node core.Node
	err = n.client.Get().Resource("nodes").Name(name).MaxRetries(0).Do(klog.NewContext(ctx, n.log)).Into(&node)
	if apierrors.IsNotFound(err) {
		return nil, nil, false, nil
	}
	if err != nil {
		return nil, nil, false, fmt.Errorf("kube: get Node %s: %w", name, err)
	}
	out, _ := convert.Node(&node)
	for _, a := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == core.NodeInternalIP {
			addrs = append(addrs, ip.Unmap())
		}
	}
	return addrs, out.PodCIDRs, true, nil
}
