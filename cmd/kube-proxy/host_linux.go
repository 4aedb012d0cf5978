package main

import (
	"net/netip"
	"os"
	"time"

	"kube-proxy/conntrack"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/sockets"
)

// hasIPv6 reports whether this machine has IPv6.
func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// newFlows returns what makes the kernel forget stale flows of a plane.
func (p *proxy) newFlows(f lb.Family, of mode.Plane) (flows, error) {
	var proxied func(lb.Key, netip.AddrPort) bool
	if at, ok := of.(mode.Answerer); ok {
		proxied = at.Answers
	}
	c, err := conntrack.New(conntrack.Config{
		Family: f, Proxied: proxied, Log: p.log.With("family", f.String()),
		Cleaned: func(took time.Duration, deleted int) { p.servers.metrics.Cleaned(f.String(), took, deleted) },
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// newSockets returns what notices ports that Services take from programs of this node.
func newSockets(cfg sockets.Config) (*sockets.Watcher, error) { return sockets.New(cfg) }

// defaultWillChange: a later version of upstream takes another mode where none is asked for (EV-07).
const defaultWillChange = true
