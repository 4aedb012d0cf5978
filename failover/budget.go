package failover

import (
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
)

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

// free returns when the next event may happen.
func (w *window) free() time.Duration { return w.times[w.next] + time.Second }

func (w *window) take(now time.Duration) {
	w.times[w.next] = now
	w.next = (w.next + 1) % len(w.times)
}

// share is the part of one namespace. A target waits in the shares of all namespaces that ask for
// it, so no namespace delays what another asks for, too.
type share struct {
	window
	waiting []*target
	watched int // targets that it has made
	// missing is how many Nodes in a row did not exist; none is looked up before lookAfter.
	missing   int
	lookAfter time.Duration
}

// first removes and returns a target that is due, those that an inquiry waits for first; if there
// is none, at is the time of the next one.
func (h *share) first(now time.Duration) (t *target, at time.Duration) {
	h.waiting = slices.DeleteFunc(h.waiting, func(t *target) bool { return t.due < 0 })
	found := -1
	at = never
	before := func(a, b *target) bool {
		if a.due <= now && b.due <= now && a.client != b.client {
			return b.client
		}
		return a.due < b.due
	}
	for i, t := range h.waiting {
		if found < 0 || before(t, h.waiting[found]) {
			at, found = t.due, i
		}
	}
	if found < 0 || at > now {
		return nil, at
	}
	if free := h.free(); free > now {
		return nil, free
	}
	t = h.waiting[found]
	h.waiting = slices.Delete(h.waiting, found, found+1)
	return t, now
}

// never is later than any time.
const never = time.Duration(1<<63 - 1)
