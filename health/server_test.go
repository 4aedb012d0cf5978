package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/clocktest"
	"kube-proxy/test/logtest"
)

// scene is the state behind a server.
type scene struct {
	v4, v6          State
	v4Only          bool
	period          time.Duration
	noNodes         bool
	known, eligible bool
	drained         bool
	waits           time.Time // since when the process waits for another
}

func (sc *scene) server() *Server {
	cfg := Config{
		Families:     map[lb.Family]func() State{lb.IPv4: func() State { return sc.v4 }},
		SyncPeriod:   func() time.Duration { return sc.period },
		NodeEligible: func() (known, eligible bool) { return sc.known, sc.eligible },
		Waiting: func() (time.Time, string) {
			if sc.waits.IsZero() {
				return sc.waits, ""
			}
			return sc.waits, "for another"
		},
	}
	if !sc.v4Only {
		cfg.Families[lb.IPv6] = func() State { return sc.v6 }
	}
	if sc.noNodes {
		cfg.NodeEligible = nil
	}
	s := newServer(cfg)
	if sc.drained {
		s.Drain()
	}
	return s
}

func probe(s http.Handler, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w
}

// TestAnswers checks HT-01, HT-02, HT-04 to HT-06, PR-07 and PN-70. In the bubble the server is
// made at midnight, and queried at ten minutes past.
func TestAnswers(t *testing.T) {
	midnight := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(sec float64) time.Time { return midnight.Add(time.Duration(sec * float64(time.Second))) }
	const (
		now   = "2000-01-01T00:10:00Z"
		begin = "2000-01-01T00:00:00Z"
		four  = "2000-01-01T00:01:40Z"
		six   = "2000-01-01T00:03:20.5Z"
	)
	status := func(at4 string, ok4 bool, at6 string, ok6 bool) string {
		return fmt.Sprintf(`{"IPv4":{"lastUpdated":"%s","healthy":%t},"IPv6":{"lastUpdated":"%s","healthy":%t}}`,
			at4, ok4, at6, ok6)
	}
	well := status(four, true, six, true)
	const ready, waiting = `"ready":true,"draining":false,"missing":[]`, `,"waiting":"for another"`
	for _, test := range []struct {
		name                   string
		change                 func(*scene)
		healthz, livez, readyz int
		last                   string // time of the last success, where an answer is not 200
		eligible, healthy      bool   // of /healthz
		status, ready, more    string // JSON
	}{
		{"HT-01 HT-02 all is well, though nothing has changed for minutes (HT-04, HT-05)", func(*scene) {},
			200, 200, 200, "", true, true, well, ready, ""},
		{"HT-04 a change waits, not yet for two periods", func(sc *scene) { sc.v4.QueuedSince = at(540.000000001) },
			200, 200, 200, "", true, true, well, ready, ""},
		{"HT-04 a change waits for two periods", func(sc *scene) { sc.v4.QueuedSince = at(540) },
			503, 503, 200, six, true, false, status(four, false, six, true), ready, ""},
		{"HT-04 in the other family", func(sc *scene) { sc.v6.QueuedSince = at(0) },
			503, 503, 200, six, true, false, status(four, true, six, false), ready, ""},
		{"HT-05 of the families the one that was updated last counts", func(sc *scene) {
			sc.v4, sc.v6 = sc.v6, sc.v4
			sc.v6.QueuedSince = at(500)
		}, 503, 503, 200, six, true, false, status(six, true, four, false), ready, ""},
		{"CF-61 with a longer period it may wait longer", func(sc *scene) {
			sc.v4.QueuedSince, sc.period = at(540), 31*time.Second
		}, 200, 200, 200, "", true, true, well, ready, ""},
		{"a period that is not known is 30 s", func(sc *scene) { sc.v4.QueuedSince, sc.period = at(541), 0 },
			200, 200, 200, "", true, true, well, ready, ""},
		{"another process writes, not yet for two periods", func(sc *scene) { sc.waits = at(540.000000001) },
			200, 200, 200, "", true, true, well, ready, waiting},
		{"another process writes for two periods: that is no reason to restart", func(sc *scene) { sc.waits = at(540) },
			503, 200, 200, six, true, false, well, ready, waiting},
		{"HT-06 the node is about to go: that is no reason to restart", func(sc *scene) { sc.eligible = false },
			503, 200, 200, six, false, true, well, ready, ""},
		{"HT-06 the node is unknown", func(sc *scene) { sc.known = false },
			503, 200, 200, six, false, true, well, ready, ""},
		{"HT-06 there are no Node objects", func(sc *scene) { sc.known, sc.noNodes = false, true },
			200, 200, 200, "", true, true, well, ready, ""},
		{"PR-07 the process is about to end", func(sc *scene) { sc.drained = true },
			503, 200, 503, six, false, true, well, `"ready":false,"draining":true,"missing":[]`, ""},
		{"PN-70 one family has not begun, which is healthy (HT-04)", func(sc *scene) { sc.v6 = State{} },
			200, 200, 503, "", true, true, status(four, true, begin, true),
			`"ready":false,"draining":false,"missing":["IPv6"]`, ""},
		{"PN-70 none has begun, and cannot", func(sc *scene) { sc.v4, sc.v6 = State{QueuedSince: at(1)}, State{} },
			503, 503, 503, begin, true, false, status(begin, false, begin, true),
			`"ready":false,"draining":false,"missing":["IPv4","IPv6"]`, ""},
		{"one family is served", func(sc *scene) { sc.v4Only = true },
			200, 200, 200, "", true, true, `{"IPv4":{"lastUpdated":"` + four + `","healthy":true}}`, ready, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sc := scene{period: 30 * time.Second, known: true, eligible: true,
					v4: State{LastSuccess: at(100), Begun: true}, v6: State{LastSuccess: at(200.5), Begun: true}}
				test.change(&sc)
				s := sc.server()
				time.Sleep(10 * time.Minute)
				updated := func(code int) string {
					if code == http.StatusOK {
						return now
					}
					return test.last
				}
				alive := test.livez == http.StatusOK
				for _, c := range []struct {
					path string
					code int
					body string
				}{
					{"/healthz", test.healthz, fmt.Sprintf(`"lastUpdated":"%s","currentTime":"%s","nodeEligible":%t,`+
						`"healthy":%t,"status":%s`, updated(test.healthz), now, test.eligible, test.healthy,
						test.status)},
					{"/livez", test.livez, fmt.Sprintf(`"lastUpdated":"%s","currentTime":"%s","healthy":%t,"status":%s`,
						updated(test.livez), now, alive, test.status)},
					{"/readyz", test.readyz, fmt.Sprintf(`"currentTime":"%s",%s`, now, test.ready)},
				} {
					want := "{" + c.body + test.more + "}"
					if w := probe(s, http.MethodGet, c.path); w.Code != c.code || w.Body.String() != want {
						t.Errorf("%s: %d\n%s\nwant %d\n%s", c.path, w.Code, w.Body, c.code, want)
					}
				}
				if s.Healthy() != alive {
					t.Errorf("Healthy is %t", s.Healthy())
				}
			})
		})
	}
}

