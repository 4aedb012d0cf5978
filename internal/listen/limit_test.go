package listen

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener of connections within the process.
type pipes struct {
	come chan net.Conn
	end  chan struct{}
	once sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.come:
		return c, nil
	case <-p.end:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.end) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// guest is the other end of a connection.
type guest struct {
	net.Conn
	in *bufio.Reader
}

// ask sends a request and returns the body's length, or -1 without an answer.
func (g *guest) ask(path string) int64 {
	if _, err := fmt.Fprintf(g, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path); err != nil {
		return -1
	}
	resp, err := http.ReadResponse(g.in, nil)
	if err != nil {
		return -1
	}
	return resp.ContentLength
}

// open reports whether the connection is.
func (g *guest) open() bool {
	g.SetReadDeadline(time.Now().Add(time.Nanosecond))
	defer g.SetReadDeadline(time.Time{})
	_, err := g.in.Peek(1)
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}

// Of too many connections the one is closed with the longest time since it was accepted or got its
// last answer. Bytes of an unfinished request do not count; a request in progress does.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported []int
		limit := &ConnLimit{Most: 4, Full: func(closed int) { reported = append(reported, closed) }}
		hold := make(chan struct{})
		h := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				<-hold
			}
		})}
		limit.Bound(h)
		l := &pipes{come: make(chan net.Conn), end: make(chan struct{})}
		go h.Serve(l)
		come := func() *guest {
			here, there := net.Pipe()
			l.come <- there
			synctest.Wait()
			return &guest{here, bufio.NewReader(here)}
		}
		slow := come()
		go slow.ask("/slow")
		synctest.Wait()
		loris, kept, idle := come(), come(), come()
		loris.Write([]byte("GET / HTTP/1.1\r\nX: "))
		if kept.ask("/") != 0 {
			t.Fatal("no answer")
		}
		loris.Write([]byte("y"))
		for _, c := range []struct {
			what string
			out  *guest
		}{{"a request that does not end", loris}, {"the one that never asked", idle},
			{"the one that was answered", kept}} {
			if !c.out.open() {
				t.Fatalf("%s is closed too early", c.what)
			}
			if come().ask("/") != 0 {
				t.Errorf("no answer to who takes the place of %s", c.what)
			}
			if c.out.open() {
				t.Errorf("%s is still open", c.what)
			}
		}
		if !slices.Equal(reported, []int{1}) {
			t.Errorf("reported %v closed connections, want [1]: once a minute", reported)
		}
		time.Sleep(time.Minute)
		guests := []*guest{come(), come(), come()}
		if !slices.Equal(reported, []int{1, 3}) {
			t.Errorf("reported %v closed connections, want [1 3]", reported)
		}
		for _, g := range guests {
			go g.ask("/slow")
		}
		synctest.Wait()
		if come().ask("/") != 0 { // all others are busy: the oldest is closed
			t.Error("no answer while all are busy")
		}
		close(hold)
		synctest.Wait()
		h.Close()
		synctest.Wait()
		if len(limit.members) > 0 || limit.waiting.Len()+limit.busy.Len() > 0 {
			t.Errorf("%d connections are left after the end", len(limit.members))
		}
	})
}
