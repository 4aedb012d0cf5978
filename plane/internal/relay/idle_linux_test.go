package relay

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"kube-proxy/lb"
)

// pass lets time pass for the connections of a relay, and makes its loops check them.
func pass(r *Relay, d time.Duration) {
	var all sync.WaitGroup
	e := r.conns.(*conns)
	all.Add(len(e.loops))
	e.each(func(l *loop) {
		defer all.Done()
		for _, c := range l.conns {
			if c != nil {
				c.active -= d
			}
		}
		l.endPastLimits()
	})
	all.Wait()
}

// A connection without a byte either way for the limit is reset at both ends and gives its source
// port back. A byte in either direction restarts the limit (TN-78).
func TestTCPIdleTN78(t *testing.T) {
	for _, limit := range []time.Duration{24 * time.Hour, 0} {
		accepted := make(chan net.Conn)
		at := serve(t, func(c *net.TCPConn) {
			accepted <- c
			<-t.Context().Done()
		})
		r := newRelay(t, Config{TCPIdle: func() time.Duration { return limit }})
		l := listen(t, r, to(at))
		var clients, backends [3]net.Conn // the first is idle; the second's client speaks, the third's backend
		for i := range clients {
			clients[i] = dial(t, l.Addr())
			backends[i] = <-accepted
		}
		say := func(from, to net.Conn) {
			if _, err := from.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(to, make([]byte, 1)); err != nil {
				t.Error(err)
			}
		}
		for range 3 {
			pass(r, 13*time.Hour)
			say(clients[1], backends[1])
			say(backends[2], clients[2])
		}
		if limit == 0 {
			say(clients[0], backends[0])
			continue
		}
		wasReset(t, "the client", clients[0])
		wasReset(t, "the backend", backends[0])
		if open := r.Stats().TCP.Open; open != 2 {
			t.Errorf("%d connections are open, want 2", open)
		}
		r.ports.mu.Lock()
		if n := r.ports.to[portsKey{lb.TCP, at}].Used(); n != 2 {
			t.Errorf("%d source ports are taken, want 2", n)
		}
		r.ports.mu.Unlock()
	}
}
