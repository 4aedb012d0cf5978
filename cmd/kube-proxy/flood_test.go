//go:build linux

package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/event"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/internal/sockets"
	"kube-proxy/lb"
	"kube-proxy/source/convert"
	"kube-proxy/test/logtest"
)

// TN-02: 100,000 updates of one slice, each with other faults, write a share of lines and events;
// the first fault of another namespace is reported all the same. So it is with ports in use.
func TestFloodOfMalformedObjects(t *testing.T) {
	var log logtest.Buffer
	events := map[string]int{} // by namespace
	p := newProxy(nil, &config.Config{}, nil, slog.New(slog.NewTextHandler(&log, nil)))
	p.publish = func(e event.Event) { events[e.Regarding.Namespace]++ }
	reporter := convert.NewReporter(p.malformed)
	update := func(namespace string, n int) {
		name := cluster.Name{Namespace: namespace, Name: "web-1"}
		problems := []convert.Problem{{Kind: "EndpointSlice", Name: name, Field: "ports[0].port", What: "is missing"},
			{Kind: "EndpointSlice", Name: name, What: fmt.Sprintf("has %d more problems of these sorts", n%2),
				Reason: convert.ReasonIncorrectIPVersion}}
		reporter.Report("EndpointSlice", name, problems)
	}
	for n := range 100_000 {
		update("tenant", n)
	}
	update("stranger", 0)
	if n := log.Count(`EndpointSlice tenant/web-1`); n != ratelimit.Burst {
		t.Errorf("%d lines about the tenant's slice, want %d", n, ratelimit.Burst)
	}
	if log.Count("EndpointSlice stranger/web-1") == 0 || events["stranger"] != 1 || events["tenant"] == 0 ||
		events["tenant"] > ratelimit.Burst {
		t.Errorf("events %v; of the stranger the log has:\n%s", events, log.Lines("stranger"))
	}

	clear(events)
	for port := range 10_000 {
		p.collides(sockets.Collision{Service: "tenant/web:http", Key: lb.Key{Port: uint16(1 + port), Proto: lb.TCP}})
	}
	p.collides(sockets.Collision{Service: "stranger/web", Key: lb.Key{Port: 30_000, Proto: lb.TCP},
		Listener: netip.MustParseAddrPort("0.0.0.0:30000")})
	if events["tenant"] != ratelimit.Burst || events["stranger"] != 1 || log.Count("service=stranger/web ") != 1 {
		t.Errorf("of ports in use there are events %v, and of the stranger's in the log:\n%s", events,
			log.Lines("service=stranger"))
	}
}
