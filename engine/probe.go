package engine

import (
	"context"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// kernel is the state of the question whether the kernel takes writes; doc.go has the transitions.
// A frontend refused alone does not answer it: the frontend may be malformed, or the kernel may
// fail. Other writes answer it. In a family in which nothing else changes, the engine probes the
// plane, because one bad Service, which all nodes have, must not make all of them unhealthy
// (HT-04).
type kernel uint8

const (
	healthy  kernel = iota // a write was accepted after the last failure, or none has failed
	unknown                // a write failed since, and any probe; the next single retry will show more
	probeDue               // a frontend failed alone since; one probe is allowed
)

// failed takes note of a write that failed.
func (k *kernel) failed() {
	if *k == healthy {
		*k = unknown
	}
}

// mayProbe reports whether the engine may probe the plane: an event waits for an accepted write,
// and no due write would give the same answer.
func (e *Engine) mayProbe() bool {
	return e.writer.kernel == probeDue && e.pending.queue.len() == 0 && len(e.writer.searches) == 0 && e.inbox.waiting()
}

// probe checks with the plane whether the kernel takes writes. If it does, the failed frontends are
// at fault: they are retried alone as before, but no event waits any longer. There is at most one
// probe for each retry of a frontend.
func (e *Engine) probe(ctx context.Context) {
	err := e.call(&Write{Verb: "probe"}, func() error { return e.cfg.Plane.Probe(ctx) })
	if err == nil {
		e.writer.kernel, e.writer.probe = healthy, trouble{}
		e.inbox.accepted(true, false)
		return
	}
	e.writer.kernel = unknown
	e.writer.credit.spend(time.Now())
	if !e.resets.due && e.writer.probe.logged.News(err) {
		e.cfg.Log.Error("The kernel accepts no write, not even one without changes", "err", err)
		e.reportFailed(cluster.Name{}, lb.Key{}, "probe", err)
	}
}
