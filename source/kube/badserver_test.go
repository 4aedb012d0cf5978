package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"kube-proxy/test/logtest"
)

// badServer is an API server that misbehaves from the moment at which bad is set; it answers
// truthfully before and after.
type badServer struct {
	api   *apiServer
	bad   atomic.Bool
	reply http.HandlerFunc
}

func (b *badServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !b.bad.Load() {
		b.api.ServeHTTP(w, r)
		return
	}
	b.api.set(func() { b.api.requests = append(b.api.requests, r.URL.String()) })
	b.reply(w, r)
}

// misbehave runs a Source against a server that is good, then bad for a time, then good again. What
// was known must stay in force meanwhile, what changed must arrive in the end, and in the bad time
// each resource sends about as many requests as the leader.
func misbehave(t *testing.T, reply http.HandlerFunc) {
	withServer(t, func(t *testing.T, r *rig) {
		b := &badServer{api: r.api, reply: reply}
		r.api.down()
		r.api.handler = b
		r.api.up()
		r.api.put(testService("api", 90), testService("web", 80), testSlice("web", "web-1", "10.1.0.5"),
			testNode("n1", "192.0.2.1"))
		r.start()
		r.wait("api:90 web:80→10.1.0.5 node:192.0.2.1")
		r.require(2)
		b.bad.Store(true)
		r.api.down()
		ofLeader, ofAll := r.api.asked("/nodes?"), r.api.asked("")
		r.api.up()
		enough := func() bool { return r.api.asked("/nodes?") >= ofLeader+badRequests }
		r.until(enough, func() string { return "no retries" })
		ofLeader, ofAll = r.api.asked("/nodes?")-ofLeader, r.api.asked("")-ofAll
		if others := ofAll - ofLeader; others > 4*badRequests {
			t.Errorf("%d requests of the other resources beside %d of the leader", others, ofLeader)
		}
		if got := r.state(); got != "api:90 web:80→10.1.0.5 node:192.0.2.1" {
			t.Errorf("the bad server changed the state to %q", got)
		}
		b.bad.Store(false)
		r.api.down() // of what hangs
		r.api.put(testService("web", 81))
		r.api.up()
		r.wait("api:90 web:81→10.1.0.5 node:192.0.2.1")
		r.noDips()
		if len(r.log.Lines("Cannot watch the API server")) > 0 {
			r.waitLog("answers again")
		}
		if lines := r.log.Lines("Cannot watch the API server"); len(lines) > 2 {
			t.Errorf("%d lines of the log:\n%s", len(lines), strings.Join(lines, "\n"))
		}
	})
}

// badRequests is how many requests of the leader a bad server sees before it is good again.
const badRequests = 4

// SV-69: garbage and truncated bodies, in each encoding, change nothing.
func TestGarbage(t *testing.T) {
	protobuf, truncated := string(encoded(t, false, "a", "b", "c")), string(encoded(t, true, "a", "b", "c"))
	for name, answer := range map[string]struct{ media, body string }{
		"a web page":             {"text/html", "<html><body>502 Bad Gateway</body></html>"},
		"a web page as protobuf": {"application/vnd.kubernetes.protobuf", "<html><body>502 Bad Gateway</body></html>"},
		"JSON that is none": {"application/json", `{"kind":"ServiceList","metadata":{"resourceVersion":"7"},` +
			`"items":[{{`},
		"truncated protobuf": {"application/vnd.kubernetes.protobuf", protobuf[:len(protobuf)/2]},
		"truncated JSON":     {"application/json", truncated[:len(truncated)/2]},
		"another object": {"application/json", `{"kind":"PodList","apiVersion":"v1","metadata":{},` +
			`"items":[{"metadata":7}]}`},
		"nothing":           {"application/json", ""},
		"a size beyond all": {"application/vnd.kubernetes.protobuf", "k8s\x00\x12\xff\xff\xff\xff\xff\x1f"},
	} {
		t.Run(name, func(t *testing.T) {
			misbehave(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", answer.media)
				_, _ = w.Write([]byte(answer.body))
			})
		})
	}
}

// 429 with and without Retry-After: all is retried, and the header is obeyed.
func TestTooManyRequests(t *testing.T) {
	for _, after := range []string{"", "1"} {
		t.Run("Retry-After="+after, func(t *testing.T) {
			misbehave(t, func(w http.ResponseWriter, _ *http.Request) {
				if after != "" {
					w.Header().Set("Retry-After", after)
				}
				w.WriteHeader(http.StatusTooManyRequests)
			})
		})
	}
}

