package kube

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/event"
)

// conflictIn is an event about a Service in the namespace; each i is a series of its own.
func conflictIn(namespace string, i int) event.Event {
	return event.ContestedKey(namespace+"/web", "shop/old", fmt.Sprint("nodeport:", i, "/tcp"), "is older", 0)
}

// TN-06: namespaces that flood delay the event of a stranger, or of the Node, by one event each,
// and never displace it. With 200 series each they are far more than the Publisher remembers; told
// again before the end, all of them wait.
func TestFloodOfEvents(t *testing.T) {
	t.Parallel()
	const namespaces = 10
	for _, each := range []int{40, 200} {
		s := newEventServer(t)
		p := makePublisher(t, s.http.URL, patient(), nil)
		for i := range each {
			for n := range namespaces {
				p.Publish(conflictIn(fmt.Sprint("tenant-", n), i))
			}
		}
		p.Publish(conflictIn("stranger", 0))
		p.Publish(event.Starting("n1"))
		for i := range each {
			for n := range namespaces {
				p.Publish(conflictIn(fmt.Sprint("tenant-", n), i))
			}
		}
		if len(p.series) > maxSeries+1 {
			t.Errorf("%d series", len(p.series))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // Run sends all that waits
		p.Run(ctx)
		places := map[string]int{}
		for i, name := range s.names {
			if namespace, _, _ := strings.Cut(name, "/"); places[namespace] == 0 {
				places[namespace] = i + 1
			}
		}
		for _, namespace := range []string{"stranger", "default"} {
			if place := places[namespace]; place == 0 || place > namespaces+2 {
				t.Errorf("%d series in each of %d namespaces: the event in %s is number %d of %d", each, namespaces,
					namespace, place, len(s.names))
			}
		}
		sent := uint64(0)
		for _, e := range s.events {
			sent++
			if e.Series != nil {
				sent += uint64(e.Series.Count) - 1
			}
		}
		if reported := uint64(2*each*namespaces + 2); sent+p.Dropped() != reported {
			t.Errorf("%d events sent and %d dropped, of %d", sent, p.Dropped(), reported)
		}
	}
}

// TN-87: namespaces whose events the API server refuses for now, as a limit or a quota of theirs
// does, wait for themselves. An event about a stranger or the Node is sent at once, however often
// it happens; that the server cannot be reached concerns all.
func TestRefusedNamespaces(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	refusals := []*metav1.Status{
		failure(429, metav1.StatusReasonTooManyRequests, "limit reached on type Namespace"),
		failure(403, metav1.StatusReasonForbidden, "exceeded quota"),
		failure(500, metav1.StatusReasonInternalError, "failed calling webhook"),
		failure(504, metav1.StatusReasonTimeout, "request did not complete"),
	}
	refused := map[string]int{}
	s.answer = func(r *http.Request) *metav1.Status {
		_, namespace, _ := strings.Cut(r.URL.Path, "/namespaces/tenant-")
		if namespace == "" || r.Method != http.MethodPost {
			return nil
		}
		refused[namespace]++
		return refusals[int(namespace[0]-'0')%len(refusals)]
	}
	pace := patient()
	pace.retryFirst, pace.retryLast = time.Hour, time.Hour
	r := startPublisher(t, s.http.URL, pace, nil)
	for i := range 3 {
		for n := range 10 {
			for more := range 3 {
				r.Publish(conflictIn(fmt.Sprint("tenant-", n), 3*i+more))
			}
		}
		r.Publish(conflictIn("stranger", i))
		r.Publish(event.NodeNotFound(fmt.Sprint("n", i)))
		r.until("the events of the stranger and the Node", func() bool { return s.created() == 2*(i+1) })
	}
	s.set(func() {
		for namespace, times := range refused {
			if times != 1 {
				t.Errorf("tenant-%s was tried %d times, want 1 in an hour", namespace, times)
			}
		}
		s.answer = nil
	})
	r.stop() // sends what waits
	if len(s.names) != 6+90 || r.Dropped() != 0 {
		t.Errorf("%d events sent and %d dropped, want 96 and none", len(s.names), r.Dropped())
	}
	for err, want := range map[error]bool{fmt.Errorf("post: %w", context.DeadlineExceeded): false,
		apierrors.NewTimeoutError("slow", 1):         false,
		fmt.Errorf("dial: %w", syscall.ECONNREFUSED): true, io.ErrUnexpectedEOF: true} {
		if unreachable(err) != want {
			t.Errorf("unreachable(%v) is %v", err, !want)
		}
	}
}

// TN-06: series that the API server knows and that wait for their next PATCH make room for a
// stranger's, too.
func TestFloodOfRepetitions(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	r := startPublisher(t, s.http.URL, patient(), nil)
	for i := range maxSeries {
		r.Publish(conflictIn("tenant", i))
	}
	r.until("all events of the tenant", func() bool { return s.created() == maxSeries })
	for i := range maxSeries {
		r.Publish(conflictIn("tenant", i))
	}
	r.Publish(conflictIn("stranger", 0))
	r.until("the stranger's event", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.HasPrefix(s.names[len(s.names)-1], "stranger/")
	})
	if r.Dropped() != 1 {
		t.Errorf("%d dropped, want the repetition of the tenant's that made room", r.Dropped())
	}
}

