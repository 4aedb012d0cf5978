package engine

import (
	"context"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// kernel is what is known of whether the kernel takes writes; doc.go has the transitions. A row that is refused alone says
// nothing of that: it may be odd, or the kernel may be sick. Where others are written they tell; in a family where nothing
// else changes the plane is asked, for one odd Service, which all nodes have, must not make all of them unhealthy (HT-04).
type kernel uint8

const (
	healthy  kernel = iota // a write was accepted after the last that failed, or none has failed
	unknown                // a write failed since, and so did a probe if there was one; the next try of a row alone will tell
	probeDue               // a row failed alone since; the plane may be asked once
)

// failed takes note of a write that failed.
func (k *kernel) failed() {
	if *k == healthy {
		*k = unknown
	}
}

// mayProbe reports whether it is time to ask the plane: an event waits for a write to be accepted, and none is to be
// made that would tell as well.
func (e *Engine) mayProbe() bool {
	return e.writer.kernel == probeDue && e.pending.queue.len() == 0 && len(e.writer.searches) == 0 && e.inbox.waiting()
}

// probe has the plane show that the kernel takes writes. If it does, the rows that failed are the odd ones: they are
// retried alone as before, but no event waits any more. There is one probe at most for each try of a row.
func (e *Engine) probe(ctx context.Context) {
	err := e.call(&Write{Verb: "probe"}, func() error { return e.cfg.Plane.Probe(ctx) })
	if err == nil {
		e.writer.kernel, e.writer.probe = healthy, trouble{}
		e.inbox.accepted(true, false)
		return
	}
	e.writer.kernel = unknown
	e.writer.credit.spend(time.Now())
	if !e.resets.due && e.writer.probe.news(err) {
		e.cfg.Log.Error("the kernel takes no write, not even one that changes nothing", "err", err)
		e.tellFailed(cluster.Name{}, lb.Key{}, "probe", err)
	}
}
