package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/api"
	"kube-proxy/debug/changes"
	"kube-proxy/debug/inspect"
)

// openPage is a page that follows changes.
type openPage struct {
	t    *testing.T
	body *bufio.Reader
}

// serve runs the handler on a loopback address.
func serve(t *testing.T, h *Handler) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// open opens a page that includes all changes up to since.
func open(t *testing.T, s *httptest.Server, h *Handler, since uint64) *openPage {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("%s%sevents?since=%d", s.URL, h.Path(),
		since), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Client().Do(r)
	if err != nil || a.StatusCode != 200 || a.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(a, err)
	}
	t.Cleanup(func() { a.Body.Close() })
	return &openPage{t, bufio.NewReader(a.Body)}
}

// next waits for the next message; false if the stream has ended.
func (p *openPage) next() (d delta, ok bool) {
	p.t.Helper()
	for {
		line, err := p.body.ReadString('\n')
		if err != nil {
			return d, false
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &d); err != nil {
				p.t.Fatal(err)
			}
			return d, true
		}
	}
}

// A page gets all changes after those that it was loaded with.
func TestLive(t *testing.T) {
	w := newWorld(t, many(5)...)
	s := serve(t, w.h)
	rev := w.inspector.Newest()
	p := open(t, s, w.h, rev)
	name := cluster.Name{Namespace: "ns", Name: "svc-00003"}
	w.service(name, 3, 0)
	if d, _ := p.next(); d.Again || len(d.Some) != 1 || d.Some[0][0] != "ns/svc-00003" || d.Some[0][5] != 0.0 ||
		d.Some[0][8] != 1.0 {
		t.Errorf("%+v", d)
	}
	w.gone(name)
	if d, _ := p.next(); d.Again || len(d.Gone) != 1 || d.Gone[0] != "ns/svc-00003" ||
		!strings.HasPrefix(d.Head.Text, "4 Services") {
		t.Errorf("%+v", d)
	}
	// the page was loaded before these changes
	if d, _ := open(t, s, w.h, rev).next(); d.Again || len(d.Gone) != 1 || d.Rev != rev+2 {
		t.Errorf("a page that was loaded before: %+v", d)
	}
	w.ring.Add(changes.Entry{Kind: changes.Reset})
	if d, _ := p.next(); !d.Again {
		t.Errorf("everything was sent again: %+v", d)
	}
	for _, n := range many(501) {
		w.notify(n)
	}
	if d, _ := p.next(); !d.Again || d.Some != nil {
		t.Errorf("%d Services at once, again %v", len(d.Some), d.Again)
	}
}

// The number of pages that follow changes leaves room for other clients of the proxy. One more page
// gets an error until another is closed.
func TestManyPages(t *testing.T) {
	w := newWorld(t, many(5)...)
	s := serve(t, w.h)
	var pages []*openPage
	for range maxPages {
		pages = append(pages, open(t, s, w.h, w.inspector.Newest()))
	}
	has(t, w.get("events", 503), "close one")
	w.get("", 200)
	w.service(cluster.Name{Namespace: "ns", Name: "svc-00003"}, 3, 0)
	for _, p := range pages {
		if d, ok := p.next(); !ok || len(d.Some) != 1 {
			t.Errorf("%+v", d)
		}
	}
	s.CloseClientConnections()
	until(t, "they are closed", func() bool { return len(w.h.open) == 0 })
	open(t, s, w.h, 0)
}

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("not in 20 s: " + what)
		}
	}
}

// While no page is open nothing runs, and the goroutines of a page end with it: the synctest bubble
// would not end while one is left.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, many(5)...)
		w.get("", 200)
		synctest.Wait()
		e := changes.Entry{Kind: changes.Service, Service: cluster.Name{Namespace: "ns", Name: "svc-00001"}}
		least := 1.0
		for range 10 { // goroutines of other tests may allocate meanwhile
			least = min(least, testing.AllocsPerRun(100, func() { w.ring.Add(e) }))
		}
		if least != 0 {
			t.Errorf("a change allocates %v times", least)
		}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan string)
		go func() {
			ended <- w.ask("GET", fmt.Sprintf("events?since=%d", w.inspector.Newest()),
				func(r *http.Request) { *r = *r.WithContext(ctx) }).Body.String()
		}()
		time.Sleep(10 * wait) // it repeats the query
		w.notify(e.Service)
		time.Sleep(time.Second)
		end()
		if reported := <-ended; strings.Count(reported, "event: change") != 1 ||
			!strings.Contains(reported, "ns/svc-00001") {
			t.Errorf("the page got %q", reported)
		}
	})
}

