//go:build linux

package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/engine"
	"kube-proxy/event"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/logtest"
)

// A refusal is logged when it begins or changes, and again after it was resolved; not when other
// parts of the Service change, and not for each address.
func TestRefusalsSV26(t *testing.T) {
	refusal := func(field, addr string, more int) policy.Refusal {
		return policy.Refusal{Field: field, Addr: netip.MustParseAddr(addr), Why: "is bad", More: more}
	}
	a, aMore, b := refusal("spec.externalIPs", "127.0.0.1", 0), refusal("spec.externalIPs", "127.0.0.1", 7),
		refusal("endpoints", "224.0.0.1", 1)
	web, other := cluster.Name{Namespace: "shop", Name: "web"}, cluster.Name{Namespace: "shop", Name: "other"}
	reported := refusals{}
	for i, step := range []struct {
		name cluster.Name
		now  []policy.Refusal
		want string
	}{
		{web, nil, ""},
		{web, []policy.Refusal{a}, "spec.externalIPs 127.0.0.1 is bad"},
		{web, []policy.Refusal{a}, ""},
		{web, []policy.Refusal{aMore}, ""},
		{other, []policy.Refusal{a}, "spec.externalIPs 127.0.0.1 is bad"},
		{web, []policy.Refusal{aMore, b}, "spec.externalIPs 127.0.0.1 is bad, and 7 others; endpoints 224.0.0.1 is " +
			"bad, and 1 other"},
		{web, nil, ""},
		{web, []policy.Refusal{a}, "spec.externalIPs 127.0.0.1 is bad"},
		{other, nil, ""},
		{web, nil, ""},
	} {
		if what, _ := reported.news(step.name, step.now); what != step.want {
			t.Errorf("step %d: reported %q, want %q", i, what, step.want)
		}
	}
	if len(reported) != 0 {
		t.Errorf("%d Services are remembered, and none has anything wrong", len(reported))
	}
}

// The log stays short, however many Services of this kind a tenant creates, and however often they
// change.
func TestCrowdOfRefusals(t *testing.T) {
	const services, rounds = 3000, 3
	var log logtest.Buffer
	events := 0
	p := newProxy(nil, &config.Config{Gates: map[string]bool{"AllowServiceExternalIPs": true}}, nil,
		slog.New(slog.NewTextHandler(&log, nil)))
	p.publish = func(event.Event) { events++ }
	resolve := p.resolver(lb.IPv4, engine.NewBudget(nil, func() policy.Settings { return p.settings(lb.IPv4) }))
	for range rounds {
		for i := range services {
			name := cluster.Name{Namespace: "tenant", Name: fmt.Sprint("s", i)}
			bad := &cluster.Service{Name: name, Type: cluster.TypeClusterIP,
				ClusterIPs:  []netip.Addr{netip.MustParseAddr("10.96.0.1")},
				ExternalIPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Ports: []cluster.ServicePort{
					{Port: 2379, Protocol: cluster.TCP}}}
			if rows := resolve(cluster.View{Name: name, Service: bad}); len(rows) != 1 {
				t.Fatalf("%d rows, want that of the cluster IP", len(rows))
			}
			if i%2 == 0 {
				resolve(cluster.View{Name: name})
			}
		}
	}
	if n := log.Count("\n"); events != ratelimit.Burst || n < events || n > events+3 {
		t.Errorf("%d lines and %d events of %d Services", n, events, services)
	}
	if n := p.refused.of("IPv4").Load(); n != services/2 {
		t.Errorf("the metric says %d Services, want %d", n, services/2)
	}
}
