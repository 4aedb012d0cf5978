package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kube-proxy/plane"
)

// proof is what is known of whether the kernel takes writes while some fail. A row that is refused alone says nothing of
// that: it may be odd, or the kernel may be sick. Where others are written they tell; in a family where nothing else
// changes the plane is asked (see [Plane]), for one odd Service, which all nodes have, must not make all of them unhealthy
// (HT-04).
type proof uint8

const (
	given   proof = iota // a write was accepted after the last that failed, or none has failed
	lacking              // a write failed since, and so did a proof if there was one; the next try of a row alone will tell
	wanted               // a row failed alone since; the plane may be asked once
)

// failed takes note of a write that failed.
func (p *proof) failed() {
	if *p == given {
		*p = lacking
	}
}

// probeDue reports whether it is time to ask the plane: an event waits for a write to be accepted, and none is to be
// made that would tell as well.
func (e *Engine) probeDue() bool {
	return e.proof == wanted && e.pending.queue.len() == 0 && len(e.searches) == 0 && e.inbox.waiting()
}

// probe has the plane show that the kernel takes writes. If it does, the rows that failed are the odd ones: they are
// retried alone as before, but no event waits any more. There is one proof at most for each try of a row.
func (e *Engine) probe(ctx context.Context) {
	start := time.Now()
	err := e.guard("plane, probe", func() error { return e.cfg.Plane.Probe(ctx) })
	e.stats.update(func(s *Stats) { s.Probes++ })
	e.called(Write{Verb: "probe", Took: time.Since(start), Err: err}, false)
	if err == nil {
		e.proof, e.proofErr = given, ""
		e.inbox.proven()
		return
	}
	e.proof = lacking
	e.credit.spend(time.Now())
	if isPanic(err) || errors.Is(err, plane.ErrStateLost) {
		e.lose(fmt.Errorf("probe: %w", err))
		return
	}
	if e.proofErr != err.Error() {
		e.proofErr = err.Error()
		e.cfg.Log.Error("the kernel takes no write, not even one that changes nothing", "err", fmt.Errorf("probe: %w", err))
	}
}
