package userspace

import (
	"errors"

	"kube-proxy/internal/once"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/relay"
)

// notices are one-time messages to the operator.
type notices struct {
	pending []mode.Notice
	port    error               // the last error for lack of a port
	ports   bool                // and it was reported
	lacking once.Keys[lb.Proto] // protocols that this host lacks
}

// newNotices returns the notices about how packets are redirected.
func newNotices(cfg Config) *notices {
	n := &notices{}
	if len(cfg.Passed) > 0 {
		n.add("Redirecting packets to service addresses in another way than the best one, which this host does not "+
			"support", "by", cfg.Redirector.Name(), "err", errors.Join(cfg.Passed...))
	}
	if err := cfg.Redirector.Unguarded(); err != nil {
		n.add("While no proxy runs, a program of this node without privileges can listen in its place and answer "+
			"clients of Services", "err", err)
	}
	return n
}

func (n *notices) add(text string, args ...any) {
	n.pending = append(n.pending, mode.Notice{Text: text, Args: args})
}

// lacks records that this host has no sockets of a protocol.
func (n *notices) lacks(p lb.Proto, err error) {
	if n.lacking.First(p) {
		n.add("This host cannot serve the protocol; its Services are refused", "protocol", p, "err", err)
	}
}

// noPort records an error of opening a listener.
func (n *notices) noPort(err error) {
	if errors.Is(err, ErrNoPort) || errors.Is(err, relay.ErrQuota) {
		n.port = err
	}
}

// Notices is part of mode.Plane.
func (p *Plane) Notices() (all []mode.Notice) {
	n := p.notices
	if n.port != nil && !n.ports {
		n.add("No port or listener is left; Services that need one are not served", "err", n.port)
	}
	n.ports, n.port = n.port != nil, nil
	all, n.pending = n.pending, nil
	return all
}
