package relay

import (
	"net/netip"
	"time"
)

// groupKey is whose connections are in a group: of one listener to one backend.
type groupKey struct {
	from    *listening
	backend netip.AddrPort
}

// group is the connections of a listener to a backend, so that those to a backend that leaves are found at once. When it leaves,
// the group is to end; if it returns, connections from then on are in another.
type group struct {
	key   groupKey
	first *conn
	timer *timer // when it ends; nil for never
	older *group // of the same key
}

// join puts a connection into the group of a backend.
func (l *loop) join(c *conn, to netip.AddrPort) {
	key := groupKey{c.from, to}
	g := l.groups[key]
	if g == nil || g.timer != nil {
		g = &group{key: key, older: g}
		l.groups[key] = g
	}
	c.group, c.prev, c.next = g, nil, g.first
	if g.first != nil {
		g.first.prev = c
	}
	g.first = c
}

// part takes a connection out of its group, and forgets a group without any.
func (l *loop) part(c *conn) {
	g := c.group
	if g == nil {
		return
	}
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		g.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.group, c.prev, c.next = nil, nil, nil
	if g.first == nil {
		l.forget(g)
	}
}

func (l *loop) forget(g *group) {
	if g.timer != nil {
		l.disarm(g.timer)
	}
	if l.groups[g.key] == g {
		if g.older == nil {
			delete(l.groups, g.key)
		} else {
			l.groups[g.key] = g.older
		}
		return
	}
	for newer := l.groups[g.key]; newer != nil; newer = newer.older {
		if newer.older == g {
			newer.older = g.older
		}
	}
}

// leave carries out Listener.Leave for one backend.
func (l *loop) leave(s *listening, gone netip.AddrPort, grace time.Duration) {
	var groups []*group
	for g := l.groups[groupKey{s, gone}]; g != nil; g = g.older {
		groups = append(groups, g)
	}
	for _, g := range groups {
		switch {
		case grace < 0:
			if g.timer != nil {
				l.disarm(g.timer)
				g.timer = nil
			}
		case grace == 0:
			l.endGroup(g)
		case g.timer == nil:
			l.redial(g)
			g.timer = &timer{index: -1, fire: func() { l.endGroup(g) }}
			if g.first != nil {
				l.arm(g.timer, time.Now().Add(grace))
			}
		}
	}
}

// redial sends the clients for which a backend is being dialled to another.
func (l *loop) redial(g *group) {
	var dialling []*conn
	for c := g.first; c != nil; c = c.next {
		if c.dial != nil {
			dialling = append(dialling, c)
		}
	}
	for _, c := range dialling {
		l.abandon(c)
		l.attempt(c)
	}
}

// endGroup ends the connections of a group; clients that have not reached the backend are sent to another.
func (l *loop) endGroup(g *group) {
	l.redial(g)
	for g.first != nil {
		l.close(g.first, true)
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
