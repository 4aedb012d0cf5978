package hns

import (
	"context"
	"sync/atomic"
	"time"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// The metrics of the mode.
const (
	balancersMetric = "hns_load_balancers"
	endpointsMetric = "hns_remote_endpoints"
	callsMetric     = "hns_calls_total"

	createFailures = "winkernel_lb_create_failures_total"
	updateFailures = "winkernel_lb_update_failures_total"
	deleteFailures = "winkernel_lb_delete_failures_total"
)

var metrics = []mode.Metric{
	{Name: "sync_full_proxy_rules_duration_seconds"},
	{Name: "sync_partial_proxy_rules_duration_seconds"},
	{Row: "EXT", Name: balancersMetric, Kind: mode.Gauge, Labels: []string{"ip_family"},
		Help: "HNS load balancers of this proxy"},
	{Row: "EXT", Name: endpointsMetric, Kind: mode.Gauge, Labels: []string{"ip_family"},
		Help: "HNS endpoints that this proxy created for backends on other nodes"},
	{Row: "EXT", Name: callsMetric, Kind: mode.Counter, Labels: []string{"ip_family", "call", "result"},
		Help: "Calls to HNS (list, get, create, modify, delete) by result"},
	{Row: "MT-23", Name: createFailures, Kind: mode.Counter, Labels: []string{"ip_family"},
		Help: "Load balancers that HNS failed to create"},
	{Row: "MT-23", Name: updateFailures, Kind: mode.Counter, Labels: []string{"ip_family"},
		Help: "Load balancers that HNS failed to update"},
	{Row: "MT-23", Name: deleteFailures, Kind: mode.Counter, Labels: []string{"ip_family"},
		Help: "Load balancers that HNS failed to delete"},
}

// sizes are the figures of Measure, and the node for traces.
type sizes struct {
	balancers, endpoints int
	node                 lb.Node
}

func (p *Plane) show() {
	var s sizes
	if p.st != nil {
		s.balancers = len(p.st.balancers)
		s.endpoints, s.node = p.st.made, p.st.node
	}
	p.shown.Store(&s)
}

// Measure implements mode.Plane.
func (p *Plane) Measure(emit mode.Emit) error {
	if s := p.shown.Load(); s != nil {
		emit(balancersMetric, float64(s.balancers))
		emit(endpointsMetric, float64(s.endpoints))
	}
	for c := range calls {
		for failed, result := range []string{"success", "error"} {
			emit(callsMetric, float64(p.hns.count[c][failed].Load()), callNames[c], result)
		}
	}
	emit(createFailures, float64(p.hns.balancerFailures[create].Load()))
	emit(updateFailures, float64(p.hns.balancerFailures[modify].Load()))
	emit(deleteFailures, float64(p.hns.balancerFailures[del].Load()))
	return nil
}

// call is a kind of HNS call.
type call int

const (
	list call = iota
	get
	create
	modify
	del
	calls
)

var callNames = [calls]string{"list", "get", "create", "modify", "delete"}

// counted counts calls, and makes none after its context has ended.
type counted struct {
	HNS
	count [calls][2]atomic.Uint64
	// balancerFailures are the failed calls about load balancers.
	balancerFailures [calls]atomic.Uint64
	// writes is the recent average duration of a write, in ns.
	writes atomic.Int64
}

func did[T any](ctx context.Context, c *counted, kind call, f func() (T, error)) (T, error) {
	if err := ctx.Err(); err != nil {
		var none T
		return none, err
	}
	start := time.Now()
	t, err := f()
	if kind >= create {
		was := c.writes.Load()
		c.writes.Store(was + (int64(time.Since(start))-was)/8)
	}
	failed := 0
	if err != nil {
		failed = 1
	}
	c.count[kind][failed].Add(1)
	return t, err
}

// Features implements HNS, as do all methods.
func (c *counted) Features(ctx context.Context) (Features, error) {
	return did(ctx, c, get, func() (Features, error) { return c.HNS.Features(ctx) })
}

func (c *counted) Networks(ctx context.Context, name string) ([]Network, error) {
	return did(ctx, c, get, func() ([]Network, error) { return c.HNS.Networks(ctx, name) })
}

func (c *counted) Endpoints(ctx context.Context, network string) ([]Endpoint, error) {
	return did(ctx, c, list, func() ([]Endpoint, error) { return c.HNS.Endpoints(ctx, network) })
}

func (c *counted) EndpointsAt(ctx context.Context, network, address string) ([]Endpoint, error) {
	return did(ctx, c, get, func() ([]Endpoint, error) { return c.HNS.EndpointsAt(ctx, network, address) })
}

func (c *counted) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	return did(ctx, c, create, func() (Endpoint, error) { return c.HNS.CreateEndpoint(ctx, e) })
}

func (c *counted) DeleteEndpoint(ctx context.Context, id string) error {
	_, err := did(ctx, c, del, func() (struct{}, error) { return struct{}{}, c.HNS.DeleteEndpoint(ctx, id) })
	return err
}

func (c *counted) LoadBalancers(ctx context.Context) ([]LoadBalancer, error) {
	return did(ctx, c, list, func() ([]LoadBalancer, error) { return c.HNS.LoadBalancers(ctx) })
}

func (c *counted) CreateLoadBalancer(ctx context.Context, l LoadBalancer) (LoadBalancer, error) {
	made, err := did(ctx, c, create, func() (LoadBalancer, error) { return c.HNS.CreateLoadBalancer(ctx, l) })
	return made, c.balancerFailed(ctx, create, err)
}

func (c *counted) ModifyLoadBalancer(ctx context.Context, l LoadBalancer) (LoadBalancer, error) {
	made, err := did(ctx, c, modify, func() (LoadBalancer, error) { return c.HNS.ModifyLoadBalancer(ctx, l) })
	return made, c.balancerFailed(ctx, modify, err)
}

func (c *counted) DeleteLoadBalancer(ctx context.Context, id string) error {
	_, err := did(ctx, c, del, func() (struct{}, error) { return struct{}{}, c.HNS.DeleteLoadBalancer(ctx, id) })
	return c.balancerFailed(ctx, del, err)
}

// balancerFailed counts the error, if any, of a call about a load balancer, and returns it. A call
// that was not made has not failed.
func (c *counted) balancerFailed(ctx context.Context, kind call, err error) error {
	if err != nil && ctx.Err() == nil {
		c.balancerFailures[kind].Add(1)
	}
	return err
}
