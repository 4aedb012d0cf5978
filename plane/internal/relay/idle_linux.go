package relay

import (
	"time"

	"kube-proxy/lb"
)

// Keep-alive probes keep an idle connection while both peers exist, and with it two descriptors and
// a source port. The limit is conntrack's for connections of the other modes.

// idleLook is the interval of the search for idle connections, or a sixteenth of a shorter limit.
const idleLook = time.Minute

// elapsed is the loop's time, since the engine began.
func (l *loop) elapsed() time.Duration { return l.now.Sub(l.engine.began) }

// watchIdle looks for idle connections later.
func (l *loop) watchIdle() {
	if l.idle.pending != nil {
		return
	}
	after := idleLook
	if limit := l.engine.relay.cfg.TCPIdle(); limit > 0 {
		after = min(after, max(limit/16, time.Millisecond))
	}
	l.arm(&l.idle, after)
}

// endIdle resets the connections that have been idle for too long.
func (l *loop) endIdle() {
	limit, now := l.engine.relay.cfg.TCPIdle(), l.elapsed()
	left := false
	for _, c := range l.conns {
		switch {
		case c == nil || c.dial != nil || c.from.proto != lb.TCP:
		case limit > 0 && now-c.active >= limit:
			l.close(c, true)
		default:
			left = true
		}
	}
	if left {
		l.watchIdle()
	}
}
