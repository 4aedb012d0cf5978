package balance

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// How long a failing backend is tried last: from leastBackoff, doubled with each failure, to
// maxBackoff.
const (
	leastBackoff = time.Second
	maxBackoff   = time.Minute
)

// Unreachable reports whether an error of connecting is an answer of the network or of the backend,
// or a timeout. Other errors are this node's, and say nothing about the backend.
func Unreachable(err error) bool {
	if errno := syscall.Errno(0); errors.As(err, &errno) { // EAGAIN calls itself a timeout, and is not the network's
		return slices.Contains(answers, errno)
	}
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// began is the zero of ticks.
var began = time.Now()

// ticks are the nanoseconds of the monotonic clock since began: the wall clock may be stepped.
func ticks(now time.Time) int64 { return int64(now.Sub(began)) }

// health is the state of a backend, shared by the sets that have it.
type health struct {
	sets    int // under the Balance's lock
	failing *atomic.Int64

	// until is when the backend gets its turn again, as ticks; 0: it has its turn.
	until atomic.Int64

	mu       sync.Mutex
	failures int // in a row
	gone     bool
}

// good reports whether the backend may have its turn.
func (h *health) good(now time.Time) bool {
	u := h.until.Load()
	return u == 0 || u <= ticks(now)
}

// failed notes a failure. Failures of clients that were under way together count once.
func (h *health) failed(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone || !h.good(now) {
		return
	}
	if h.failures == 0 {
		h.failing.Add(1)
	}
	h.failures++
	wait := maxBackoff
	if n := h.failures - 1; n < 6 {
		wait = min(wait, leastBackoff<<n)
	}
	h.until.Store(ticks(now.Add(jitter(wait))))
}

func (h *health) succeeded() {
	if h.until.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reset()
}

// forget clears the state: no set has the backend any more.
func (h *health) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reset()
	h.gone = true
}

func (h *health) reset() {
	if h.failures > 0 {
		h.failing.Add(-1)
	}
	h.failures = 0
	h.until.Store(0)
}
