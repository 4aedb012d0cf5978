package relay

import (
	"net/netip"
	"time"
)

// join adds a connection to the list of its listener, for the search for connections to a backend
// that leaves.
func (l *loop) join(c *conn, to netip.AddrPort) {
	c.to, c.next = to, l.first[c.from]
	if c.next != nil {
		c.next.prev = c
	}
	l.first[c.from] = c
}

// part removes a connection from the list, if it is in it.
func (l *loop) part(c *conn) {
	if !c.to.IsValid() {
		return
	}
	l.stay(c)
	switch {
	case c.prev != nil:
		c.prev.next = c.next
	case c.next != nil:
		l.first[c.from] = c.next
	default:
		delete(l.first, c.from)
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.to, c.prev, c.next = netip.AddrPort{}, nil, nil
}

// stay takes back that a connection is to end.
func (l *loop) stay(c *conn) {
	if c.leaving != nil {
		c.leaving.disarm()
		c.leaving = nil
	}
}

// leave implements Listener.Leave. Clients that are still dialling a backend that leaves get
// another.
func (l *loop) leave(s *listening, gone map[netip.AddrPort]bool, grace time.Duration) {
	var next *conn
	for c := l.first[s]; c != nil; c = next {
		next = c.next
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