// TN-06: whatever is published, sent, refused and repeated, in any order, each series counts once
// and waits at most once; the memory is bounded, and nothing gets lost uncounted.
func TestRandomTurns(t *testing.T) {
	t.Parallel()
	s := newEventServer(t)
	pace := quick
	pace.gapFirst, pace.gapLast = 0, 0
	p := makePublisher(t, s.http.URL, pace, nil)
	random := rand.New(rand.NewPCG(1, 2))
	reported, sent := 0, 0
	for step := range 5_000 {
		for range random.IntN(4) {
			reported++
			e := conflictIn(fmt.Sprint("tenant-", random.IntN(1+random.IntN(8))), random.IntN(300))
			if random.IntN(20) == 0 {
				e = event.NodeNotFound(fmt.Sprint("n", random.IntN(2*maxSeries)))
			}
			p.Publish(e)
		}
		if next, _ := p.take(time.Now()); next != nil && random.IntN(2) == 0 {
			now := *next
			ok := random.IntN(4) > 0
			for range random.IntN(3) { // while it is on its way
				reported++
				p.Publish(conflictIn("stranger", random.IntN(1000)))
			}
			p.settle(next, &now, ok, random.IntN(2) == 0)
			if ok {
				sent += int(now.count - now.sent)
			}
		}
		if step%100 == 0 {
			p.verify(t)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	waiting := 0
	for _, s := range p.series {
		waiting += int(s.count - s.sent)
	}
	if reported != sent+waiting+int(p.dropped) || p.dropped == 0 || sent == 0 {
		t.Errorf("told %d events, sent %d, dropped %d, and %d wait", reported, sent, p.dropped, waiting)
	}
}

// verify checks what must be so of the queues at any time.
func (p *Publisher) verify(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	held, queued := map[string]int{}, 0
	for key, s := range p.series {
		held[s.namespace()]++
		if !s.queued.IsZero() {
			queued++
		}
		if key != s.event.Series() {
			t.Errorf("%v is at the place of %v", s.event, key)
		}
	}
	if fmt.Sprint(held) != fmt.Sprint(p.held) || held[""] > maxSeries || len(p.series)-held[""] > maxSeries {
		t.Fatalf("counts %v, has %v", p.held, held)
	}
	for _, namespace := range p.turns {
		queue := p.queues[namespace]
		if len(queue) == 0 {
			t.Fatalf("%q has a turn and nothing to send", namespace)
		}
		for _, s := range queue {
			queued--
			if s.queued.IsZero() || s.namespace() != namespace || p.series[s.event.Series()] != s {
				t.Fatalf("%v is in the queue of %q", s.event, namespace)
			}
		}
	}
	if queued != 0 || len(p.turns) != len(p.queues) {
		t.Fatalf("%d series are not in the queues; %d turns of %d namespaces", queued, len(p.turns), len(p.queues))
	}
}
