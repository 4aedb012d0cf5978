package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/cluster"
	"kube-proxy/event"
	"kube-proxy/source/convert"
	"kube-proxy/test/logtest"
)

// quick is a pace for tests. Repetitions are not sent before the end unless a test asks for it.
var quick = pace{
	retryFirst: 5 * time.Millisecond, retryLast: 40 * time.Millisecond, giveUp: time.Hour,
	refused:  50 * time.Millisecond,
	gapFirst: time.Hour, gapLast: time.Hour, forget: time.Hour,
	request: 5 * time.Second, flush: time.Second, perSecond: 1000, burst: 1000,
}

type publisherRig struct {
	*Publisher
	t    *testing.T
	log  logtest.Buffer
	stop func()
}

// startPublisher runs a Publisher until the test or stop ends it.
func startPublisher(t *testing.T, url string, pace pace, change func(*Config)) *publisherRig {
	t.Helper()
	r := makePublisher(t, url, pace, change)
	r.start()
	return r
}

// makePublisher returns a Publisher that does not run.
func makePublisher(t *testing.T, url string, pace pace, change func(*Config)) *publisherRig {
	t.Helper()
	r := &publisherRig{t: t}
	cfg := Config{Master: url, NodeName: "n1", Log: slog.New(slog.NewTextHandler(&r.log, nil))}
	if change != nil {
		change(&cfg)
	}
	p, err := newPublisher(cfg, pace)
	if err != nil {
		t.Fatal(err)
	}
	r.Publisher = p
	return r
}

func (r *publisherRig) start() {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	r.stop = func() {
		cancel()
		select {
		case <-done:
		case <-time.After(time.Minute):
			r.t.Error("Run does not end")
		}
	}
	r.t.Cleanup(r.stop)
}

func (r *publisherRig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s; log:\n%s", what, strings.Join(r.log.Lines(""), "\n"))
		}
	}
}

func (r *publisherRig) waitFor(s *eventServer, want string) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); s.said() != want; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("said %s\nwant %s\nlog:\n%s", s.said(), want, strings.Join(r.log.Lines(""), "\n"))
		}
	}
}

var errBusy = errors.New("address already in use")

// EV-01, EV-05, EV-06: what an event looks like at the API server. The UID of a Node is its name;
// that of another object is requested.
func TestPublish(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"", "application/json", "application/vnd.kubernetes.protobuf"} {
		s := newEventServer(t)
		s.uids["services shop/web"] = "uid-of-web"
		s.uids["endpointslices shop/web-x7"] = "uid-of-slice"
		r := startPublisher(t, s.http.URL, quick, func(c *Config) { c.ContentType = contentType })
		r.Publish(event.Starting("n1"))
		r.Publish(event.FailedToStartServiceHealthcheck("shop/web", "n1", 31000, errBusy))
		problem := convert.Problem{Kind: "EndpointSlice", Name: cluster.Name{Namespace: "shop", Name: "web-x7"},
			Field: "endpoints[0].addresses[0]",
			Value: "fd00::1", What: "is not an IPv4 address", Reason: convert.ReasonIncorrectIPVersion}
		e, ok := ProblemEvent(problem)
		if !ok {
			t.Fatal("no event for EV-06")
		}
		r.Publish(e)
		r.Publish(event.NodePortInUse("shop/gone:http", "n1", 30080, "tcp", netip.MustParseAddrPort("0.0.0.0:30080"),
			false))
		r.waitFor(s, `Starting Node n1 "n1" 1; FailedToStartServiceHealthcheck Service web "uid-of-web" 1; `+
			`KubeProxyIncorrectIPVersion EndpointSlice web-x7 "uid-of-slice" 1; KubeProxyNodePortInUse Service gone `+
			`"" 1`)
		got := s.events[s.names[1]]
		if got.Action != "Listen" || got.Type != "Warning" || got.ReportingController != "kube-proxy" ||
			got.ReportingInstance != "kube-proxy-n1" ||
			got.Regarding.APIVersion != "v1" || got.Regarding.Namespace != "shop" || got.Namespace != "shop" ||
			got.Series != nil ||
			got.Note != "node n1 cannot serve the Service's health check on port 31000: address already in use" ||
			time.Since(got.EventTime.Time) > time.Minute {
			t.Errorf("%+v", got)
		}
		if got := s.events[s.names[2]].Regarding.APIVersion; got != "discovery.k8s.io/v1" {
			t.Errorf("a slice has the version %q", got)
		}
		want := contentType
		if want == "" {
			want = "application/vnd.kubernetes.protobuf"
		}
		if s.types[0] != want {
			t.Errorf("content type %q, want %q", s.types[0], want)
		}
		if r.Dropped() != 0 {
			t.Errorf("%d dropped", r.Dropped())
		}
	}
	if _, ok := ProblemEvent(convert.Problem{Kind: "Service", What: "is bad"}); ok {
		t.Error("an event for a problem that has none")
	}
}

