package main

import (
	"net/netip"
	"strconv"

	"kube-proxy/conntrack"
	"kube-proxy/internal/kernel"
	"kube-proxy/internal/sockets"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// newFlows returns the cleaner of a plane's stale flows.
func (p *proxy) newFlows(f lb.Family, of mode.Plane) (flows, error) {
	var proxied func(lb.Key, netip.AddrPort) bool
	if at, ok := of.(mode.Answerer); ok {
		proxied = at.Answers
	}
	c, err := conntrack.New(conntrack.Config{
		Family: f, Proxied: proxied, Log: p.log.With("family", f.String()),
		Cleaned: func(c conntrack.Pass) { p.servers.metrics.Cleaned(f.String(), c.Took, c.Dumps, c.Deleted) },
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// conntrackUse returns the number of connections in the conntrack table of this network namespace,
// and the limit; not ok if the kernel has no table.
func conntrackUse() (entries, limit uint64, ok bool) {
	read := func(name string) uint64 {
		text, err := kernel.Sysctl("net.netfilter.nf_conntrack_" + name)
		if err != nil {
			return 0
		}
		n, _ := strconv.ParseUint(text, 10, 64)
		return n
	}
	entries, limit = read("count"), read("max")
	return entries, limit, limit > 0
}

// newSockets returns the watcher of ports that Services take from programs of this node.
func newSockets(cfg sockets.Config) (*sockets.Watcher, error) { return sockets.New(cfg) }

// defaultWillChange: a later version of upstream has another default mode (EV-07).
const defaultWillChange = true
