//go:build linux

package ebpf

import (
	"context"
	"errors"
	"time"

	"kube-proxy/mode"
	"kube-proxy/plane/ebpf/bpf"
)

// beatsInTimeout is how many heartbeats must be late before the programs stop.
const beatsInTimeout = 10

// beat writes heartbeats until ctx ends. It waits for the call of the plane that is in progress: a
// plane whose call never ends cannot follow changes either.
func (p *Plane) beat(ctx context.Context) {
	ticker := time.NewTicker(p.cfg.Heartbeat / beatsInTimeout)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p.calls.Lock()
		err := p.switches.change(func(*bpf.LBSettings) {})
		p.calls.Unlock()
		if err != nil {
			p.cfg.Log.Warn("Failed to write the heartbeat of the eBPF programs; they stop serving new connections "+
				"unless a later one succeeds", "timeout", p.cfg.Heartbeat, "err", err)
		}
	}
}

// Sockets is part of mode.SocketServer.
func (p *Plane) Sockets() mode.Sockets {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.sockets()
}

// sockets reads what the programs follow. The caller holds mu.
func (p *Plane) sockets() (s mode.Sockets) {
	s.Limit, s.Ended = int(p.switches.wanted().Most), p.ended.Load()
	if p.kernel == nil {
		s.Off = "not started"
		if p.failed != nil {
			s.Off = p.failed.Error()
		}
		return s
	}
	is, err := settingsIn(p.kernel.obj.Config)
	now, e := monotonic()
	var kept bpf.LBUsage
	if err = errors.Join(err, e, p.kernel.obj.Kept.Lookup(uint32(0), &kept)); err != nil {
		s.Off = err.Error()
		return s
	}
	s.Known = int(kept.Sockets)
	s.Heartbeat, s.Timeout = time.Duration(now-min(now, is.Heartbeat)), time.Duration(is.Timeout)
	switch {
	case is.On != p.switches.wanted().On:
		s.Off = "another program changed their settings"
	case s.Timeout > 0 && s.Heartbeat > s.Timeout:
		s.Off = "no heartbeat for " + s.Heartbeat.Round(time.Second).String()
	case is.On == 0:
		s.Configured = true
		s.Off = "socketLB is off"
	}
	s.Serving = s.Off == ""
	s.Passed = map[string]uint64{}
	if err := passed(p.kernel.obj.Passed, func(reason string, n uint64) {
		if n > 0 {
			s.Passed[reason] = n
		}
	}); err != nil {
		s.Off = err.Error()
	}
	return s
}
