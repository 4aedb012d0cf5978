package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/changes"
	"kube-proxy/cluster"
)

// serve has the world's handler answer on a loopback address.
func (w *world) serve(t *testing.T) *httptest.Server {
	s := httptest.NewServer(w.h)
	t.Cleanup(func() {
		w.h.CutStreams()
		s.Close()
	})
	return s
}

// stream is an open page.
type openPage struct {
	t     *testing.T
	body  *bufio.Reader
	close func()
}

// open opens a page that has all changes to since.
func open(t *testing.T, s *httptest.Server, since uint64) *openPage {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s/ui/events?since=%d", s.URL, since), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Client().Do(r)
	if err != nil || a.StatusCode != 200 || a.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(a, err)
	}
	p := &openPage{t: t, body: bufio.NewReader(a.Body), close: func() { end(); a.Body.Close() }}
	t.Cleanup(p.close)
	return p
}

// next waits for the next message.
func (p *openPage) next() delta {
	p.t.Helper()
	for {
		line, err := p.body.ReadString('\n')
		if err != nil {
			p.t.Fatalf("the stream ended: %v", err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			var d delta
			if err := json.Unmarshal([]byte(data), &d); err != nil {
				p.t.Fatal(err)
			}
			return d
		}
	}
}

// until waits until what is true.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("not in 20 s: " + what)
		}
		time.Sleep(time.Millisecond)
	}
}

func (h *hub) open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.streams)
}

// A page is told what changes, from where it was loaded on.
func TestLive(t *testing.T) {
	w := newWorld(t, Config{}, many(5)...)
	s := w.serve(t)
	rev := w.h.rev()
	p := open(t, s, rev)
	name := cluster.Name{Namespace: "ns", Name: "svc-00003"}
	w.service(name, 3, 0)
	d := p.next()
	if d.Again || len(d.Some) != 1 || d.Some[0][0] != "ns/svc-00003" || d.Some[0][5] != 0.0 || d.Some[0][8] != 1.0 {
		t.Errorf("%+v", d)
	}
	w.gone(name)
	d = p.next()
	if d.Again || len(d.Gone) != 1 || d.Gone[0] != "ns/svc-00003" || d.Head == nil || !strings.HasPrefix(d.Head.Text, "4 Services") {
		t.Errorf("%+v", d)
	}
	if late := open(t, s, rev); len(late.next().Some) != 1 || len(late.next().Gone) != 1 { // it was loaded before all that
		t.Error("a page that was loaded before gets something else")
	}
	if d := open(t, s, rev-2).next(); !d.Again {
		t.Errorf("a page that was loaded before anybody looked: %+v", d)
	}
	w.ring.Add(changes.Entry{Kind: changes.Reset})
	if d := p.next(); !d.Again {
		t.Errorf("all was written anew: %+v", d)
	}
	for _, n := range many(manyServices + 1) {
		w.tell(n)
	}
	if d := p.next(); !d.Again || d.Some != nil {
		t.Errorf("%d Services at once, again %v", len(d.Some), d.Again)
	}
}

// While nobody looks nothing runs: when the last page is closed the bubble has no goroutine left, or this would not end.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{}, many(5)...)
		w.get("/ui/", 200)
		if w.h.hub.end != nil {
			t.Error("something runs after a page was shown")
		}
		e := changes.Entry{Kind: changes.Service, Service: cluster.Name{Namespace: "ns", Name: "svc-00001"}}
		least := 1.0
		for range 10 { // what other tests leave behind may allocate meanwhile
			least = min(least, testing.AllocsPerRun(100, func() { w.ring.Add(e) }))
		}
		if least != 0 {
			t.Errorf("a change allocates %v times", least)
		}
		if w.h.hub.made != 0 {
			t.Errorf("%d messages for nobody", w.h.hub.made)
		}
		st, err := w.h.hub.join(w.h.rev())
		if err != nil {
			t.Fatal(err)
		}
		w.tell(cluster.Name{Namespace: "ns", Name: "svc-00001"})
		<-st.messages
		w.h.hub.leave(st)
		if w.h.hub.end != nil || w.h.hub.history != nil {
			t.Error("something is kept")
		}
	})
}