// The sync period may change while the server runs (CF-61).
func TestSyncPeriodChanges(t *testing.T) {
	sc := scene{period: 30 * time.Second, v4: State{QueuedSince: time.Now().Add(-time.Minute)}}
	s := sc.server()
	if s.Healthy() {
		t.Error("healthy though a change waits for two periods")
	}
	sc.period = time.Hour
	if !s.Healthy() {
		t.Error("not healthy with the longer period")
	}
}

// HT-03: any other path gives 404, however similar, and is not counted (MT-15).
func TestPathsHT03(t *testing.T) {
	counted := map[string]int{}
	s := newServer(Config{Answered: func(path string, code int) { counted[fmt.Sprint(path, " ", code)]++ }})
	for _, path := range []string{"/", "/healthz/", "/healthz/ping", "//healthz", "/HEALTHZ", "/livez/x", "/metrics",
		"/x/../healthz"} {
		if w := probe(s, http.MethodGet, path); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d, want 404", path, w.Code)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete,
		http.MethodOptions} {
		for _, path := range []string{"/healthz", "/livez?verbose", "/readyz"} {
			if w := probe(s, method, path); w.Code != http.StatusOK {
				t.Errorf("%s %s: %d, want 200", method, path, w.Code)
			}
		}
	}
	s.Drain()
	probe(s, http.MethodGet, "/healthz")
	probe(s, http.MethodGet, "/livez")
	want := map[string]int{"/healthz 200": 5, "/livez 200": 6, "/readyz 200": 5, "/healthz 503": 1}
	if fmt.Sprint(counted) != fmt.Sprint(want) {
		t.Errorf("counted %v, want %v", counted, want)
	}
}

