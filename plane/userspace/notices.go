package userspace

import (
	"errors"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/relay"
)

// notices are one-time messages to the operator.
type notices struct {
	redirect bool               // reported which redirect there is, and why
	guard    bool               // told that the ports of listeners are not guarded
	port     error              // the last that says that no port is left
	ports    bool               // and it was told
	lacking  map[lb.Proto]error // protocols that this host does not have; nil once it was told
}

// lacks notes that this host has no sockets of a protocol.
func (n *notices) lacks(p lb.Proto, err error) {
	if n.lacking == nil {
		n.lacking = map[lb.Proto]error{}
	}
	if _, known := n.lacking[p]; !known {
		n.lacking[p] = err
	}
}

// noPort notes an error of opening a listener.
func (n *notices) noPort(err error) {
	if errors.Is(err, ErrNoPort) || errors.Is(err, relay.ErrQuota) {
		n.port = err
	}
}

// Notices is part of mode.Plane.
func (p *Plane) Notices() (all []mode.Notice) {
	if len(p.cfg.Passed) > 0 && !p.tell.redirect {
		p.tell.redirect = true
		all = append(all, mode.Notice{Text: "packets to service addresses are redirected in another way than the " +
			"best one, which this host does not have",
			Args: []any{"by", p.redirect.Name(), "err", errors.Join(p.cfg.Passed...)}})
	}
	if err := p.redirect.Unguarded(); err != nil && !p.tell.guard {
		p.tell.guard = true
		all = append(all, mode.Notice{Text: "While no proxy runs, a program of this node without privileges can " +
			"listen in its place and answer clients of Services",
			Args: []any{"err", err}})
	}
	if p.tell.port != nil && !p.tell.ports {
		all = append(all, mode.Notice{Text: "no port or listener is left; Services that need one are not served",
			Args: []any{"err", p.tell.port}})
	}
	for proto, err := range p.tell.lacking {
		if err == nil {
			continue
		}
		p.tell.lacking[proto] = nil
		all = append(all, mode.Notice{Text: "this host cannot serve the protocol; Services of it are refused",
			Args: []any{"protocol", proto, "err", err}})
	}
	p.tell.ports, p.tell.port = p.tell.port != nil, nil
	return all
}
