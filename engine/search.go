package engine

import (
	"context"
	"math/rand/v2"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/internal/bisect"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// search looks for the frontends that made a batch fail.
type search struct {
	*bisect.Search[lb.Key]
	id uint64
}

// startSearch tries groups of pending changes, one attempt at a time. failures is the number of
// consecutive failed writes with them.
func (e *Engine) startSearch(groups [][]lb.Key, failures int) {
	w := &e.writer
	w.lastSearch++
	for _, g := range groups {
		for _, k := range g {
			e.pending.byKey[k].search = w.lastSearch
		}
	}
	w.searches = append(w.searches, &search{bisect.New(groups, failures), w.lastSearch})
}

// searchOn makes one attempt of the oldest search. Between two attempts the loop takes in new
// marks: a key that changed again is no longer in the search.
func (e *Engine) searchOn(ctx context.Context) {
	w := &e.writer
	s := w.searches[0]
	var keys []lb.Key
	for len(keys) == 0 {
		group := s.Next()
		if group == nil {
			w.searches = w.searches[1:]
			return
		}
		keys = e.still(group, s)
	}
	changes, err := e.apply(ctx, keys)
	switch {
	case e.resets.due:
		return
	case err == nil:
		s.Took()
		return
	case s.Refused(keysOf(changes)):
		e.rowFailed(changes[0], err)
	}
	if s.GaveUp() {
		e.giveUp(s, err)
		w.searches = w.searches[1:]
	}
}

// still returns those of the keys that still belong to the search.
func (e *Engine) still(keys []lb.Key, s *search) []lb.Key {
	out := make([]lb.Key, 0, len(keys))
	for _, k := range keys {
		if pc := e.pending.byKey[k]; pc != nil && pc.search == s.id {
			out = append(out, k)
		}
	}
	return out
}

// giveUp makes the rest of a search wait. The wait is short if the search found a change that can
// be written, because the rest probably holds more.
func (e *Engine) giveUp(s *search, err error) {
	now := time.Now()
	left := e.still(s.Left(), s)
	for _, k := range left {
		e.pending.byKey[k].search = 0
		if s.Promising() {
			e.pending.waits.again(k, now)
		} else {
			e.pending.waits.fail(k, now)
		}
	}
	if len(left) > 0 && e.writer.together.logged.News(err) && e.failures.Allow("") { // they may be of many namespaces
		e.cfg.Log.Error("Failed to write changes, retrying them together", "frontends", len(left), "err", err)
		e.reportFailed(cluster.Name{}, lb.Key{}, "apply", err)
	}
}

// manyAlone is how many frontends that failed alone are retried one by one; more are retried
// together, by halves.
const manyAlone = 8

// retry starts a search among the keys whose backoff has passed. Frontends that failed alone are
// not tried with the others.
func (e *Engine) retry(now time.Time) {
	var alone, others []lb.Key
	for _, k := range e.pending.waits.due(now) {
		if e.pending.byKey[k].alone {
			alone = append(alone, k)
		} else {
			others = append(others, k)
		}
	}
	var groups [][]lb.Key
	if len(alone) > manyAlone {
		// A random order, so that a bounded search reaches all of them in time.
		rand.Shuffle(len(alone), func(i, j int) { alone[i], alone[j] = alone[j], alone[i] })
		groups = append(groups, e.inPieces(alone)...)
	} else {
		for _, k := range alone {
			groups = append(groups, []lb.Key{k})
		}
	}
	groups = append(groups, e.inPieces(others)...)
	e.startSearch(groups, 0)
}

// inPieces divides keys into groups that one write may hold.
func (e *Engine) inPieces(keys []lb.Key) (groups [][]lb.Key) {
	most := e.piece()
	of := plane.Weights(e.cfg.Plane)
	start, used := 0, 0
	for i, k := range keys {
		n := e.pending.weigh(of, k, e.table)
		if used > 0 && used+n > most {
			groups = append(groups, keys[start:i])
			start, used = i, 0
		}
		used += n
	}
	if start < len(keys) {
		groups = append(groups, keys[start:])
	}
	return groups
}
