package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kube-proxy/internal/bisect"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// writeFresh offers the next piece of what is queued in one write; nearly always that is all of it. If it fails, the
// culprit is searched for among them.
func (e *Engine) writeFresh(ctx context.Context) {
	keys := e.pending.take(e.piece(), e.table)
	e.pieces = e.pending.queue.len() > 0
	changes, err := e.apply(ctx, keys)
	if err == nil || e.lost {
		return
	}
	if len(changes) == 1 {
		e.blame(changes[0], err)
		return
	}
	e.startSearch(bisect.Halves(keysOf(changes)), 1)
}

// piece is how much may be written at once.
func (e *Engine) piece() int { return max(1, e.cfg.Plane.Pace()) }

// upToDate takes note that the plane has taken what was offered.
func (e *Engine) upToDate() {
	if e.pending.queue.len() == 0 {
		e.inbox.written()
	} else {
		e.inbox.progressed()
	}
}

// apply offers the keys' wishes to the plane. It returns what was offered.
func (e *Engine) apply(ctx context.Context, keys []lb.Key) ([]lb.Change, error) {
	again := e.pending.doubtful
	changes := e.pending.changes(keys, e.table)
	if len(changes) == 0 {
		if e.proof == given {
			e.upToDate()
		}
		e.loaded()
		e.programmed()
		return nil, nil
	}
	start := time.Now()
	written := false
	err := e.guard("plane, apply", func() (err error) {
		written, err = e.cfg.Plane.Apply(ctx, changes)
		return err
	})
	e.stats.update(func(s *Stats) {
		s.Applies++
		s.Offered += uint64(len(changes))
		if again > 0 && e.pending.anyDoubt(changes) {
			s.Retries++
		}
		if err == nil {
			s.Changes += uint64(len(changes))
		}
	})
	shows := e.proof == given || written
	e.called(Write{Verb: "apply", Changes: len(changes), Took: time.Since(start), Err: err}, shows)
	if err != nil {
		e.proof.failed()
		e.credit.spend(time.Now())
		e.pending.doubt(changes)
		if isPanic(err) || errors.Is(err, plane.ErrStateLost) {
			e.lose(fmt.Errorf("apply %d changes: %w", len(changes), err))
		}
		return changes, err
	}
	e.accepted(changes, shows)
	e.cfg.Log.Debug("applied", "changes", len(changes), "took", time.Since(start))
	return changes, nil
}

// accepted takes note that the plane holds the new rows, and tells the observers. shows says whether the kernel has shown
// by it that it takes writes.
func (e *Engine) accepted(changes []lb.Change, shows bool) {
	var failed []lb.Change
	for _, c := range changes {
		if said := e.pending.wishes[c.Key].err; said != "" {
			e.stats.works(c.Key)
			failed = append(failed, c)
		}
		e.pending.forget(c.Key)
		e.noLocal.set(c.Key, c.New)
	}
	if len(failed) > 0 {
		e.cfg.Log.Info("rows written after failures", "rows", len(failed), "first", failed[0].Key.String(), "service", serviceOf(failed[0]))
	}
	e.loaded()
	e.programmed()
	if e.pending.doubtful == 0 {
		e.applyErr, e.blamed = "", 0
	}
	if shows {
		e.credit = credit{}
		e.proof, e.proofErr = given, ""
		e.upToDate()
	}
	e.observe(changes)
}

// observe tells the observers of accepted changes, as far as they may know of them.
func (e *Engine) observe(changes []lb.Change) { e.tell(e.hold(changes)) }

func (e *Engine) tell(changes []lb.Change) {
	if len(changes) == 0 {
		return
	}
	for _, o := range e.cfg.Observers {
		e.toObserver(func() { o.Applied(changes) })
	}
}

// tellNode tells the observers of the node that is in force.
func (e *Engine) tellNode() {
	for _, o := range e.cfg.Observers {
		if o, ok := o.(NodeObserver); ok {
			e.toObserver(func() { o.NodeApplied(e.table.Node) })
		}
	}
}

func (e *Engine) toObserver(tell func()) {
	err := e.guard("observer", func() error {
		tell()
		return nil
	})
	if err != nil && e.said.first("observer "+err.Error()) {
		e.cfg.Log.Error("observer failed", "err", err)
	}
}

// maxBlamed is how many failing rows are logged each until all are well again.
const maxBlamed = 50

// blame says that the change failed alone; it will be tried again after its own backoff.
func (e *Engine) blame(c lb.Change, err error) {
	w := e.pending.wishes[c.Key]
	w.alone, w.group = true, 0
	e.pending.tried(w)
	e.loaded()
	e.proof = wanted
	e.pending.waits.fail(c.Key, time.Now())
	e.stats.fails(c.Key, serviceOf(c), err)
	if w.err == err.Error() {
		return
	}
	w.err = err.Error()
	e.blamed++
	switch {
	case e.blamed <= maxBlamed:
		e.cfg.Log.Error("row not written, retrying it alone", "key", c.Key.String(), "service", serviceOf(c), "err", err)
	case e.blamed == maxBlamed+1:
		e.cfg.Log.Error("more rows are not written, not logging each", "err", err)
	}
}

// lose has the plane reset before anything else is written. Of many losses there is a line once in a while.
func (e *Engine) lose(err error) {
	e.lost, e.searches = true, nil
	e.losses++
	if now := time.Now(); !now.Before(e.sayLost) {
		e.cfg.Log.Warn("kernel state unknown, writing everything anew", "times", e.losses, "err", err)
		e.losses, e.sayLost = 0, now.Add(driftRemind)
	}
}

func serviceOf(c lb.Change) string {
	switch {
	case c.New != nil:
		return c.New.Service
	case c.Old != nil:
		return c.Old.Service
	}
	return ""
}

func keysOf(changes []lb.Change) []lb.Key {
	keys := make([]lb.Key, len(changes))
	for i, c := range changes {
		keys[i] = c.Key
	}
	return keys
}
