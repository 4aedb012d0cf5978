package engine

import (
	"strings"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/lb"
)

// Entries for Config.Changes. They are written where the log or a metric is written as well.

// manyTogether is the number of Services from which the changes of a Reset are only counted: a
// whole cluster at the start is one entry.
const manyTogether = 100

// Names of the verbs in an entry.
var (
	serviceVerbs = [...]changes.What{cluster.Changed: changes.ServiceChanged, cluster.Created: changes.ServiceCreated,
		cluster.Deleted: changes.ServiceDeleted}
	sliceVerbs = [...]changes.What{cluster.Changed: changes.SliceChanged, cluster.Created: changes.SliceCreated,
		cluster.Deleted: changes.SliceDeleted}
)

// oldest returns the smaller of two times, where 0 means unknown.
func oldest(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// fails counts a failed write with a part of u in it, once.
func (u *unprogrammed) fails(write uint64) {
	if u.failed != write {
		u.failed = write
		u.failures++
	}
}

// reportSettled reports changes that came into force.
func (e *Engine) reportSettled() {
	p := &e.pending.programming
	if len(p.settled) == 0 {
		return
	}
	if e.cfg.Changes != nil {
		now := time.Now().UnixNano()
		for _, u := range p.settled {
			kind := changes.Service
			if u.name == (cluster.Name{}) {
				kind = changes.Node
			}
			e.cfg.Changes.Add(changes.Entry{
				Kind: kind, Family: e.cfg.Family, What: u.what, Service: u.name,
				Services: uint32(u.changes.Services), Slices: uint32(u.changes.Slices),
				API: u.api, Learned: u.learned, Done: now, Frontends: u.rows, Failures: u.failures,
				Elsewhere: u.elsewhere && u.rows == 0 && u.failures == 0 && kind == changes.Service,
			})
		}
	}
	if cap(p.settled) > manyTogether {
		p.settled = nil // a map that was large once keeps its size
		return
	}
	clear(p.settled)
	p.settled = p.settled[:0]
}

// reportReset reports a successful Reset, with the changes that came into force with it and are not
// reported one by one.
func (e *Engine) reportReset(w *Write) {
	end := e.writer.end
	e.reportTogether(changes.Entry{Kind: changes.Reset, Frontends: uint32(w.Changes), Why: e.resets.why,
		Learned: end.Add(-w.Took).UnixNano(), Done: end.UnixNano()})
	e.resets.why = ""
}

// reportLoaded reports the end of the work that a Reset postponed.
func (e *Engine) reportLoaded(w Write) {
	now := time.Now()
	e.reportTogether(changes.Entry{Kind: changes.Loaded, Frontends: uint32(w.Changes),
		Learned: now.Add(-w.Took).UnixNano(), Done: now.UnixNano()})
	e.pending.programming.loading = false
}

// reportTogether adds to an entry how many changes came into force with it.
func (e *Engine) reportTogether(entry changes.Entry) {
	p := &e.pending.programming
	entry.Family, entry.Services, entry.Slices = e.cfg.Family, uint32(p.together.Services), uint32(p.together.Slices)
	p.together = cluster.Changes{}
	e.cfg.Changes.Add(entry)
}

// reportRepaired reports an audit that found differences.
func (e *Engine) reportRepaired(w *Write, end time.Time) {
	e.cfg.Changes.Add(changes.Entry{Kind: changes.Repaired, Family: e.cfg.Family, Frontends: uint32(w.Changes),
		Why: e.audits.by, Learned: end.Add(-w.Took).UnixNano(), Done: end.UnixNano()})
}

// reportNodeSet reports that the plane accepted the facts of this machine.
func (e *Engine) reportNodeSet() {
	e.cfg.Changes.Add(changes.Entry{Kind: changes.Node, Family: e.cfg.Family, Learned: e.node.since.UnixNano(),
		Done: e.writer.end.UnixNano()})
}

// reportFailed reports a failure unless its text is the same as that of the last one.
func (e *Engine) reportFailed(name cluster.Name, k lb.Key, verb string, err error) {
	e.cfg.Changes.Add(changes.Entry{Kind: changes.Failed, Family: e.cfg.Family, Service: name, Key: k,
		Done: time.Now().UnixNano(), Why: verb + ": " + err.Error()})
}

// nameOf returns the name of the Service of a frontend; ":port" may follow it in row.
func nameOf(row string) cluster.Name {
	namespace, name, _ := strings.Cut(lb.OwnerOf(row), "/")
	return cluster.Name{Namespace: namespace, Name: name}
}