// The end of the server does not wait for pages.
func TestCutStreams(t *testing.T) {
	w := newWorld(t, Config{}, many(5)...)
	s := w.serve(t)
	p := open(t, s, w.h.rev())
	w.h.CutStreams()
	if _, err := p.body.ReadString('x'); err == nil {
		t.Error("a stream goes on after the end of the server")
	}
	until(t, "the stream ends", func() bool { return w.h.hub.open() == 0 })
}

// A thousand pages may be open; the next is told so. A change is gathered once for all of them. What a page takes is bounded, and is
// given back.
func TestThousandPages(t *testing.T) {
	const n = 1000
	w := newWorld(t, Config{}, many(100)...)
	s := w.serve(t)
	s.Client().Transport = &http.Transport{MaxIdleConnsPerHost: 10, DisableKeepAlives: true}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	rev := w.h.rev()
	pages := make([]*openPage, n)
	for k := range pages {
		pages[k] = open(t, s, rev)
	}
	r, err := s.Client().Get(s.URL + "/ui/events")
	if err != nil || r.StatusCode != 503 || r.Header.Get("Retry-After") == "" {
		t.Fatalf("page %d: %v %v", n+1, r, err)
	}
	w.get("/ui/", 200) // what needs no stream is there for everybody
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)) / n
	t.Logf("%d bytes for a page, those of the client with it", each)
	if each > 96<<10 {
		t.Errorf("%d bytes for a page", each)
	}
	made := w.h.hub.made
	w.service(cluster.Name{Namespace: "ns", Name: "svc-00007"}, 7, 0)
	var reading sync.WaitGroup
	for _, p := range pages {
		reading.Go(func() {
			if d := p.next(); len(d.Some) != 1 {
				t.Errorf("%+v", d)
			}
		})
	}
	reading.Wait()
	if m := w.h.hub.made - made; m != 1 {
		t.Errorf("one change was gathered %d times", m)
	}
	for _, p := range pages {
		p.close()
	}
	until(t, "all streams end", func() bool { return w.h.hub.open() == 0 })
	open(t, s, rev)
}

// Who does not read costs a few messages, and is told to load again.
func TestSilentPage(t *testing.T) {
	w := newWorld(t, Config{}, many(5)...)
	h := &w.h.hub
	st, err := h.join(w.h.rev())
	if err != nil {
		t.Fatal(err)
	}
	defer h.leave(st)
	for k := range 3 * remembered {
		w.service(cluster.Name{Namespace: "ns", Name: "svc-00001"}, 1, k%2)
		h.publish(t.Context())
	}
	if len(st.messages) != waiting || len(h.history) != remembered {
		t.Errorf("%d messages wait, %d are kept", len(st.messages), len(h.history))
	}
	if _, ok := h.caughtUp(st); ok {
		t.Error("it is told before it has read")
	}
	for len(st.messages) > 0 {
		<-st.messages
	}
	m, ok := h.caughtUp(st)
	if !ok || m.rev != h.rev || !strings.Contains(string(m.text), `"again":true`) {
		t.Errorf("%v %s", ok, m.text)
	}
	if _, ok := h.caughtUp(st); ok {
		t.Error("it is told twice")
	}
}

// What a change costs who tells of it: with a page open, with a thousand, and with none.
func BenchmarkChange(b *testing.B) {
	for _, pages := range []int{0, 1, 1000} {
		b.Run(fmt.Sprintf("pages=%d", pages), func(b *testing.B) {
			w := newWorld(b, Config{}, many(100)...)
			for range pages {
				st, err := w.h.hub.join(w.h.rev())
				if err != nil {
					b.Fatal(err)
				}
				defer w.h.hub.leave(st)
			}
			e := changes.Entry{Kind: changes.Service, Service: cluster.Name{Namespace: "ns", Name: "svc-00001"}}
			b.ReportAllocs()
			for b.Loop() {
				w.ring.Add(e)
			}
		})
	}
}