// patient is quick, and sends all that is waiting at the end, however busy the machine is.
func patient() pace {
	p := quick
	p.flush = 30 * time.Second
	return p
}

// A saboteur who undoes our rules all the time makes one event, whose series is updated ever more
// rarely.
func TestSeries(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	pace := patient()
	pace.gapFirst, pace.gapLast = 20*time.Millisecond, time.Hour
	r := startPublisher(t, s.http.URL, pace, nil)
	const times = 1000
	start := time.Now()
	for i := range times {
		r.Publish(event.DriftRepaired("n1", "IPv4", i))
		time.Sleep(time.Millisecond / 2)
	}
	s.set(func() {
		most := bits.Len(uint(time.Since(start)/pace.gapFirst)) + 1 // each gap is twice the one before
		if s.posts != 1 || s.patches == 0 || s.patches > most {
			t.Errorf("%d events and %d updates for %d repetitions", s.posts, s.patches, times)
		}
	})
	r.stop()
	if got, want := s.said(), fmt.Sprintf(`KubeProxyDriftRepaired Node n1 "n1" %d`, times); got != want {
		t.Errorf("said %s, want %s", got, want)
	}
	if r.Dropped() != 0 {
		t.Errorf("%d dropped", r.Dropped())
	}
}

// An event that repeats before it is sent is one with a series, of the time when it began.
func TestSeriesBeforeFirstSend(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	s.uids["services shop/web"] = "uid-of-web"
	r := makePublisher(t, s.http.URL, quick, nil)
	again := func() { r.Publish(event.FailedToStartServiceHealthcheck("shop/web", "n1", 31000, errBusy)) }
	again()
	time.Sleep(time.Millisecond)
	began := time.Now()
	again()
	r.start()
	r.waitFor(s, `FailedToStartServiceHealthcheck Service web "uid-of-web" 2`)
	if got := s.events[s.names[0]]; !got.EventTime.Time.Before(began) || !got.Series.LastObservedTime.After(
		got.EventTime.Time) {
		t.Errorf("event time %v, last observed %v; the second was published after %v", got.EventTime,
			got.Series.LastObservedTime, began)
	}
}

// A Service that was deleted and made again has another UID, by which kubectl describe finds its
// events: it gets an event of its own, and the one before keeps its count.
func TestSeriesOfNewObject(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	s.uids["services shop/web"] = "first"
	pace := quick
	pace.gapFirst, pace.gapLast = 10*time.Millisecond, 10*time.Millisecond
	r := startPublisher(t, s.http.URL, pace, nil)
	happens := func() { r.Publish(event.FailedToStartServiceHealthcheck("shop/web", "n1", 31000, errBusy)) }
	happens()
	r.waitFor(s, `FailedToStartServiceHealthcheck Service web "first" 1`)
	happens()
	r.waitFor(s, `FailedToStartServiceHealthcheck Service web "first" 2`)
	s.set(func() { s.uids["services shop/web"] = "second" })
	happens()
	r.waitFor(s, `FailedToStartServiceHealthcheck Service web "first" 2; FailedToStartServiceHealthcheck Service web `+
		`"second" 1`)
	happens()
	r.waitFor(s, `FailedToStartServiceHealthcheck Service web "first" 2; FailedToStartServiceHealthcheck Service web `+
		`"second" 2`)
	s.set(func() { delete(s.uids, "services shop/web") }) // who is gone, has its repetitions told as before
	happens()
	r.waitFor(s, `FailedToStartServiceHealthcheck Service web "first" 2; FailedToStartServiceHealthcheck Service web `+
		`"second" 3`)
	if r.Dropped() != 0 {
		t.Errorf("%d dropped", r.Dropped())
	}
}

