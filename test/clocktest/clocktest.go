// Package clocktest steps the wall clock of times, for tests of what must not notice.
package clocktest

import (
	"testing"
	"time"
	"unsafe"
)

// Step returns the time that time.Now would have returned at t had the wall clock been stepped by
// d, whole seconds, before: its monotonic reading is the same. t must have a monotonic reading.
func Step(tb testing.TB, t time.Time, d time.Duration) time.Time {
	tb.Helper()
	// The layout of time.Time with a monotonic reading: bit 63, then 33 bits of seconds, then 30 of
	// nanoseconds. The checks below notice another.
	stepped := t
	wall := (*uint64)(unsafe.Pointer(&stepped))
	*wall += uint64(d/time.Second) << 30
	if got := stepped.Round(0).Sub(t.Round(0)); got != d.Truncate(time.Second) {
		tb.Fatalf("the wall clock of %v was stepped by %v, want %v", t, got, d)
	}
	if got := stepped.Sub(t); got != 0 {
		tb.Fatalf("the monotonic clock of %v was stepped by %v", t, got)
	}
	return stepped
}