// SV-69: a server that ends each watch at once, or one that is behind a proxy which does: changes
// arrive, one line says so, and streams are opened ever more slowly.
func TestShortWatches(t *testing.T) {
	withServer(t, func(t *testing.T, r *rig) {
		r.api.life = 20 * time.Millisecond
		r.api.put(testService("web", 80), testSlice("web", "web-1", "10.1.0.5"), testNode("n1", "192.0.2.1"))
		r.start()
		r.wait("web:80→10.1.0.5 node:192.0.2.1")
		r.require(1)
		r.waitLog("ends watches early")
		for port := range int32(3) {
			r.api.put(testService("web", 81+port))
			r.wait(fmt.Sprintf("web:%d→10.1.0.5 node:192.0.2.1", 81+port))
		}
		r.noDips()
		if lines := r.log.Lines("ends watches early"); len(lines) != 1 {
			t.Errorf("log: %v", lines)
		}
	})
}

// Streams that end after a second are opened about 15 times in a minute, each resource by itself.
func TestRestBetweenShortWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, opened := throttle{}, 0
		for start := time.Now(); time.Since(start) < time.Minute; opened++ {
			time.Sleep(time.Second)
			l.lived(time.Second)
			if err := l.rest(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		}
		if opened > 22 {
			t.Errorf("%d streams in a minute", opened)
		}
		l.lived(time.Hour)
		if start := time.Now(); l.rest(t.Context(), false) != nil || time.Since(start) > 0 {
			t.Errorf("it rests for %v after a long stream", time.Since(start))
		}
	})
}

// A stream whose connection is lost ends without an error, for which a Reflector would list again.
func TestConnectionLost(t *testing.T) {
	out, in := newOutage(slog.New(slog.DiscardHandler), ""), watch.NewFake()
	s := &stream{listWatch: &listWatch{Source: &Source{outage: out}, resource: services()}, in: in, cancel: func() {},
		out: make(chan watch.Event, 1), begin: time.Now()}
	go s.pump(t.Context())
	in.Error(apierrors.NewClientErrorReporter(500, "GET", "ClientWatchDecoding").AsObject(
		errors.New("http2: client connection lost")))
	if ev, open := <-s.ResultChan(); open || out.connected() {
		t.Errorf("event %v, connected: %t", ev, out.connected())
	}
}

// The header Retry-After is obeyed, up to a minute.
func TestRetryAfter(t *testing.T) {
	for seconds, want := range map[int]time.Duration{3: 3 * time.Second, 3600: longestTurn} {
		synctest.Test(t, func(t *testing.T) {
			l := throttle{}
			l.refused(apierrors.NewTooManyRequests("busy", seconds))
			start := time.Now()
			if err := l.obey(t.Context()); err != nil || time.Since(start) != want {
				t.Errorf("Retry-After %d: the next request after %v, %v", seconds, time.Since(start), err)
			}
		})
	}
}

// SV-68: while the leader cannot connect, the others wait: until it is back, or for longestTurn.
// Whatever else is wrong with the leader's requests, they need not wait.
func TestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(slog.New(slog.DiscardHandler), "")
		turn := func(resource string) time.Duration {
			start := time.Now()
			if err := o.turn(t.Context(), resource); err != nil {
				t.Fatal(err)
			}
			return time.Since(start)
		}
		o.failed("services", errors.New("of its own"))
		if d := turn("endpointslices"); d > 0 {
			t.Errorf("a resource waits %v because of another that does not lead", d)
		}
		noConnection := noConnection{errors.New("connection refused")}
		o.lost()
		o.failed(leader, noConnection)
		if d := turn(leader); d > 0 {
			t.Errorf("the leader waits %v", d)
		}
		if d := turn("services"); d != longestTurn {
			t.Errorf("others wait %v for a leader that does not come back", d)
		}
		go func() {
			time.Sleep(time.Second)
			o.over(leader)
		}()
		o.away.since = time.Now().Add(-3 * time.Second)
		if d := turn("services"); d < time.Second || d > 3*time.Second { // half of four
			t.Errorf("others wait %v, the leader was back after a second, four after it was lost", d)
		}
		for _, answer := range []error{errors.New("EOF"), apierrors.NewInternalError(errors.New("no")),
			apierrors.NewTooManyRequests("busy", 60), apierrors.NewServiceUnavailable("soon")} {
			o.failed(leader, noConnection)
			o.away.since = time.Now()
			o.failed(leader, answer)
			if d := turn("services"); d > 0 {
				t.Errorf("others wait %v for a leader that got %v", d, answer)
			}
		}
		o.lost()
		answered := o.asks(leader)
		if d := turn("services"); d < silence || d > 2*silence {
			t.Errorf("others wait %v for the answer to the leader", d)
		}
		o.lost()
		answered()
		if d := turn("services"); d != longestTurn { // the leader has not failed yet
			t.Errorf("others wait %v after the leader was answered, until that is known", d)
		}
		o.over(leader)
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: leader}, "n1", errors.New("no"))
		o.lost()
		o.failed(leader, forbidden)
		o.failed(leader, forbidden) // of the LIST that follows a refused stream
		if d := turn("services"); d != longestTurn {
			t.Errorf("others wait %v after a first refusal, as a server that starts gives", d)
		}
		o.failed(leader, forbidden)
		if d := turn("services"); d > 0 {
			t.Errorf("others wait %v for a leader that may not list its resource", d)
		}
	})
}

