package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// reset has the plane hold exactly the table: once at the start, and where the plane lost its state. If it
// fails it is tried again with backoff; until then the kernel serves what it has.
func (e *Engine) reset(ctx context.Context) {
	e.drifted = false // what drifted before is mended by the Reset
	start := time.Now()
	var res plane.ResetResult
	err := e.guard("plane, reset", func() (err error) {
		res, err = e.cfg.Plane.Reset(ctx, e.table)
		return err
	})
	rows := e.table.Len() - len(res.Later)
	e.stats.update(func(s *Stats) {
		s.Resets++
		if e.resetErr != "" {
			s.Retries++
		}
	})
	e.called(Write{Verb: "reset", Changes: rows, Later: len(res.Later), Took: time.Since(start), Err: err}, true)
	if err != nil {
		e.resetWait.fail(time.Now())
		if e.resetErr != err.Error() {
			e.resetErr = err.Error()
			e.cfg.Log.Error("reset failed, the rules in the kernel stay", "rows", e.table.Len(),
				"err", fmt.Errorf("reset to %d rows: %w", e.table.Len(), err))
		}
		return
	}
	end := time.Now()
	if e.losses == 0 { // or there was no line about why, either
		e.cfg.Log.Info("reset", "rows", rows, "took", end.Sub(start))
	}
	known := e.knownOf(res.Later)
	changes := e.afterReset(res)
	e.nextAudit = time.Now().Add(e.auditPeriod())
	again := e.begun
	e.begun, e.lost, e.nodeStale = true, false, false
	e.resetWait, e.resetErr, e.nodeErr, e.applyErr = pause{}, "", "", ""
	if again { // who removes everything again and again does not have us write everything all the time
		e.resetWait.until = end.Add(max(end.Sub(start), driftGap))
	}
	debts := e.pending.debts
	e.pending, e.searches = newPending(), nil
	e.noLocal = noLocalIn(e.table)
	e.credit, e.blamed = credit{}, 0
	e.proof, e.proofErr = given, ""
	e.stats.allWork()
	e.leave(res.Later, known)
	e.pending.afterReset(debts, e.table)
	e.stats.update(func(s *Stats) { s.Changes += uint64(len(changes)) })
	e.upToDate()
	e.programmed()
	e.tellNode()
	e.observe(changes)
	e.restored(end.Sub(start))
}

// leave queues rows that a Reset has left for later. Whether the plane holds them is in doubt if it did before: it offers
// them even where nothing else is wanted by then.
func (e *Engine) leave(later []lb.Key, known []*lb.Frontend) {
	if len(later) > 0 {
		e.pieces, e.load = true, load{rows: len(later), since: time.Now()}
	}
	for i, k := range later {
		w := &wish{old: known[i], doubt: known[i] != nil, first: true}
		e.pending.wishes[k] = w
		e.pending.first++
		if w.doubt {
			e.pending.doubtful++
		}
		e.noLocal.set(k, nil)
		e.pending.queue.later(k, e.table.Get(k).Service)
	}
	e.loaded()
}

// load is what a Reset left for later.
type load struct {
	rows  int
	since time.Time
}

// loaded looks whether all is written that a Reset left for later.
func (e *Engine) loaded() {
	if e.lost || e.pending.first > 0 {
		return
	}
	e.whole = true
	if e.load.rows > 0 {
		w := Write{Verb: "load", Changes: e.load.rows, Took: time.Since(e.load.since)}
		e.cfg.Log.Info("wrote what the reset left for later", "rows", w.Changes, "took", w.Took)
		e.load = load{}
		if e.cfg.Written != nil {
			e.cfg.Written(w)
		}
		if e.pending.queue.len() == 0 { // else a write will tell
			e.inbox.synced()
		}
	}
}

// knownOf returns what the observers know of rows that a Reset did not write: they are not told of it.
func (e *Engine) knownOf(keys []lb.Key) []*lb.Frontend {
	known := make([]*lb.Frontend, len(keys))
	for i, k := range keys {
		if w := e.pending.wishes[k]; w != nil {
			known[i] = w.old
		} else if e.begun {
			known[i] = e.table.Get(k)
		}
	}
	return known
}

// afterReset returns what the observers do not know yet: all rows after the first Reset, with the keys that it
// removed, and later those that were pending; but none that is left for later.
func (e *Engine) afterReset(res plane.ResetResult) (changes []lb.Change) {
	if len(res.Later) > 0 {
		without := make(map[lb.Key]struct{}, len(res.Later))
		for _, k := range res.Later {
			without[k] = struct{}{}
		}
		defer func() {
			changes = slices.DeleteFunc(changes, func(c lb.Change) bool { _, is := without[c.Key]; return is })
		}()
	}
	if !e.begun {
		if len(e.cfg.Observers) == 0 {
			return nil
		}
		changes = make([]lb.Change, 0, e.table.Len())
		for f := range e.table.All() {
			changes = append(changes, lb.Change{Key: f.Key, New: f})
		}
		for _, k := range res.Dropped {
			changes = append(changes, lb.Change{Key: k})
		}
		return changes
	}
	for k, w := range e.pending.wishes {
		if want := e.table.Get(k); !w.old.Equal(want) {
			changes = append(changes, lb.Change{Key: k, Old: w.old, New: want})
		}
	}
	return changes
}

// setNode tells the plane of the node without a Reset.
func (e *Engine) setNode(ctx context.Context) {
	start := time.Now()
	err := e.guard("plane, set node", func() error { return e.cfg.Plane.SetNode(ctx, e.table.Node) })
	e.stats.update(func(s *Stats) {
		s.SetNodes++
		if e.nodeErr != "" {
			s.Retries++
		}
	})
	e.called(Write{Verb: "setnode", Took: time.Since(start), Err: err}, true)
	if err == nil {
		e.nodeStale, e.nodeWait, e.nodeErr = false, pause{}, ""
		e.tellNode()
		return
	}
	if isPanic(err) || errors.Is(err, plane.ErrStateLost) {
		e.lose(fmt.Errorf("set node: %w", err))
		return
	}
	e.nodeWait.fail(time.Now())
	if e.nodeErr != err.Error() {
		e.nodeErr = err.Error()
		e.cfg.Log.Error("node not written, retrying", "err", fmt.Errorf("set node: %w", err))
	}
}
