package engine

import (
	"context"
	"slices"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// resets is the state of the table in the plane; doc.go has the transitions.
type resets struct {
	due     bool // the plane needs a Reset before anything else
	done    bool // one has succeeded
	whole   bool // and the postponed frontends were tried, too
	load    load // the frontends that are being written
	trouble trouble
	losses  tally  // of the plane's state
	why     string // it is due, for Config.Changes
}

// load holds the frontends that a Reset postponed.
type load struct {
	rows  int
	since time.Time
}

// lose makes the engine reset the plane before any other write. Many losses cause one log line at
// intervals.
func (e *Engine) lose(w *Write, now time.Time) {
	e.resets.due, e.writer.searches = true, nil
	e.resets.why = w.Verb + ": " + w.Err.Error()
	if n := e.resets.losses.add(1, now); n > 0 {
		e.cfg.Log.Warn("Kernel state unknown, rewriting everything", "times", n, "verb", w.Verb, "err", w.Err)
	}
}

// reset makes the plane hold exactly the table: once at the start, and after the plane lost its
// state. A failed Reset is retried with backoff; until then the kernel serves its old state.
func (e *Engine) reset(ctx context.Context) {
	r := &e.resets
	e.audits.drifted = false // the Reset repairs earlier drift
	var res plane.ResetResult
	w := &Write{Verb: "reset", Changes: e.table.Len(), wrote: true, again: r.trouble.logged.Any()}
	err := e.call(w, func() (err error) {
		res, err = e.cfg.Plane.Reset(ctx, e.table)
		w.Changes, w.Later = w.Changes-len(res.Later), len(res.Later)
		return err
	})
	end := e.writer.end
	if err != nil {
		r.trouble.fail(end)
		if r.trouble.logged.News(err) {
			e.cfg.Log.Error("Failed to rewrite everything, keeping the rules", "frontends", e.table.Len(), "err", err)
			e.reportFailed(cluster.Name{}, lb.Key{}, "reset", err)
		}
		return
	}
	if r.losses.n == 0 { // or there was no line about why, either
		e.cfg.Log.Info("Compared and wrote all frontends", "frontends", w.Changes, "took", w.Took)
	}
	known := e.knownOf(res.Later)
	changes := e.unreported(res)
	e.audits.next = end.Add(e.auditPeriod())
	r.trouble = trouble{}
	if r.done { // a program that removes everything repeatedly does not make us write everything all the time
		r.trouble.until = end.Add(max(w.Took, driftGap))
	}
	r.due, r.done = false, true
	e.node.stale, e.node.trouble = false, trouble{}
	e.writer.afterReset()
	e.stats.allWork()
	before := e.pending.programming
	e.pending, e.noLocal = newPending(), noLocalIn(e.table)
	e.leave(res.Later, known)
	e.pending.afterReset(before, e.table)
	e.reportReset(w)
	e.stats.update(func(s *Stats) { s.Changes += uint64(len(changes)) })
	e.upToDate()
	e.programmed()
	e.reportNode()
	e.observe(changes)
	e.restored(w.Took)
}

// leave queues the frontends that a Reset postponed. If the plane held one of that key before, the
// key is in doubt: the engine offers it even if the desired frontend is the old one by then.
func (e *Engine) leave(later []lb.Key, known []*lb.Frontend) {
	if len(later) > 0 {
		e.writer.inPiece, e.resets.load = true, load{rows: len(later), since: time.Now()}
	}
	for i, k := range later {
		e.pending.leave(k, known[i], e.table.Get(k).Service)
		e.noLocal.set(k, nil)
	}
	e.loaded()
}

// loaded checks whether all postponed frontends were tried.
func (e *Engine) loaded() {
	r := &e.resets
	if r.due || e.pending.left > 0 {
		return
	}
	r.whole = true
	if r.load.rows == 0 {
		return
	}
	w := Write{Verb: "load", Changes: r.load.rows, Took: time.Since(r.load.since)}
	r.load = load{}
	e.reportLoaded(w)
	e.cfg.Log.Info("Wrote the frontends that the reset had postponed", "frontends", w.Changes, "took", w.Took)
	e.written(w)
	if e.pending.queue.len() == 0 { // else a write will report it
		e.inbox.accepted(false, true)
	}
}

// knownOf returns the frontends known to the observers that a Reset did not write: it reports none
// of them.
func (e *Engine) knownOf(keys []lb.Key) []*lb.Frontend {
	known := make([]*lb.Frontend, len(keys))
	for i, k := range keys {
		if p := e.pending.byKey[k]; p != nil {
			known[i] = p.old
		} else if e.resets.done {
			known[i] = e.table.Get(k)
		}
	}
	return known
}

// unreported returns the changes that the observers do not have after a Reset: all frontends after
// the first one, with the keys that it removed, and later the pending ones; but no postponed one.
func (e *Engine) unreported(res plane.ResetResult) (changes []lb.Change) {
	switch {
	case e.resets.done:
		for k, p := range e.pending.byKey {
			if want := e.table.Get(k); !p.old.Equal(want) {
				changes = append(changes, lb.Change{Key: k, Old: p.old, New: want})
			}
		}
	case len(e.cfg.Observers) > 0:
		changes = make([]lb.Change, 0, e.table.Len()+len(res.Dropped))
		for f := range e.table.All() {
			changes = append(changes, lb.Change{Key: f.Key, New: f})
		}
		for _, k := range res.Dropped {
			changes = append(changes, lb.Change{Key: k})
		}
	}
	if len(res.Later) == 0 {
		return changes
	}
	later := make(map[lb.Key]struct{}, len(res.Later))
	for _, k := range res.Later {
		later[k] = struct{}{}
	}
	return slices.DeleteFunc(changes, func(c lb.Change) bool { _, is := later[c.Key]; return is })
}
