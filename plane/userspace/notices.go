package userspace

import (
	"errors"

	"kube-proxy/mode"
)

// notices are what somebody should be told, each once.
type notices struct {
	capture bool  // told which capture there is, and why
	port    error // the last that says that no port is left
	ports   bool  // and it was told
}

// noPort notes an error of opening a listener.
func (n *notices) noPort(err error) {
	if errors.Is(err, ErrNoPort) {
		n.port = err
	}
}

// Notices is part of mode.Plane.
func (p *Plane) Notices() (all []mode.Notice) {
	if len(p.cfg.Passed) > 0 && !p.tell.capture {
		p.tell.capture = true
		all = append(all, mode.Notice{Text: "packets to service addresses are captured in another way than the best one, which this host does not have",
			Args: []any{"family", p.cfg.Family, "by", p.capture.Name(), "err", errors.Join(p.cfg.Passed...)}})
	}
	if p.tell.port != nil && !p.tell.ports {
		all = append(all, mode.Notice{Text: "no port is left for listeners; Services that need one are not served", Args: []any{"family", p.cfg.Family, "err", p.tell.port}})
	}
	p.tell.ports, p.tell.port = p.tell.port != nil, nil
	return all
}
