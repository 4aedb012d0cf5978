package hns

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"kube-proxy/lb"
)

// Render returns the calls of a plane to an empty HNS, in their order, as JSON with the requests of
// github.com/Microsoft/hnslib/hcn. It needs no HNS and changes nothing. Equal tables give equal
// text.
//
// It assumes an l2bridge network of the configured name, the first single NodePort address as the
// node's, the newest HNS, and an endpoint for each pod of this node. Ids are "network NAME",
// "endpoint ADDRESS", and for pods of this node "pod ADDRESS".
func Render(cfg Config, want *lb.Table) ([]byte, error) { return renderIn(L2Bridge, cfg, want) }

func renderIn(kind NetworkType, cfg Config, want *lb.Table) ([]byte, error) {
	r := &recorder{cfg: cfg, kind: kind, node: want.Node, asked: []Request{}}
	cfg.HNS = r
	if cfg.Network == "" {
		cfg.Network = "kube-proxy"
	}
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	p.most = math.MaxInt
	ctx := context.Background()
	res, err := p.Reset(ctx, want)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, k := range res.Later {
		if _, err := p.Apply(ctx, []lb.Change{{Key: k, New: want.Get(k)}}); err != nil {
			errs = append(errs, err)
		}
	}
	for _, n := range p.notices.leftOut() {
		errs = append(errs, fmt.Errorf("hns %s: %s %v", cfg.Family, n.Text, n.Args))
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(r.asked); err != nil {
		return nil, fmt.Errorf("hns: encoding the calls: %w", err)
	}
	return text.Bytes(), errors.Join(errs...)
}

// Request is a call of HNS as Render shows it.
type Request struct {
	// Call is "HcnCreateEndpoint" or "HcnCreateLoadBalancer".
	Call string
	// Settings are the call's JSON.
	Settings any
}

// recorder is an HNS that accepts everything. Render never changes or deletes objects.
type recorder struct {
	HNS
	cfg   Config
	kind  NetworkType
	node  lb.Node
	asked []Request
}

// Features implements HNS, as do all methods.
func (r *recorder) Features(context.Context) (Features, error) {
	return Features{DSR: true, SessionAffinity: true, IPv6DualStack: true, ModifyLoadbalancer: true, RemoteSubnet: true,
		V2: true}, nil
}

func (r *recorder) Networks(_ context.Context, name string) ([]Network, error) {
	n := Network{ID: "network " + name, Name: name, Type: r.kind, HostMAC: "00-15-5D-00-00-01"}
	for _, p := range r.node.NodePorts {
		if p.IsSingleIP() && p.Addr().Is4() && n.ManagementIP == "" {
			n.ManagementIP = p.Addr().String()
		}
	}
	return []Network{n}, nil
}

func (r *recorder) Endpoints(context.Context, string) ([]Endpoint, error) {
	if !r.cfg.ForwardHealthCheckVIP {
		return nil, nil
	}
	root := Endpoint{ID: "endpoint " + r.cfg.root(), Name: r.cfg.root()}
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		root.IPConfigurations = append(root.IPConfigurations, IPConfig{IPAddress: a.String()})
	}
	return []Endpoint{root}, nil
}

func (r *recorder) EndpointsAt(_ context.Context, network, address string) ([]Endpoint, error) {
	return []Endpoint{{ID: "pod " + address, HostComputeNetwork: network, IPConfigurations: []IPConfig{
		{IPAddress: address}}}}, nil
}

func (r *recorder) CreateEndpoint(_ context.Context, e Endpoint) (Endpoint, error) {
	r.asked = append(r.asked, Request{"HcnCreateEndpoint", e})
	e.ID = "endpoint " + e.IPConfigurations[0].IPAddress
	return e, nil
}

func (r *recorder) LoadBalancers(context.Context) ([]LoadBalancer, error) { return nil, nil }

func (r *recorder) CreateLoadBalancer(_ context.Context, l LoadBalancer) (LoadBalancer, error) {
	r.asked = append(r.asked, Request{"HcnCreateLoadBalancer", l})
	return l, nil
}
