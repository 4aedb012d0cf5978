package failover

import (
	"cmp"
	"slices"
	"time"
)

// Limits of one node. A probe is one series. A lookup of a Node counts as one.
const (
	perSecond   = 200 // probes in any second
	perShare    = 20  // of one namespace
	maxTargets  = 200 // addresses that one namespace has watched: ten seconds of its probes
	maxClaims   = 4   // nodes that slices may name for one address
	maxServices = 64  // Services looked at for a node
	maxAskers   = 16  // namespaces on whose behalf one address is probed
	maxTurn     = 10  // probes of inquiries that one namespace sends before another's turn
)

// rank orders what waits.
type rank uint8

// The ranks, the first ones first. Controls go before all else, as they must answer in time, and
// what answered lately after all else: clients may ask for that without end, because a policy drops
// their packets or because they want no answer. Between the others the namespaces take turns.
const (
	control  rank = iota // its answer shows that the link of this node works
	inquired             // an inquiry waits for it
	doubtful             // a client waits for it
	calm                 // the same, and it answered within calmFor
)

const calmFor = 10 * time.Second

// rank returns the rank of a target that waits.
func (t *target) rank(now time.Duration) rank {
	switch {
	case t.needs < doubtful:
		return t.needs
	case t.result.Reached() && now-t.done < calmFor:
		return calm
	}
	return doubtful
}

// window allows n events in any second.
type window struct {
	times []time.Duration // of the last n
	next  int
}

func newWindow(n int) window {
	w := window{times: make([]time.Duration, n)}
	for i := range w.times {
		w.times[i] = -time.Second
	}
	return w
}

// free returns when the next event of a rank may happen. What answered lately has half of the room,
// so that the rest is free at once; one event is kept for controls.
func (w *window) free(r rank) time.Duration {
	kept := 1
	switch r {
	case control:
		kept = 0
	case calm:
		kept = len(w.times) / 2
	}
	return w.times[(w.next+kept)%len(w.times)] + time.Second
}

func (w *window) take(now time.Duration) {
	w.times[w.next] = now
	w.next = (w.next + 1) % len(w.times)
}

// share is the part of one namespace. A target waits in the shares of all namespaces that ask for
// it, so no namespace delays what another asks for, too.
type share struct {
	window
	namespace string
	waiting   []*target
	first     *target // of waiting, as find returned it last
	watched   int     // targets that it has made
	turn      int     // probes that it sent in this turn
	// missing is how many Nodes in a row did not exist; none is looked up before lookAfter.
	missing   int
	lookAfter time.Duration
}

// find returns the target that is due and has the first rank. Without one, at is the time of the
// next one.
func (h *share) find(now time.Duration) (t *target, at time.Duration) {
	h.waiting = slices.DeleteFunc(h.waiting, func(t *target) bool { return t.due < 0 })
	at = never
	for _, o := range h.waiting {
		switch {
		case o.due > now:
			at = min(at, o.due)
		case t == nil || cmp.Or(cmp.Compare(o.rank(now), t.rank(now)), cmp.Compare(o.due, t.due)) < 0:
			t = o
		}
	}
	if t == nil {
		return nil, at
	}
	if free := h.free(t.rank(now)); free > now {
		return nil, min(at, free)
	}
	return t, at
}

// never is later than any time.
const never = time.Duration(1<<63 - 1)
