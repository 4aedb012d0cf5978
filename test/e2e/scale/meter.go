package scale

import (
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// dialFunc connects to the API server.
type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// meter counts the requests of the nodes of one population. Its methods are safe for concurrent
// use.
type meter struct {
	dial dialFunc

	read, dials, open atomic.Int64 // bytes, attempts to connect, connections

	mu       sync.Mutex
	start    time.Time
	requests []time.Duration // that the API server received, since start
	failed   int             // those that found no connection
	kinds    map[string]int  // of both
}

// reset clears requests and dials; bytes and connections continue.
func (m *meter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start, m.requests, m.failed, m.kinds = time.Now(), nil, 0, map[string]int{}
	m.dials.Store(0)
}

// wrap counts requests.
func (m *meter) wrap(next http.RoundTripper) http.RoundTripper { return counting{m, next} }

type counting struct {
	meter *meter
	next  http.RoundTripper
}

// RoundTrip sends a request and counts it: when it gets a connection, because one that waits for
// packets to pass reaches the API server only then; or when it fails without one.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	kind := "list"
	query := r.URL.Query()
	switch {
	case query.Get("sendInitialEvents") == "true":
		kind = "streaming list"
	case query.Get("watch") != "":
		kind = "watch"
	}
	var once sync.Once
	connected := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		once.Do(func() { c.meter.count(kind, true) })
	}}
	answer, err := c.next.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), connected)))
	once.Do(func() { c.meter.count(kind, false) })
	return answer, err
}

func (m *meter) count(kind string, received bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kinds[kind]++
	if received {
		m.requests = append(m.requests, time.Since(m.start))
	} else {
		m.failed++
	}
}

// link is the network of one node; it can be cut.
type link struct {
	meter *meter

	mu    sync.Mutex
	cut   chan struct{} // closed while packets pass
	conns map[*conn]bool
}

func newLink(m *meter) *link {
	open := make(chan struct{})
	close(open)
	return &link{meter: m, cut: open, conns: map[*conn]bool{}}
}

// sever drops all packets from now on, without a word, until heal.
func (l *link) sever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = make(chan struct{})
}

func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.cut)
}

func (l *link) passing() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// dialLimit is how long a connection may take to be set up, as in client-go.
const dialLimit = 30 * time.Second

// dial connects, once packets pass.
func (l *link) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	l.meter.dials.Add(1)
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	select {
	case <-l.passing():
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	}
	inner, err := l.meter.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, link: l, closed: make(chan struct{})}
	l.meter.open.Add(1)
	return c, nil
}

// conn is a connection over a link.
type conn struct {
	net.Conn
	link   *link
	once   sync.Once
	closed chan struct{}
}

// wait returns once packets pass; an error if the connection is closed before that.
func (c *conn) wait() error {
	select {
	case <-c.link.passing():
		return nil
	case <-c.closed:
		return net.ErrClosed
	}
}

// Read reads arriving data while packets pass. Bytes in transit when the link was cut arrive when
// it heals, as TCP repeats them.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.link.meter.read.Add(int64(n))
	if cut := c.wait(); cut != nil && err == nil {
		return 0, cut
	}
	return n, err
}

// Write writes once packets pass.
func (c *conn) Write(b []byte) (int, error) {
	if err := c.wait(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close closes the connection.
func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.link.meter.open.Add(-1)
	})
	return c.Conn.Close()
}
