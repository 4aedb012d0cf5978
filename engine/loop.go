package engine

import (
	"context"
	"time"
)

// grace is how long a write in hand may go on after Run was told to stop.
const grace = 5 * time.Second

// Run does the engine's work until ctx is cancelled. Then the write in hand is finished, nothing more is
// started, the rules stay, and Run returns nil. It must be called once.
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
		e.tellHeld()
		e.publish()
		if !worked {
			e.wait(ctx, timer, next)
		}
	}
	return nil
}

// wait returns when something happened, or when next has come; the zero next never comes.
func (e *Engine) wait(ctx context.Context, timer *time.Timer, next time.Time) {
	busy := e.lost || e.nodeStale || e.facts || e.drifted
	told := !busy && e.pending.queue.len() == 0 && len(e.searches) == 0 && e.proof == given
	e.inbox.rest(busy || len(e.pending.wishes) > 0 || len(e.unresolved.entries) > 0, told)
	var tick <-chan time.Time
	if !next.IsZero() {
		timer.Reset(time.Until(next))
		tick = timer.C
	}
	var drift <-chan struct{}
	if !e.drifted {
		drift = e.cfg.Plane.Drift()
	}
	select {
	case <-ctx.Done():
	case <-e.inbox.wake:
	case <-tick:
	case <-drift:
		e.drifted = true
	}
}

// agenda finds the job that is due, and otherwise when the next one will be.
type agenda struct {
	now  time.Time
	next time.Time
}

// due reports whether a job planned for t may run; if not, it is remembered.
func (a *agenda) due(t time.Time) bool {
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

// step does the one job that is due and matters most. If there is none, it returns false and when to look
// again.
func (e *Engine) step(ctx context.Context) (next time.Time, worked bool) {
	a := agenda{now: time.Now()}
	e.planResolve(&a)
	if !e.synced || !e.nodeKnown {
		return a.next, false
	}
	if e.lost {
		if a.due(latest(e.resetWait.until, e.writeAfter())) {
			e.reset(ctx)
			return time.Time{}, true
		}
		return a.next, false
	}
	// Fresh wishes go first, but retries and audits get their turn between two writes.
	first, second := e.stepFresh, e.stepRest
	if e.fair {
		first, second = second, first
	}
	worked = first(ctx, &a) || second(ctx, &a)
	return a.next, worked
}

// writeAfter is when the next write may start (DP-60).
func (e *Engine) writeAfter() time.Time {
	if d := time.Duration(e.minPeriod.Load()); d > 0 && !e.lastEnd.IsZero() {
		return e.lastEnd.Add(d)
	}
	return time.Time{}
}

func (e *Engine) stepFresh(ctx context.Context, a *agenda) bool {
	if e.pending.queue.len() == 0 {
		return false
	}
	start := e.credit.until()
	if !e.pieces { // MinSyncPeriod is the time between two writes, not between the pieces of one
		start = latest(start, e.writeAfter())
	}
	if !a.due(start) {
		return false
	}
	e.fair = true
	e.writeFresh(ctx)
	return true
}

func (e *Engine) stepRest(ctx context.Context, a *agenda) bool {
	e.fair = false
	if e.nodeStale && a.due(latest(e.nodeWait.until, e.writeAfter())) {
		e.setNode(ctx)
		return true
	}
	if len(e.searches) > 0 && a.due(e.credit.until()) {
		e.searchOn(ctx)
		return true
	}
	if e.probeDue() && a.due(e.credit.until()) { // MinSyncPeriod does not hold up what belongs to a write that was made
		e.probe(ctx)
		return true
	}
	if t, ok := e.pending.waits.next(); ok && len(e.searches) == 0 &&
		a.due(latest(latest(t, e.credit.until()), e.writeAfter())) {
		e.retry(a.now)
		return true
	}
	if e.drifted && a.due(e.driftAfter) {
		e.audit(ctx, false)
		return true
	}
	if every := e.auditEvery.Load(); every != e.auditPlanned {
		e.auditPlanned, e.nextAudit = every, a.now.Add(e.auditPeriod())
	}
	if e.auditPlanned > 0 && a.due(e.nextAudit) {
		e.audit(ctx, true)
		return true
	}
	return false
}