// The page survives a restart of the proxy: it reports the outage, and then shows the state of the
// new process.
func TestProxyRestarts(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.sock")
	begin := func(w *world) (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		s := api.NewServer(api.NewHandler(w.inspector), at, slog.New(slog.DiscardHandler))
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		return func() { cancel(); <-done }
	}
	before := newWorld(t, cluster.Name{Namespace: "shop", Name: "old"})
	end := begin(before)
	before.h = New(api.NewClient(at))
	s := serve(t, before.h)
	until(t, "the page is there", func() bool { return before.ask("GET", "", nil).Code == 200 })
	rev := before.inspector.Newest()
	p := open(t, s, before.h, rev)
	end()
	if d, ok := p.next(); ok {
		t.Errorf("the proxy is gone, and a page gets %+v", d)
	}
	for _, path := range []string{"", "service?name=shop/old", "changes", "node"} {
		page := before.get(path, 503)
		has(t, page, "the proxy does not answer")
		has(t, page, "no kube-proxy runs here")
	}
	before.get("events", 503)
	before.get("services.json", 503)
	after := newWorld(t, cluster.Name{Namespace: "shop", Name: "new"})
	defer begin(after)()
	until(t, "the page is there again", func() bool { return before.ask("GET", "", nil).Code == 200 })
	if d, _ := open(t, s, before.h, rev).next(); !d.Again {
		t.Errorf("a page of the previous proxy gets %+v", d)
	}
	until(t, "the list is that of the next proxy", func() bool {
		page := before.get("", 200)
		return strings.Contains(page, "shop/new") && !strings.Contains(page, "shop/old")
	})
}

// KC-12: the traffic of a Service's ports is summed, and counters add connections that conntrack
// does not see. Services that are not listed have no traffic, unless the list is truncated.
func TestRates(t *testing.T) {
	top := inspect.Top{Services: []inspect.TopLine{{Service: "ns/a:http", PerSecond: 3.25},
		{Service: "ns/a:https", PerSecond: 4}, {Service: "ns/b", PerSecond: 7}}}
	want := func(services map[string][2]float64, known, counted bool, note string) {
		t.Helper()
		r := rateOf(&top)
		if !maps.Equal(r.Services, services) || r.Known != known || r.Counted != counted ||
			!strings.HasPrefix(r.Note, note) {
			t.Errorf("%+v, want %v, %v, %v, %q", r, services, known, counted, note)
		}
	}
	want(map[string][2]float64{"ns/a": {7.25, 0}, "ns/b": {7, 0}}, true, false, "")
	top.MoreFrontends, top.Missed, top.AtLeast = 1, 7, true
	want(map[string][2]float64{"ns/a": {7.25, 0}, "ns/b": {7, 0}}, false, false, "lower bounds")
	top.AtLeast, top.Counted = false, map[string][2]float64{"ns/a": {9, 0}} // no bytes
	want(map[string][2]float64{"ns/a": {9, 0}, "ns/b": {7, 0}}, false, false, "")
	top.AtLeast, top.Note, top.Counted = false, "no counters", map[string][2]float64{"ns/a": {1, 1234},
		"ns/c": {.5, 99}}
	want(map[string][2]float64{"ns/a": {7.25, 1234}, "ns/b": {7, 0}, "ns/c": {.5, 99}}, false, true, "no counters")
}

// KC-12: one query serves any number of pages, and ends some time after the last page is gone. Old
// rates are not shown.
func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queries, open := 0, 0
		m := meter{client: api.Over("a proxy", func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			queries++
			open++
			go func() {
				defer func() { there.Close(); open-- }()
				if _, err := http.ReadRequest(bufio.NewReader(there)); err != nil {
					return
				}
				fmt.Fprintf(there, "HTTP/1.1 200 OK\r\n%s: 1\r\n\r\n", api.Header)
				for n := 1; ; n++ {
					time.Sleep(time.Second)
					if _, err := fmt.Fprintf(there, `{"services":[{"service":"ns/a:http","perSecond":%d}]}`,
						n); err != nil {
						return
					}
				}
			}()
			return here, nil
		})}
		for n := range 20 {
			for range 3 {
				m.now()
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if got := m.now().Services["ns/a"][0]; got != float64(n+1) {
				t.Errorf("after %d seconds it carries %v", n+1, got)
			}
		}
		time.Sleep(3 * linger)
		synctest.Wait()
		if queries != 1 || open != 0 || m.runs {
			t.Errorf("the proxy got %d queries, and %d are open", queries, open)
		}
		if got := m.now(); got.Services != nil {
			t.Errorf("old rates are sent: %v", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := m.now().Services["ns/a"][0]; got != 1 || queries != 2 {
			t.Errorf("after the next query it carries %v", got)
		}
		time.Sleep(3 * linger)
	})
}
