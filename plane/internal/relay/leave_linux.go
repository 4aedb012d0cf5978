package relay

import (
	"net/netip"
	"time"
)

// join notes that a connection is to a backend, or dials it.
func (l *loop) join(c *conn, to netip.AddrPort) {
	c.to = to
	if l.joined[c.from] == nil {
		l.joined[c.from] = map[*conn]struct{}{}
	}
	l.joined[c.from][c] = struct{}{}
}

// part undoes join.
func (l *loop) part(c *conn) {
	if !c.to.IsValid() {
		return
	}
	l.stay(c)
	c.to = netip.AddrPort{}
	delete(l.joined[c.from], c)
	if len(l.joined[c.from]) == 0 {
		delete(l.joined, c.from)
	}
}

// stay cancels the end of a connection.
func (l *loop) stay(c *conn) {
	if c.leaving != nil {
		c.leaving.disarm()
		c.leaving = nil
	}
}

// leave implements Listener.Leave. Clients that are still dialling a backend that leaves get
// another.
func (l *loop) leave(s *listening, gone map[netip.AddrPort]bool, grace time.Duration) {
	for c := range l.joined[s] {
		switch {
		case !gone[c.to]:
		case grace < 0:
			l.stay(c)
		case c.dial != nil:
			l.abandon(c)
			l.attempt(c)
		case grace == 0:
			l.close(c, true)
		case c.leaving == nil:
			c.leaving = &timer{fire: func() { l.close(c, true) }}
			l.arm(c.leaving, grace)
		}
	}
}

// endAll ends all connections.
func (l *loop) endAll() {
	for _, c := range l.conns {
		if c != nil {
			l.close(c, true)
		}
	}
}
