package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"kube-proxy/plane"
)

// driftGap is the least time from one audit to the next that a notification asks for: somebody who undoes
// our work at once must not keep a processor busy.
const driftGap = 100 * time.Millisecond

// audit has the plane compare the kernel with what was applied, and mend it.
func (e *Engine) audit(ctx context.Context, full bool) {
	start := time.Now()
	mended := 0
	err := e.guard("plane, audit", func() (err error) {
		mended, err = e.cfg.Plane.Audit(ctx, full)
		return err
	})
	now := time.Now()
	e.stats.update(func(s *Stats) {
		s.Audits++
		s.Mended += uint64(mended)
		if err != nil {
			s.Failures++
			s.LastError, s.LastFailure = err.Error(), now
		}
	})
	if e.cfg.Written != nil {
		e.cfg.Written(Write{Verb: "audit", Changes: mended, Took: now.Sub(start), Err: err})
	}
	// Mending does not count as a write for MinSyncPeriod: who undoes our work all the time would keep new wishes
	// waiting for ever.
	e.tellMended(now, mended)
	switch {
	case err == nil:
		e.auditWait, e.auditErr = pause{}, ""
		if full {
			e.nextAudit = now.Add(e.auditPeriod())
		}
		e.drifted, e.driftAfter = false, now.Add(driftGap)
	case isPanic(err) || errors.Is(err, plane.ErrStateLost):
		if full {
			e.nextAudit = now.Add(e.auditPeriod())
		}
		e.taken = e.taken || !isPanic(err)
		e.lose(fmt.Errorf("audit: %w", err))
	default:
		e.auditWait.fail(now)
		if full {
			e.nextAudit = e.auditWait.until
		}
		e.driftAfter = e.auditWait.until
		if e.auditErr != err.Error() {
			e.auditErr = err.Error()
			e.cfg.Log.Error("audit failed, retrying", "full", full, "err", fmt.Errorf("audit: %w", err))
		}
	}
}

// restored counts and tells what a Reset has mended that an audit asked for: it found that others had removed all rows,
// or so much that single objects were not worth to look for. A table without rows is one object.
func (e *Engine) restored(took time.Duration) {
	if !e.taken {
		return
	}
	e.taken = false
	rows := max(1, e.table.Len())
	e.stats.update(func(s *Stats) { s.Mended += uint64(rows) })
	if e.cfg.Written != nil {
		e.cfg.Written(Write{Verb: "audit", Changes: rows, Took: took})
	}
}

// driftRemind is the least time from one log line about what others had changed to the next: who undoes our work all
// the time must not fill the log.
const driftRemind = time.Minute

// tellMended tells of objects that were mended since it was last told of some.
func (e *Engine) tellMended(now time.Time, mended int) {
	e.mended += mended
	if mended == 0 || now.Before(e.sayMended) {
		return
	}
	e.cfg.Log.Warn("others had changed our objects, mended", "objects", e.mended)
	e.mended, e.sayMended = 0, now.Add(driftRemind)
}

// auditPeriod is the period of full audits, give or take a tenth, so that the nodes of a cluster do not audit
// together.
func (e *Engine) auditPeriod() time.Duration {
	return time.Duration(float64(e.auditEvery.Load()) * (0.9 + 0.2*rand.Float64()))
}
