package engine

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// audits holds the schedule of comparisons with the kernel, and their results.
type audits struct {
	planned  int64     // the period from which next was computed
	next     time.Time // when all is compared
	drifted  bool      // another program may have changed something
	after    time.Time // not before this is looked at
	trouble  trouble
	by       string // who changed what, of an audit that did not end yet: see plane.Witness
	repaired tally
	// restoring: an audit found that another program removed the plane's state, and no Reset has
	// restored it yet
	restoring bool
}

// driftGap is the least time between two audits that notifications request: a program that undoes
// our work at once must not keep a processor busy.
const driftGap = 100 * time.Millisecond

// audit lets the plane compare the kernel with the applied state, and repair it.
func (e *Engine) audit(ctx context.Context, full bool) {
	a := &e.audits
	w := &Write{Verb: "audit"}
	err := e.call(w, func() (err error) {
		w.Changes, err = e.cfg.Plane.Audit(ctx, full)
		return err
	})
	now := time.Now()
	a.by = cmp.Or(plane.ChangedBy(e.cfg.Plane), a.by)
	e.repaired(w, now)
	if full {
		a.next = now.Add(e.auditPeriod())
	}
	switch {
	case err == nil:
		a.trouble, a.by = trouble{}, ""
		a.drifted, a.after = false, now.Add(driftGap)
	case e.resets.due:
		a.restoring = a.restoring || !isPanic(err)
	default:
		a.trouble.fail(now)
		a.after = a.trouble.until
		if full {
			a.next = a.trouble.until
		}
		if a.trouble.logged.News(err) {
			e.cfg.Log.Error("Audit failed, retrying", "full", full, "err", err)
			e.reportFailed(cluster.Name{}, lb.Key{}, "audit", err)
		}
	}
}

// repaired logs the repairs of an audit.
func (e *Engine) repaired(w *Write, now time.Time) {
	a := &e.audits
	if n := a.repaired.add(w.Changes, now); n > 0 {
		args := []any{"objects", n}
		if a.by != "" {
			args = append(args, "by", a.by)
		}
		e.cfg.Log.Warn("Repaired objects that other programs had changed", args...)
	}
	if w.Changes > 0 {
		e.reportRepaired(w, now)
	}
}

// restored counts and reports the repairs of a Reset that an audit requested. Such an audit found
// that another program removed all frontends, or so many that single objects were not worth a
// search. A table without frontends counts as one object.
func (e *Engine) restored(took time.Duration) {
	if !e.audits.restoring {
		return
	}
	e.audits.restoring = false
	rows := max(1, e.table.Len())
	e.stats.update(func(s *Stats) { s.Repaired += uint64(rows) })
	w := Write{Verb: "audit", Changes: rows, Took: took}
	e.repaired(&w, time.Now())
	e.audits.by = ""
	e.written(w)
}

// auditPeriod returns the period of full audits, plus or minus 10 %, so that the nodes of a cluster
// do not audit together.
func (e *Engine) auditPeriod() time.Duration {
	return time.Duration(float64(e.auditEvery.Load()) * (0.9 + 0.2*rand.Float64()))
}