// A series that the API server has forgotten is created again, under another name, and goes on
// counting.
func TestSeriesForgotten(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	pace := quick
	pace.gapFirst, pace.gapLast = time.Millisecond, time.Millisecond
	r := startPublisher(t, s.http.URL, pace, nil)
	r.Publish(event.DriftRepaired("n1", "IPv4", 1))
	r.waitFor(s, `KubeProxyDriftRepaired Node n1 "n1" 1`)
	s.set(func() { s.events = map[string]*events.Event{} })
	r.Publish(event.DriftRepaired("n1", "IPv4", 1))
	r.waitFor(s, `KubeProxyDriftRepaired Node n1 "n1" 2`)
	r.Publish(event.DriftRepaired("n1", "IPv4", 1))
	r.waitFor(s, `KubeProxyDriftRepaired Node n1 "n1" 3`)
	if len(s.names) != 2 {
		t.Errorf("created %q", s.names)
	}
}

// What did not happen for long is a new event.
func TestSeriesOver(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	pace := quick
	pace.forget = 30 * time.Millisecond
	r := startPublisher(t, s.http.URL, pace, nil)
	one := `KubeProxyDriftRepaired Node n1 "n1" 1`
	r.Publish(event.DriftRepaired("n1", "IPv4", 1))
	r.waitFor(s, one)
	time.Sleep(50 * time.Millisecond)
	r.Publish(event.DriftRepaired("n1", "IPv4", 1))
	r.waitFor(s, one+"; "+one)
}

// While the API server is away nothing blocks, and what happened comes once it answers; an answer
// that got lost makes no second event.
func TestServerAway(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	s.answer = func(*http.Request) *metav1.Status { return failure(503, metav1.StatusReasonServiceUnavailable, "away") }
	r := startPublisher(t, s.http.URL, patient(), nil)
	start := time.Now()
	for range 10_000 {
		r.Publish(event.Starting("n1"))
		r.Publish(event.IPVSDeprecated("n1"))
	}
	if took := time.Since(start); took > 20*time.Second { // one try for each would take minutes
		t.Errorf("20,000 events took %v", took)
	}
	time.Sleep(50 * time.Millisecond)
	s.set(func() { s.answer, s.lose = nil, 1 })
	r.until("both events", func() bool { return s.created() == 2 })
	r.stop()
	if said := s.said(); strings.Count(said, "10000") != 2 || len(s.names) != 2 {
		t.Errorf("said %s", said)
	}
	if r.Dropped() != 0 || len(r.log.Lines("")) != 0 {
		t.Errorf("%d dropped; log: %q", r.Dropped(), r.log.Lines(""))
	}
}

// Patience has an end: what is too old is dropped and counted, and the first success says how much
// was lost.
func TestGivesUp(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	s.answer = func(*http.Request) *metav1.Status { return failure(503, metav1.StatusReasonServiceUnavailable, "away") }
	pace := quick
	pace.giveUp = 300 * time.Millisecond
	r := startPublisher(t, s.http.URL, pace, nil)
	r.Publish(event.Starting("n1"))
	r.Publish(event.Starting("n1"))
	r.until("dropped", func() bool { return r.Dropped() == 2 })
	s.set(func() { s.answer = nil })
	r.Publish(event.IPVSDeprecated("n1"))
	r.waitFor(s, `IPVSDeprecation Node n1 "n1" 1`)
	r.until("the loss is reported",
		func() bool { return len(r.log.Lines(`msg="Events were not sent" dropped=2`)) == 1 })
}

