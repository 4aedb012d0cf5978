package engine

import (
	"context"
	"math/bits"
	"math/rand/v2"
	"time"

	"kube-proxy/lb"
)

// search finds the culprits in a batch that failed, by halves. Changes do not depend on each other, so any
// split is allowed. The number of attempts is bounded: n changes with one culprit take about 2·log2(n), and
// when everything fails the search gives up after log2(n) and a few, so that a sick kernel meets no storm.
type search struct {
	id     uint64
	groups [][]lb.Key // the last is tried next
	left   int        // attempts left
	inARow int        // failures since the last success
	limit  int        // of inARow
	good   bool       // something was accepted
}

func newSearch(groups [][]lb.Key, failures int) *search {
	n := 0
	for _, g := range groups {
		n += len(g)
	}
	depth := bits.Len(uint(n))
	return &search{groups: groups, left: 4*depth + 16, limit: depth + 8, inARow: failures}
}

func halves(keys []lb.Key) [][]lb.Key {
	m := len(keys) / 2
	return [][]lb.Key{keys[m:], keys[:m]}
}

func (e *Engine) begin(s *search) {
	e.lastSearch++
	s.id = e.lastSearch
	for _, g := range s.groups {
		for _, k := range g {
			e.pending.wishes[k].group = s.id
		}
	}
	e.searches = append(e.searches, s)
}

// searchOn makes one attempt of the oldest search. Between two attempts the loop takes in what is new: a key
// that got another wish is no longer in the search.
func (e *Engine) searchOn(ctx context.Context) {
	s := e.searches[0]
	keys := e.nextGroup(s)
	if keys == nil {
		e.searches = e.searches[1:]
		return
	}
	changes, err := e.apply(ctx, keys)
	switch {
	case e.lost:
		return
	case err == nil:
		s.inARow, s.good = 0, true
		return
	case len(changes) == 1:
		e.blame(changes[0], err)
	default:
		s.groups = append(s.groups, halves(keysOf(changes))...)
	}
	s.left--
	s.inARow++
	if s.left <= 0 || s.inARow > s.limit {
		e.giveUp(s, err)
		e.searches = e.searches[1:]
	}
}

// nextGroup takes the next group that still has keys; nil if there is none.
func (e *Engine) nextGroup(s *search) []lb.Key {
	for len(s.groups) > 0 {
		last := len(s.groups) - 1
		keys := e.still(s.groups[last], s)
		s.groups = s.groups[:last]
		if len(keys) > 0 {
			return keys
		}
	}
	return nil
}

// still returns those of the keys that the search has still to do with.
func (e *Engine) still(keys []lb.Key, s *search) []lb.Key {
	out := make([]lb.Key, 0, len(keys))
	for _, k := range keys {
		if w := e.pending.wishes[k]; w != nil && w.group == s.id {
			out = append(out, k)
		}
	}
	return out
}

// giveUp makes what is left of a search wait: only shortly if the search found something that can be
// written, since then the rest is likely to hold more of it.
func (e *Engine) giveUp(s *search, err error) {
	now := time.Now()
	left := 0
	for _, g := range s.groups {
		for _, k := range e.still(g, s) {
			left++
			e.pending.wishes[k].group = 0
			if s.good {
				e.pending.waits.again(k, now)
			} else {
				e.pending.waits.fail(k, now)
			}
		}
	}
	if left > 0 && e.applyErr != err.Error() {
		e.applyErr = err.Error()
		e.cfg.Log.Error("writes fail, retrying them together", "rows", left, "err", err)
	}
}

// manyAlone is how many culprits are tried one by one; more are tried together, by halves.
const manyAlone = 8

// retry begins a search among the keys whose backoff has passed. Known culprits do not ride with the others.
func (e *Engine) retry(now time.Time) {
	var alone, others []lb.Key
	for _, k := range e.pending.waits.due(now) {
		if e.pending.wishes[k].alone {
			alone = append(alone, k)
		} else {
			others = append(others, k)
		}
	}
	var groups [][]lb.Key
	if len(alone) > manyAlone {
		// In another order each time, so that a bounded search gets to all of them.
		rand.Shuffle(len(alone), func(i, j int) { alone[i], alone[j] = alone[j], alone[i] })
		groups = append(groups, e.inPieces(alone)...)
	} else {
		for _, k := range alone {
			groups = append(groups, []lb.Key{k})
		}
	}
	groups = append(groups, e.inPieces(others)...)
	e.begin(newSearch(groups, 0))
}

// inPieces cuts keys into groups that may be written at once.
func (e *Engine) inPieces(keys []lb.Key) (groups [][]lb.Key) {
	most := e.piece()
	var weight lb.Weight
	start, used := 0, 0
	for i, k := range keys {
		n := e.pending.weigh(&weight, k, e.table)
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