// Bookmarks that are ahead of all events, and then go back, lose nothing: neither while the stream
// lives, nor when the next one begins at a version that the server has not reached, and the server
// is silent about what it has.
func TestBookmarksOutOfOrder(t *testing.T) {
	eachList(t, func(t *testing.T, r *rig) {
		r.api.ahead, r.api.silent = 1000, true
		r.api.put(testService("api", 90), testService("web", 80), testNode("n1", "192.0.2.1"))
		r.start()
		r.wait("api:90 web:80 node:192.0.2.1")
		r.require(1)
		r.api.put(testService("web", 81))
		r.wait("api:90 web:81 node:192.0.2.1")
		r.api.down()
		r.api.remove("services", "shop/api")
		r.api.put(testService("web", 82))
		r.api.up()
		r.wait("web:82 node:192.0.2.1")
		r.api.put(testService("web", 83))
		r.wait("web:83 node:192.0.2.1")
		r.noDips()
	})
}

// SV-69: objects whose versions are no numbers, go back or are beyond all others: the last that
// arrived counts, after a break too.
func TestLyingVersions(t *testing.T) {
	for _, version := range []string{"9223372036854775807", "18446744073709551616", "zero", "", "1"} {
		t.Run(version, func(t *testing.T) {
			withServer(t, func(t *testing.T, r *rig) {
				r.api.silent = true
				r.api.put(testService("web", 80), testNode("n1", "192.0.2.1"))
				r.start()
				r.wait("web:80 node:192.0.2.1")
				r.require(1)
				r.api.lie(testService("web", 81), version)
				r.wait("web:81 node:192.0.2.1")
				r.api.down()
				r.api.up()
				r.api.put(testService("web", 82))
				r.wait("web:82 node:192.0.2.1")
				r.noDips()
				if n := r.api.asked(""); n > 40 {
					t.Errorf("%d requests", n)
				}
			})
		})
	}
}

// SV-04: a Node that does not exist is reported as such: at the start, and if it is deleted while
// the server is away. One that was made meanwhile is there, though its stream goes on.
func TestNoNode(t *testing.T) {
	eachList(t, func(t *testing.T, r *rig) {
		gone := func() bool { return r.store.Facts().NodeGone }
		r.api.put(testService("web", 80), testNode("n2", "192.0.2.2"))
		r.store.WaitForFacts(true)
		r.start()
		r.until(r.store.Synced, func() string { return "the absence is not told" })
		r.api.put(testNode("n1", "192.0.2.1"))
		r.wait("web:80 node:192.0.2.1")
		r.api.down()
		r.api.remove("nodes", "/n1")
		r.api.up()
		r.until(gone, func() string { return "the Node is not gone" })
		r.api.down()
		r.api.put(testNode("n1", "192.0.2.2"))
		r.api.up()
		r.wait("web:80 node:192.0.2.2")
		if gone() {
			t.Error("the Node is gone")
		}
	})
}

// lie is put, but the object has another version than the change of it.
func (s *apiServer) lie(o apiObject, version string) {
	s.put(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	o.SetResourceVersion(version)
}

// A refusal of the leader counts as the first one again after another answer: a server that starts
// again may refuse everything for a while.
func TestRefusedAgainAfterAnswer(t *testing.T) {
	for name, between := range map[string]func(o *outage){
		"served":        func(o *outage) { o.over(leader) },
		"another error": func(o *outage) { o.failed(leader, errors.New("EOF")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOutage(slog.New(slog.DiscardHandler), "")
				forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: leader}, "n1", errors.New("no"))
				o.failed(leader, forbidden)
				between(o)
				time.Sleep(2 * startup)
				o.failed(leader, forbidden)
				start := time.Now()
				if err := o.turn(t.Context(), "services"); err != nil || time.Since(start) != longestTurn {
					t.Errorf("others waited %v after a first refusal (%v)", time.Since(start), err)
				}
			})
		})
	}
}

// Streams that end early are worth a line a minute, however many resources and streams there are.
func TestEarlyEndsAreReportedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		o := newOutage(slog.New(slog.NewTextHandler(&log, nil)), "")
		for range 3 * 60 {
			o.early("services")
			o.early("nodes")
			time.Sleep(time.Second)
		}
		if lines := log.Lines("ends watches early"); len(lines) != 3 {
			t.Errorf("%d lines in three minutes:\n%s", len(lines), strings.Join(lines, "\n"))
		}
	})
}