// 403: told once, and only if it lasts.
func TestForbidden(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	forbid := func(*http.Request) *metav1.Status {
		return failure(403, metav1.StatusReasonForbidden, "events is forbidden")
	}
	s.answer = forbid
	pace := quick
	pace.refused = time.Hour
	r := startPublisher(t, s.http.URL, pace, nil)
	r.Publish(event.Starting("n1"))
	time.Sleep(50 * time.Millisecond)
	s.set(func() { s.answer = nil })
	r.waitFor(s, `Starting Node n1 "n1" 1`)
	r.stop()
	if lines := r.log.Lines(""); len(lines) != 0 {
		t.Errorf("log: %q", lines)
	}
	r = startPublisher(t, s.http.URL, quick, nil)
	s.set(func() { s.answer = forbid })
	r.Publish(event.IPVSDeprecated("n1"))
	r.Publish(event.NodeNotFound("n1"))
	r.until("403 is reported", func() bool { return len(r.log.Lines("")) > 0 })
	time.Sleep(300 * time.Millisecond)
	if lines := r.log.Lines("403"); len(lines) != 1 || !strings.Contains(lines[0], "we may not send events") {
		t.Errorf("log: %q", lines)
	}
	r.stop()
	if r.Dropped() != 2 {
		t.Errorf("%d dropped", r.Dropped())
	}
}

// An event that the server does not take is dropped, and the next one sent.
func TestRejected(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	terminating := failure(403, metav1.StatusReasonForbidden, "namespace shop is being terminated")
	terminating.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: core.NamespaceTerminatingCause}}}
	for i, refusal := range []*metav1.Status{
		failure(422, metav1.StatusReasonInvalid, "invalid"), failure(400, metav1.StatusReasonBadRequest, "bad"),
		failure(404, metav1.StatusReasonNotFound, `namespaces "shop" not found`), terminating,
	} {
		s.set(func() {
			s.answer = func(r *http.Request) *metav1.Status {
				if strings.Contains(r.URL.Path, "/shop/") && r.Method == http.MethodPost {
					return refusal
				}
				return nil
			}
			s.events, s.names = map[string]*events.Event{}, nil
		})
		r := startPublisher(t, s.http.URL, quick, nil)
		r.Publish(event.ContestedKey("shop/web", "shop/old", "192.0.2.7:80/tcp", "is older", 0))
		r.Publish(event.ContestedKey("other/web", "shop/old", "192.0.2.7:80/tcp", "is older", 0))
		r.waitFor(s, `KubeProxyContestedKey Service web "" 1`)
		r.until("dropped", func() bool { return r.Dropped() == 1 })
		r.stop()
		want := 2 // one line for the refusal and one for the loss
		if refusal == terminating {
			want = 1
		}
		if lines := r.log.Lines(""); len(lines) != want ||
			len(r.log.Lines(`msg="Events were not sent" dropped=1`)) != 1 {
			t.Errorf("%d: log %q", i, lines)
		}
	}
}

// Whatever happens, memory has a bound, what is beyond it is counted, and what is silent for
// longest gives way to what is new.
func TestTooMany(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	r := makePublisher(t, s.http.URL, quick, nil)
	for i := range maxSeries + 100 {
		r.Publish(conflictIn("shop", i))
	}
	if len(r.series) != maxSeries || len(r.queues["shop"]) != maxSeries || r.Dropped() != 100 {
		t.Errorf("%d series, %d queued, %d dropped", len(r.series), len(r.queues["shop"]), r.Dropped())
	}
	r.start()
	r.until("all that have room", func() bool { return s.created() == maxSeries })
	for i := range 100 {
		r.Publish(conflictIn("shop", 10_000+i))
	}
	r.until("100 more", func() bool { return s.created() == maxSeries+100 })
	r.stop()
	if r.Dropped() != 100 {
		t.Errorf("%d dropped", r.Dropped())
	}
	r.Publish(event.Starting("n1"))
	if r.Dropped() != 101 {
		t.Error("an event after the end is not counted")
	}
}

// The rate is bounded: what is beyond the burst waits.
func TestRate(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	pace := quick
	pace.perSecond, pace.burst = 0.001, 3
	r := startPublisher(t, s.http.URL, pace, nil)
	for i := range 10 {
		r.Publish(event.FailedToStartServiceHealthcheck("shop/web", "n1", uint16(i), errBusy))
	}
	r.until("the burst", func() bool { return s.created() == 3 })
	time.Sleep(200 * time.Millisecond)
	if n := s.created(); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
	r.stop() // does not wait for the rate
	if r.Dropped() != 7 {
		t.Errorf("%d dropped", r.Dropped())
	}
}

