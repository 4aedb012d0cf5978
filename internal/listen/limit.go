package listen

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// ConnLimit limits the number of connections that the servers of a group have open together, so
// that a client with thousands of connections takes neither memory nor descriptors from the rest of
// the process. One connection above the limit closes another: first the one with the longest time
// since its last answer, or since it was accepted. So a connection that sends nothing, or its
// request byte by byte, makes room for one with a request. Connections with a request in progress
// come last.
//
// Set its fields, then use it with [ConnLimit.Bound].
type ConnLimit struct {
	// Most is the maximum number of connections; usually it is [Share].Connections.
	Most int
	// Full is called when connections are closed early, with the number since the last call; at
	// most once a minute.
	Full func(closed int)

	mu       sync.Mutex
	members  map[net.Conn]*member
	waiting  list.List // connections without a request in progress; the one that has waited longest is first
	busy     list.List // those whose request is being answered, the oldest request first
	closed   int       // not reported yet
	reported time.Time
}

// member is the state of a connection.
type member struct {
	in      *list.List // waiting or busy
	element *list.Element
}

// fullAgain is the time between two calls of Full.
const fullAgain = time.Minute

type memberKey struct{}

// Bound makes h count its connections among those of c. Call it before h serves.
func (c *ConnLimit) Bound(h *http.Server) {
	h.ConnState = func(conn net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			c.join(conn)
		case http.StateClosed, http.StateHijacked:
			c.leave(conn)
		}
	}
	inner := h.ConnContext
	h.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if inner != nil {
			ctx = inner(ctx, conn)
		}
		return context.WithValue(ctx, memberKey{}, conn)
	}
	serve := h.Handler
	h.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := r.Context().Value(memberKey{}).(net.Conn)
		c.move(conn, &c.busy)
		defer c.move(conn, &c.waiting)
		serve.ServeHTTP(w, r)
	})
}

// join adds a connection, and closes another if there are too many.
func (c *ConnLimit) join(conn net.Conn) {
	c.mu.Lock()
	out, closed := c.evict(), 0
	if c.members == nil {
		c.members = map[net.Conn]*member{}
	}
	c.members[conn] = &member{&c.waiting, c.waiting.PushBack(conn)}
	if c.closed > 0 && time.Since(c.reported) >= fullAgain {
		closed, c.closed, c.reported = c.closed, 0, time.Now()
	}
	c.mu.Unlock()
	if out != nil {
		_ = out.Close() // its server notices; no caller is left for an error
	}
	if closed > 0 && c.Full != nil {
		c.Full(closed)
	}
}

// evict removes and returns the connection to close for one more; nil if there is room. c.mu is
// held.
func (c *ConnLimit) evict() net.Conn {
	if len(c.members) < c.Most {
		return nil
	}
	for _, l := range []*list.List{&c.waiting, &c.busy} {
		if first := l.Front(); first != nil {
			conn := l.Remove(first).(net.Conn)
			delete(c.members, conn)
			c.closed++
			return conn
		}
	}
	return nil
}

func (c *ConnLimit) leave(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.members[conn]; m != nil {
		m.in.Remove(m.element)
		delete(c.members, conn)
	}
}

// move puts a connection at the end of a list.
func (c *ConnLimit) move(conn net.Conn, to *list.List) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.members[conn]; m != nil {
		m.in.Remove(m.element)
		m.in, m.element = to, to.PushBack(conn)
	}
}
