package engine

import (
	"context"
	"time"
)

// grace is how long a current write may continue after the context of Run ends.
const grace = 5 * time.Second

// Run does the engine's work until ctx is cancelled. Then it finishes the current write, starts no
// other, leaves the rules in place, and returns nil. It must be called once.
func (e *Engine) Run(ctx context.Context) error {
	writes, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
			cancel()
		case <-writes.Done():
		}
	})
	defer stop()

	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		e.absorb()
		next, worked := e.step(writes)
		e.reportWithheld()
		e.publish()
		if !worked {
			e.wait(ctx, timer, next)
		}
	}
	return nil
}

// wait returns on an event or at the time next; a zero next never comes.
func (e *Engine) wait(ctx context.Context, timer *time.Timer, next time.Time) {
	more := e.resolver.waiting()
	if more {
		e.inbox.ring()
	} else if e.pending.queue.len() == 0 {
		e.writer.inPiece = false
	}
	busy := e.resets.due || e.node.stale || e.node.changed || e.audits.drifted
	reported := !busy && e.pending.queue.len() == 0 && len(e.writer.searches) == 0 && e.writer.kernel == healthy
	e.inbox.rest(busy || len(e.pending.byKey) > 0 || len(e.resolver.unresolved.entries) > 0, reported, more)
	var tick <-chan time.Time
	if !next.IsZero() {
		timer.Reset(time.Until(next))
		tick = timer.C
	}
	var drift <-chan struct{}
	if !e.audits.drifted {
		drift = e.cfg.Plane.Drift()
	}
	select {
	case <-ctx.Done():
	case <-e.inbox.wake:
	case <-tick:
	case <-drift:
		e.audits.drifted = true
	}
}

// agenda finds the action that is due, or when the next one will be.
type agenda struct {
	now  time.Time
	next time.Time
}

// due reports whether an action may run; it may not run before any of the given times. If it may
// not, due remembers when it may.
func (a *agenda) due(after ...time.Time) bool {
	var t time.Time
	for _, x := range after {
		t = latest(t, x)
	}
	if !t.After(a.now) {
		return true
	}
	if a.next.IsZero() || t.Before(a.next) {
		a.next = t
	}
	return false
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// step runs the most important action that is due. Without one, it returns false and the time of
// the next.
func (e *Engine) step(ctx context.Context) (next time.Time, worked bool) {
	a := agenda{now: time.Now()}
	e.planResolve(&a)
	if !e.resolver.synced || !e.node.known {
		return a.next, false
	}
	if e.resets.due {
		worked = a.due(e.resets.trouble.until, e.writeAfter())
		if worked {
			e.reset(ctx)
		}
		return a.next, worked
	}
	// New changes go first, but retries and audits run between two writes.
	first, second := e.stepFresh, e.stepRest
	if e.writer.fresh {
		first, second = second, first
	}
	worked = first(ctx, &a) || second(ctx, &a)
	return a.next, worked
}

// writeAfter returns when the next write may start (DP-60).
func (e *Engine) writeAfter() time.Time {
	if d := time.Duration(e.minPeriod.Load()); d > 0 && !e.writer.end.IsZero() {
		return e.writer.end.Add(d)
	}
	return time.Time{}
}

func (e *Engine) stepFresh(ctx context.Context, a *agenda) bool {
	if e.pending.queue.len() == 0 {
		return false
	}
	var after time.Time
	if !e.writer.inPiece { // MinSyncPeriod is the time between two writes, not between the pieces of one
		after = e.writeAfter()
	}
	if !a.due(e.writer.credit.until(), after) {
		return false
	}
	e.writer.fresh = true
	e.writeFresh(ctx)
	return true
}

func (e *Engine) stepRest(ctx context.Context, a *agenda) bool {
	w := &e.writer
	w.fresh = false
	retryAt, waits := e.pending.waits.next()
	if every := e.auditEvery.Load(); every != e.audits.planned {
		e.audits.planned, e.audits.next = every, a.now.Add(e.auditPeriod())
	}
	switch {
	case e.node.stale && a.due(e.node.trouble.until, e.writeAfter()):
		e.setNode(ctx)
	case len(w.searches) > 0 && a.due(w.credit.until()):
		e.searchOn(ctx)
	case e.mayProbe() && a.due(w.credit.until()): // MinSyncPeriod does not delay the rest of a write
		e.probe(ctx)
	case waits && len(w.searches) == 0 && a.due(retryAt, w.credit.until(), e.writeAfter()):
		e.retry(a.now)
	case e.audits.drifted && a.due(e.audits.after):
		e.audit(ctx, false)
	case e.audits.planned > 0 && a.due(e.audits.next):
		e.audit(ctx, true)
	default:
		return false
	}
	return true
}
