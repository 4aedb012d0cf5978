package engine

import (
	"context"
	"slices"
	"time"

	"kube-proxy/internal/bisect"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// writer is how writes of changes go.
type writer struct {
	end     time.Time // of the last write
	fresh   bool      // the last action wrote new changes
	inPiece bool      // and it was a piece; more will follow
	awaits  int       // unresolved Services when its first piece was written that still are unresolved

	kernel kernel
	probe  trouble
	credit credit // for writes that fail

	searches   []*search
	lastSearch uint64
	together   trouble // of many frontends, after a search gave up
}

// afterReset forgets all that was wrong.
func (w *writer) afterReset() {
	*w = writer{end: w.end, fresh: w.fresh, inPiece: w.inPiece, lastSearch: w.lastSearch}
}

// writeFresh offers the next piece of the queue in one write; nearly always that is the whole
// queue. If the write fails, a search for the faulty frontend starts.
func (e *Engine) writeFresh(ctx context.Context) {
	w := &e.writer
	if !w.inPiece {
		w.awaits = e.resolver.dirty.len()
	}
	keys := e.pending.take(e.piece(), plane.Weights(e.cfg.Plane), e.table)
	w.inPiece = e.pending.queue.len() > 0 || w.awaits > 0
	changes, err := e.apply(ctx, keys)
	switch {
	case err == nil || e.resets.due:
	case len(changes) == 1:
		e.rowFailed(changes[0], err)
	default:
		e.startSearch(bisect.Halves(keysOf(changes)), 1)
	}
}

// piece is the weight limit of one write.
func (e *Engine) piece() int { return max(1, e.cfg.Plane.MaxBatchWeight()) }

// apply offers the pending changes of the keys to the plane. It returns the offered changes.
func (e *Engine) apply(ctx context.Context, keys []lb.Key) ([]lb.Change, error) {
	changes, again := e.pending.offer(keys, e.table)
	if len(changes) == 0 {
		if e.writer.kernel == healthy {
			e.upToDate()
		}
		e.loaded()
		e.programmed()
		return nil, nil
	}
	w := &Write{Verb: "apply", Changes: len(changes), again: again}
	var later []lb.Key
	err := e.call(w, func() error {
		res, err := e.cfg.Plane.Apply(ctx, changes)
		w.wrote, later = res.Written || e.writer.kernel == healthy, res.Later
		return err
	})
	if err != nil {
		e.writer.kernel.failed()
		e.writer.credit.spend(time.Now())
		e.pending.failed(changes)
		return changes, err
	}
	e.accepted(e.goOnLater(changes, later), w.wrote)
	return changes, nil
}

// goOnLater queues changes again that the plane has written in part, and returns the others.
func (e *Engine) goOnLater(changes []lb.Change, later []lb.Key) []lb.Change {
	if len(later) == 0 {
		return changes
	}
	e.writer.inPiece = true
	for _, k := range later {
		e.pending.goOn(k, e.table)
	}
	return slices.DeleteFunc(slices.Clone(changes), func(c lb.Change) bool { return slices.Contains(later, c.Key) })
}

// accepted records that the plane holds the new frontends, and reports them to the observers. shows
// means that the kernel has shown by it that it takes writes.
func (e *Engine) accepted(changes []lb.Change, shows bool) {
	var first *lb.Change
	rows := 0
	for i, c := range changes {
		if e.pending.byKey[c.Key].logged.Any() {
			e.stats.works(c.Key)
			rows++
			if first == nil {
				first = &changes[i]
			}
		}
		e.pending.forget(c.Key)
		e.noLocal.set(c.Key, c.New)
	}
	if first != nil && e.failures.Allow(lb.NamespaceOf(serviceOf(*first))) {
		e.cfg.Log.Info("Wrote frontends after failures", "frontends", rows, "first", first.Key.String(), "service",
			serviceOf(*first))
	}
	e.loaded()
	e.programmed()
	if e.pending.doubtful == 0 {
		e.writer.together = trouble{}
	}
	if shows {
		e.writer.credit = credit{}
		e.writer.kernel, e.writer.probe = healthy, trouble{}
		e.upToDate()
	}
	e.observe(changes)
}

// upToDate records that the plane has accepted the offered changes.
func (e *Engine) upToDate() {
	all := e.pending.queue.len() == 0 && !e.resolver.waiting()
	e.inbox.accepted(all, all)
}

// rowFailed records that the change failed alone; it is retried after its own backoff.
func (e *Engine) rowFailed(c lb.Change, err error) {
	p := e.pending.byKey[c.Key]
	p.alone, p.search = true, 0
	e.pending.tried(p)
	e.loaded()
	e.writer.kernel = probeDue
	e.pending.waits.fail(c.Key, time.Now())
	e.stats.fails(c.Key, serviceOf(c), err)
	if !p.logged.News(err) {
		return
	}
	e.reportFailed(nameOf(serviceOf(c)), c.Key, "write", err)
	if e.failures.Allow(lb.NamespaceOf(serviceOf(c))) {
		e.cfg.Log.Error("Failed to write a frontend, retrying it alone", "key", c.Key.String(), "service",
			serviceOf(c), "err", err)
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