// A panic in a handler is logged, and the next request is answered as before.
func TestPanicIsLogged(t *testing.T) {
	var bad atomic.Bool
	log := &logtest.Buffer{}
	s := newServer(Config{
		Families: map[lb.Family]func() State{lb.IPv4: func() State {
			if bad.Load() {
				panic("no state")
			}
			return State{}
		}},
		Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	run(t, s)
	at := netip.AddrPortFrom(lonely(t), 10256)
	s.Listen(at, false)
	s.await(t, true)
	bad.Store(true)
	if code := status(fresh(), at); code != 0 {
		t.Errorf("answered %d without knowing", code)
	}
	bad.Store(false)
	if code := status(fresh(), at); code != 200 {
		t.Errorf("answered %d afterwards", code)
	}
	if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "no state") {
		t.Errorf("logged:\n%s", text)
	}
}

// FuzzTimes: with any clock and time zone, times are RFC 3339 in UTC and the same instants (HT-01).
func FuzzTimes(f *testing.F) {
	f.Add(int64(0), int64(0), 0)
	f.Add(int64(1763719200), int64(1), -5*3600)
	f.Add(int64(253402300799), int64(999999999), 86399)
	f.Add(int64(-62135596800), int64(0), 1)
	f.Fuzz(func(t *testing.T, sec, nsec int64, zone int) {
		when := time.Unix(sec, nsec).In(time.FixedZone("there", zone%86400))
		if y := when.UTC().Year(); y < 1 || y > 9999 {
			return
		}
		s := newServer(Config{Families: map[lb.Family]func() State{lb.IPv4: func() State {
			return State{LastSuccess: when, QueuedSince: when}
		}}})
		w := probe(s, http.MethodGet, "/livez")
		var got struct {
			LastUpdated, CurrentTime string
			Status                   map[string]struct{ LastUpdated string }
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatalf("%v:\n%s", err, w.Body)
		}
		for what, text := range map[string]string{"lastUpdated": got.LastUpdated, "currentTime": got.CurrentTime,
			"IPv4": got.Status["IPv4"].LastUpdated} {
			back, err := time.Parse(time.RFC3339, text)
			if err != nil || text[len(text)-1] != 'Z' {
				t.Errorf("%s: %q, %v", what, text, err)
			}
			if want := when; what == "IPv4" && !when.IsZero() && !back.Equal(want) {
				t.Errorf("%s: %s, want %s", what, text, want)
			}
		}
	})
}

// life is a server that runs.
type life struct {
	*Server
	stop func() error
}

func run(t *testing.T, s *Server) life {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var err error
	ended := false
	l := life{s, func() error {
		if !ended {
			cancel()
			err, ended = <-done, true
		}
		return err
	}}
	t.Cleanup(func() {
		if err := l.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return l
}

// Over HTTP: the headers are those of the specification, and no others except the date (HT-01,
// HT-02).
func TestHeaders(t *testing.T) {
	s := newServer(Config{NodeEligible: func() (bool, bool) { return true, false }})
	run(t, s)
	s.Listen(netip.AddrPortFrom(lonely(t), 10256), false)
	at := s.await(t, true)
	for path, code := range map[string]int{"/healthz": 503, "/livez": 200, "/readyz": 200, "/": 404} {
		resp, body := get(t, "GET", "http://"+at.String()+path)
		want := http.Header{"Content-Type": {"application/json"}, "X-Content-Type-Options": {"nosniff"},
			"Content-Length": {fmt.Sprint(len(body))}, "Date": resp.Header["Date"]}
		if path == "/" {
			want.Set("Content-Type", "text/plain; charset=utf-8")
		}
		if resp.StatusCode != code || !sameHeader(resp.Header, want) || len(body) == 0 {
			t.Errorf("%s: %d %v %q, want %d %v", path, resp.StatusCode, resp.Header, body, code, want)
		}
	}
}

func sameHeader(a, b http.Header) bool {
	return fmt.Sprint(a) == fmt.Sprint(b) // maps are printed in order
}

// await returns where the server listens, once it does, or the zero AddrPort once it does not.
func (s *Server) await(t *testing.T, listens bool) netip.AddrPort {
	t.Helper()
	eventually(t, fmt.Sprintf("the server to listen: %t", listens), func() bool {
		return s.Addr().IsValid() == listens
	})
	return s.Addr()
}

// status requests /livez; 0 means that no server answers.
func status(c *http.Client, at netip.AddrPort) int {
	resp, err := c.Get("http://" + at.String() + "/livez")
	if err != nil {
		return 0
	}
	drain(resp)
	return resp.StatusCode
}

// HT-04: a step of the wall clock neither hides a change that waits for the kernel nor makes one of
// them old.
func TestSteppedClock(t *testing.T) {
	for _, c := range []struct {
		name    string
		ago, by time.Duration // when the change began to wait, and how the wall clock was stepped since
		code    int
	}{
		{"back, while one waits for too long", 2 * time.Minute, -time.Hour, 503},
		{"back, while one has just begun to wait", time.Second, -time.Hour, 200},
		{"forward, while one waits for too long", 2 * time.Minute, time.Hour, 503},
		{"forward, while one has just begun to wait", time.Second, time.Hour, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			since := clocktest.Step(t, time.Now().Add(-c.ago), -c.by)
			sc := scene{period: 30 * time.Second, known: true, eligible: true,
				v4: State{QueuedSince: since, Begun: true}, v6: State{Begun: true}}
			s := sc.server()
			for _, path := range []string{"/healthz", "/livez"} {
				if got := probe(s, "GET", path).Code; got != c.code {
					t.Errorf("%s: %d, want %d", path, got, c.code)
				}
			}
			if got := s.Healthy(); got != (c.code == 200) { // of health check NodePorts
				t.Errorf("healthy: %v", got)
			}
			sc.v4, sc.waits = State{Begun: true}, since
			if got := probe(s, "GET", "/healthz").Code; got != c.code {
				t.Errorf("waiting for another process: %d, want %d", got, c.code)
			}
		})
	}
}

// HEAD has the length of what GET would have.
func TestHeadHasTheLength(t *testing.T) {
	w := probe(newServer(Config{}), "HEAD", "/livez")
	if got := w.Header().Get("Content-Length"); got != fmt.Sprint(w.Body.Len()) || w.Body.Len() == 0 {
		t.Errorf("length %s, want %d", got, w.Body.Len())
	}
}

// A process that is not ready for a reason of its own says which, unless it waits for another.
func TestNotReadyWhy(t *testing.T) {
	sc := scene{v4Only: true}
	for _, c := range []struct {
		waits time.Time
		want  string
	}{{time.Time{}, "the table is not read"}, {time.Now(), "for another"}} {
		sc.waits = c.waits
		s := sc.server()
		s.cfg.NotReady = func() string { return "the table is not read" }
		w := probe(s, "GET", "/readyz")
		var body struct {
			Ready   bool
			Waiting string
		}
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatal(err)
		}
		if w.Code != http.StatusServiceUnavailable || body.Ready || body.Waiting != c.want {
			t.Errorf("%d %+v, want the reason %q", w.Code, body, c.want)
		}
	}
}

// An address that cannot be had is reported, but not while its present owner is waited for.
func TestListenFailures(t *testing.T) {
	at, reported := netip.MustParseAddrPort("192.0.2.1:10256"), 0
	sc := scene{}
	s := sc.server()
	s.cfg.OnListenFailed = func(netip.AddrPort, error) { reported++ }
	for _, c := range []struct {
		name     string
		waits    time.Time
		again    bool
		reported int
	}{
		{"the first try", time.Time{}, false, 1}, {"again", time.Time{}, true, 1},
		{"another has it", time.Now(), true, 0}, {"the first try, another has it", time.Now(), false, 1},
	} {
		sc.waits, reported = c.waits, 0
		s.failed(at, errors.New("in use"), c.again)
		if reported != c.reported {
			t.Errorf("%s: reported %d times, want %d", c.name, reported, c.reported)
		}
	}
}
