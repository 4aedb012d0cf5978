package kube

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// nodeTrouble is an API server whose requests of the Node end in trouble while bad is set.
type nodeTrouble struct {
	api   *apiServer
	reply http.HandlerFunc

	mu    sync.Mutex
	bad   bool
	ends  map[int]context.CancelFunc // of the Node's requests that are being answered
	count int
}

func (n *nodeTrouble) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if resourceOf(r) != leader {
		n.api.ServeHTTP(w, r)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	n.mu.Lock()
	bad, id := n.bad, n.count
	n.count++
	n.ends[id] = cancel
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.ends, id)
	}()
	if bad {
		n.reply(w, r)
		return
	}
	n.api.ServeHTTP(w, r.WithContext(ctx))
}

// begin ends the streams of the Node alone, and answers each request for it with trouble.
func (n *nodeTrouble) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bad = true
	for _, end := range n.ends {
		end()
	}
}

func (n *nodeTrouble) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bad = false
}

// eachTrouble runs a test with each kind of trouble that one resource can have.
func eachTrouble(t *testing.T, test func(t *testing.T, r *rig, n *nodeTrouble)) {
	status := func(code int, after string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if after != "" {
				w.Header().Set("Retry-After", after)
			}
			w.WriteHeader(code)
		}
	}
	for name, reply := range map[string]http.HandlerFunc{
		"500":                  status(500, ""),
		"503":                  status(503, ""),
		"503 with Retry-After": status(503, "5"),
		"429":                  status(429, ""),
		"429 with Retry-After": status(429, "5"),
		"EOF":                  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"silence":              func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			withServer(t, func(t *testing.T, r *rig) {
				n := &nodeTrouble{api: r.api, reply: reply, ends: map[int]context.CancelFunc{}}
				r.api.down()
				r.api.handler = n
				r.api.up()
				test(t, r, n)
			})
		})
	}
}

// SV-68: requests of the Node that fail or hang delay no Service: neither at the start, nor while
// streams go on, nor after all of them broke.
func TestLeaderAlone(t *testing.T) {
	eachTrouble(t, func(t *testing.T, r *rig, n *nodeTrouble) {
		n.begin()
		r.api.put(testService("web", 80), testNode("n1", "192.0.2.1"))
		r.start()
		soon := func(want string) {
			t.Helper()
			start := time.Now()
			r.wait(want)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("%q after %v", want, took)
			}
		}
		soon("web:80")
		r.api.down()
		r.api.put(testService("web", 81))
		r.api.up()
		soon("web:81")
		time.Sleep(time.Minute) // the leader's pauses are long
		r.api.down()
		r.api.put(testService("web", 82))
		r.api.up()
		soon("web:82")
		n.end()
		time.Sleep(time.Minute) // for the leader's next attempt
		r.wait("web:82 node:192.0.2.1")
	})
}

// An older copy of the data is noticed though the requests of the Node fail, client-go would repeat
// them, and the other resources have seen more than when the first of them was sent.
func TestOlderCopyWhileLeaderFails(t *testing.T) {
	eachTrouble(t, func(t *testing.T, r *rig, n *nodeTrouble) {
		r.api.silent = true
		r.api.put(testService("api", 90), testService("web", 80), testNode("n1", "192.0.2.1"))
		restore := r.api.backup()
		r.start()
		r.wait("api:90 web:80 node:192.0.2.1")
		n.begin()
		time.Sleep(3 * time.Second)
		for i := range int32(20) {
			r.api.put(testService("new", 1+i))
		}
		r.api.remove("services", "shop/api")
		r.wait("new:20 web:80 node:192.0.2.1")
		n.end()
		r.api.down()
		restore()
		r.api.put(testService("web", 81))
		r.api.up()
		start := time.Now()
		r.wait("api:90 web:81 node:192.0.2.1")
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("the lost history was forgotten after %v", took)
		}
		r.noDips()
	})
}

// When a resource compares its version with the server's before it opens its stream again.
func TestUnproven(t *testing.T) {
	old, read := &reading{10}, &reading{20}
	leads := resourceWith(func(r *resource) bool { return r.plural == leader })
	for _, c := range []struct {
		name               string
		resource           *resource
		opened, ended, now *reading // the leader's newest reading at the time
		ours               uint64
		broken, want       bool
	}{
		{"a stream that ended in order", services(), old, old, old, 100, false, false},
		{"the leader was first, and read as much", services(), old, old, read, 20, true, false},
		{"the leader read less", services(), old, old, read, 21, true, true},
		{"the leader read less while the stream went on", services(), old, read, read, 21, false, true},
		{"the leader read as much before the stream broke", services(), old, read, read, 20, true, true},
		{"the leader has read nothing since the break", services(), old, old, old, 5, true, true},
		{"nor ever", services(), nil, nil, nil, 5, true, true},
		{"it has compared since", services(), read, read, read, 100, false, false},
		{"the leader's stream broke", leads, nil, nil, nil, 5, true, true},
		{"the leader's stream ended in order", leads, nil, old, read, 5, false, false},
	} {
		l := &listWatch{resource: c.resource}
		l.resource.opened.Store(c.opened)
		l.resource.ended.Store(c.ended)
		if got := l.unproven(c.now, c.ours, c.broken); got != c.want {
			t.Errorf("%s: compares %v, want %v", c.name, got, c.want)
		}
	}
}

// Streams that end when they should cost no other request: each resource compares its version once,
// after the leader's first reading, and nothing is listed again.
func TestStreamsEndInOrder(t *testing.T) {
	withServer(t, func(t *testing.T, r *rig) {
		r.api.put(testService("web", 80), testNode("n1", "192.0.2.1"))
		r.start()
		r.wait("web:80 node:192.0.2.1")
		for port := range int32(12) {
			time.Sleep(10 * time.Minute)
			r.api.put(testService("web", 81+port))
			r.wait(fmt.Sprintf("web:%d node:192.0.2.1", 81+port))
		}
		if n := r.api.asked("/services?", "watch=true"); n < 12 {
			t.Fatalf("%d streams in two hours", n)
		}
		if n := r.api.asked("/nodes?", "sendInitialEvents=true"); n != 1 {
			t.Errorf("the Node was listed %d times", n)
		}
		if n := r.api.asked("limit=1"); n > 3 {
			t.Errorf("versions were compared %d times", n)
		}
	})
}
