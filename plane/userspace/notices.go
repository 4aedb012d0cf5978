package userspace

import (
	"errors"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/relay"
)

// notices are one-time messages to the operator.
type notices struct {
	redirect bool               // reported the kind of redirect, and the reason
	guard    bool               // reported that the ports of listeners are not guarded
	port     error              // the last error for lack of a port
	ports    bool               // and it was reported
	lacking  map[lb.Proto]error // protocols that this host lacks; nil once reported
}

// lacks records that this host has no sockets of a protocol.
func (n *notices) lacks(p lb.Proto, err error) {
	if n.lacking == nil {
		n.lacking = map[lb.Proto]error{}
	}
	if _, known := n.lacking[p]; !known {
		n.lacking[p] = err
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
	if len(p.cfg.Passed) > 0 && !p.notices.redirect {
		p.notices.redirect = true
		all = append(all, mode.Notice{Text: "Redirecting packets to service addresses in another way than the best " +
			"one, which this host does not support",
			Args: []any{"by", p.redirect.Name(), "err", errors.Join(p.cfg.Passed...)}})
	}
	if err := p.redirect.Unguarded(); err != nil && !p.notices.guard {
		p.notices.guard = true
		all = append(all, mode.Notice{Text: "While no proxy runs, a program of this node without privileges can " +
			"listen in its place and answer clients of Services", Args: []any{"err", err}})
	}
	if p.notices.port != nil && !p.notices.ports {
		all = append(all, mode.Notice{Text: "No port or listener is left; Services that need one are not served",
			Args: []any{"err", p.notices.port}})
	}
	for proto, err := range p.notices.lacking {
		if err == nil {
			continue
		}
		p.notices.lacking[proto] = nil
		all = append(all, mode.Notice{Text: "This host cannot serve the protocol; its Services are refused",
			Args: []any{"protocol", proto, "err", err}})
	}
	p.notices.ports, p.notices.port = p.notices.port != nil, nil
	return all
}
