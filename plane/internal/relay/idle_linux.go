package relay

import (
	"time"

	"kube-proxy/lb"
)

// Keep-alive probes keep an idle connection while both peers exist, and with it two descriptors and
// a source port. The limit is conntrack's for connections of the other modes.

// idleLook is the interval of the search for connections past a limit, unless a limit is short.
const idleLook = time.Minute

// elapsed is the loop's time, since the engine began.
func (l *loop) elapsed() time.Duration { return l.now.Sub(l.engine.began) }

// watchLimits schedules the next search for connections past a limit.
func (l *loop) watchLimits() {
	if l.limits.pending != nil {
		return
	}
	after := idleLook
	for _, limit := range []time.Duration{l.engine.relay.cfg.TCPIdle(), l.engine.relay.cfg.Grace} {
		if limit > 0 {
			after = min(after, inspectEvery(limit))
		}
	}
	l.arm(&l.limits, after)
}

// endPastLimits resets the connections that have been idle for too long, or whose backend has not
// served for the grace.
func (l *loop) endPastLimits() {
	idle, grace, now := l.engine.relay.cfg.TCPIdle(), l.engine.relay.cfg.Grace, l.elapsed()
	left := false
	for _, c := range l.conns {
		if c == nil || c.dial != nil {
			continue
		}
		if grace > 0 && c.from.owner.balancer().Serves(c.to) {
			c.served = now
		}
		if idle > 0 && now-c.active >= idle && c.from.proto == lb.TCP || grace > 0 && now-c.served >= grace {
			l.close(c, true)
		} else {
			left = true
		}
	}
	if left {
		l.watchLimits()
	}
}