// At the end what is waiting is still sent, but a server that hangs does not hold the process up.
// No goroutine is left.
func TestFlush(t *testing.T) {
	s := newEventServer(t)
	before := runtime.NumGoroutine()
	r := startPublisher(t, s.http.URL, patient(), nil)
	r.Publish(event.Starting("n1"))
	r.stop()
	if got := s.said(); got != `Starting Node n1 "n1" 1` {
		t.Errorf("said %q", got)
	}
	hang := make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	pace := quick
	pace.flush = 100 * time.Millisecond
	h := startPublisher(t, hanging.URL, pace, nil)
	h.Publish(event.Starting("n1"))
	time.Sleep(20 * time.Millisecond)
	h.stop() // or it says that Run does not end
	if h.Dropped() != 1 {
		t.Errorf("%d dropped", h.Dropped())
	}
	close(hang)
	hanging.Close()
	s.http.CloseClientConnections()
	r.until("goroutines stay", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// Long names and notes, and names that are none, still make events that the API takes.
func TestOddNames(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	long := strings.Repeat("a", 253)
	r := startPublisher(t, s.http.URL, quick, func(c *Config) { c.NodeName = long })
	r.Publish(event.Starting(long))
	r.Publish(event.Starting("Not_A_Name"))
	r.Publish(event.FailedToStartMetricServer("n1", "a", errors.New(strings.Repeat("ü", 2000))))
	r.Publish(event.ReadOnlySysFS("n1", errors.New("\xff\xfe what is no text"))) // which JSON and protobuf refuse
	r.until("four events", func() bool { return s.created() == 4 })
	for _, name := range s.names {
		if e := s.events[name]; len(e.Name) > 253 || e.Reason == "FailedToStartMetricServer" &&
			!strings.HasSuffix(e.Note, "ü…") ||
			e.Reason == "readOnlySysFS" && !strings.HasSuffix(e.Note, ":  what is no text") {
			t.Errorf("%+v", e)
		}
	}
	if !strings.HasPrefix(s.names[1], "default/kube-proxy.") {
		t.Errorf("names %q", s.names)
	}
}

// The UID of an object is requested once, however often its event must be sent, and again for a
// repetition: the object may be another one of that name.
func TestUIDIsRequestedOnce(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	s.uids["services shop/web"] = "uid-of-web"
	gets, refusals := 0, 3
	s.answer = func(r *http.Request) *metav1.Status {
		if r.Method == http.MethodGet {
			gets++
		}
		if r.Method == http.MethodPost && refusals > 0 {
			refusals--
			return failure(503, metav1.StatusReasonServiceUnavailable, "soon")
		}
		return nil
	}
	pace := quick
	pace.gapFirst = time.Millisecond
	r := startPublisher(t, s.http.URL, pace, nil)
	publish := func() { r.Publish(event.ContestedKey("shop/web", "shop/old", "192.0.2.7:80/tcp", "is older", 0)) }
	publish()
	r.until("not created", func() bool { return s.created() == 1 })
	s.set(func() {
		if gets != 1 || refusals != 0 {
			t.Errorf("%d requests for the object, %d refusals left", gets, refusals)
		}
	})
	publish()
	patched := func() (n int) { s.set(func() { n = s.patches }); return n }
	r.until("not repeated", func() bool { return patched() == 1 })
	s.set(func() {
		if gets != 2 {
			t.Errorf("%d requests for the object after a repetition", gets)
		}
	})
}

// The times that docs/events.md and the runbooks promise.
func TestUsualPace(t *testing.T) {
	want := pace{retryFirst: time.Second, retryLast: time.Minute, giveUp: 15 * time.Minute, refused: 10 * time.Second,
		gapFirst: time.Minute, gapLast: 30 * time.Minute, forget: time.Hour, request: 10 * time.Second,
		flush: 2 * time.Second, perSecond: 1, burst: 25}
	if usualPace != want {
		t.Errorf("the pace is %+v, want %+v", usualPace, want)
	}
}
