package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/pause"
	"kube-proxy/internal/wiring"
)

const (
	// askEvery is the pause between two attempts to take the lock.
	askEvery = 10 * time.Millisecond
	// waitRemind is the time between two log lines about the wait.
	waitRemind = time.Minute
)

// writerLock is the right to write the rules of this network namespace. While one process has it,
// others wait: two with different configurations, such as the old and the new pod of a rolling
// update, would undo each other's writes for as long as both run. Only processes that may write
// rules can take it, and it ends with the process.
type writerLock struct {
	lock   *kernel.Lock // nil without one
	err    error        // why
	remind time.Duration
	log    *slog.Logger

	mu     sync.Mutex
	since  time.Time // when the wait began; zero if this process does not wait
	holder string    // the process that has the lock; "" before the first look
}

// newWriterLock returns the lock of the calling thread's network namespace.
func newWriterLock(log *slog.Logger) *writerLock {
	t := &writerLock{remind: waitRemind, log: log}
	t.lock, t.err = kernel.OpenLock(wiring.WriterGroup)
	return t
}

// take reports whether this process has the lock; if not, the wait has begun. If there is no lock
// it logs that, and returns true.
func (t *writerLock) take() bool {
	err := t.err
	if err == nil {
		err = t.lock.Take()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(err, kernel.ErrHeld) {
		if t.since.IsZero() {
			t.since = time.Now()
		}
		return false
	}
	if err != nil {
		t.log.Warn("Cannot check for another kube-proxy in this network namespace; continuing", "err", err)
	}
	t.since = time.Time{}
	return true
}

// wait returns nil when this process has the lock, or an error when ctx has ended. There is no time
// limit for the other process: one that is only stopped would continue to write later. The log and
// [writerLock.waiting] report the wait.
func (t *writerLock) wait(ctx context.Context) error {
	if t.take() {
		return nil
	}
	began, _ := t.waiting()
	for reported := (time.Time{}); !t.take(); {
		if time.Since(reported) >= t.remind {
			reported = time.Now()
			holder := t.lock.Holder().String()
			t.mu.Lock()
			t.holder = holder
			t.mu.Unlock()
			t.log.Warn("Another kube-proxy serves this network namespace; waiting for it to exit",
				"holder", holder, "waiting", time.Since(began).Round(time.Second))
		}
		if !pause.For(ctx, askEvery) {
			return ctx.Err()
		}
	}
	t.log.Info("The other kube-proxy exited; taking over its rules", "waited",
		time.Since(began).Round(time.Millisecond))
	return nil
}

// waiting returns since when this process waits for the lock, and the process that has it; the zero
// time if it does not wait.
func (t *writerLock) waiting() (since time.Time, on string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		return t.since, ""
	}
	on = "another kube-proxy writes the rules of this network namespace"
	if t.holder != "" {
		on += ": " + t.holder
	}
	return t.since, on
}

// close gives the lock to the next.
func (t *writerLock) close() {
	if t.lock != nil {
		_ = t.lock.Close() // the process ends
	}
}
