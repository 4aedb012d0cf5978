package inspect

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/nodetrace"
	"kube-proxy/trace"
)

// TestTracesAtOnce has many queries that follow packets while one takes long. One at a time reads
// the node, the others wait for a bounded time and say so, and the status answers meanwhile
// (NT-19).
func TestTracesAtOnce(t *testing.T) {
	for _, n := range []int{2, 10} {
		synctest.Test(t, func(t *testing.T) { tracesAtOnce(t, n) })
	}
}

func tracesAtOnce(t *testing.T, n int) {
	w := newWorld()
	w.add("shop", "web", "10.96.0.1", 3, 3)
	var now, most atomic.Int32
	release := make(chan struct{})
	w.cfg.Follow = func(ctx context.Context, _ nodetrace.Question) (trace.Node, error) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		select {
		case <-release:
		case <-ctx.Done():
			return trace.Node{}, ctx.Err()
		}
		return trace.Node{Verdict: trace.Delivered}, nil
	}
	i := New(w.cfg)
	var answers sync.Map
	var done sync.WaitGroup
	ask := func(k int) {
		done.Go(func() {
			if k%2 == 1 {
				d, err := i.Why(t.Context(), "shop/web")
				answers.Store(k, err)
				_ = d
				return
			}
			a, err := i.Trace(t.Context(), TraceQuery{From: "10.1.7.9", To: "shop/web"})
			if err != nil {
				answers.Store(k, err)
				return
			}
			answers.Store(k, strings.Join(append(a.Rest.NotEvaluated, string(a.Rest.Verdict)), "; "))
		})
	}
	for k := range n {
		ask(k)
	}
	synctest.Wait()
	if _, ended := answers.Load(0); ended || now.Load() != 1 {
		t.Fatalf("%d queries follow packets", now.Load())
	}
	begun := time.Now()
	if s := i.Status(); s.Node == "" || time.Since(begun) != 0 {
		t.Errorf("the status waits for %s: %+v", time.Since(begun), s)
	}
	done.Wait() // of the bubble's clock: nothing releases the queries but their own limits
	waited, limit := time.Since(begun), 0
	for k := range n {
		switch is, _ := answers.Load(k); text := is.(type) {
		case string:
			if strings.Contains(text, "another trace is still running") {
				limit++
			} else if !strings.Contains(text, "deadline") || !strings.HasSuffix(text, "unknown") {
				t.Errorf("query %d: %s", k, text)
			}
		case error:
			t.Errorf("query %d: %v", k, text)
		}
	}
	if most.Load() != 1 || waited > time.Duration(4*n)*restWait || n == 10 && limit == 0 {
		t.Errorf("%d at once; the last ended after %s; %d say that they waited", most.Load(), waited, limit)
	}
	close(release)
	a, err := i.Trace(t.Context(), TraceQuery{From: "10.1.7.9", To: "shop/web"})
	if err != nil || a.Rest.Verdict != trace.Delivered {
		t.Errorf("afterwards: %+v, %v", a, err)
	}
}
