package option

import (
	"cmp"
	"fmt"
	"time"
)

// Report collects the problems of a section, and has the checks that many values share.
type Report struct {
	// Wrong records a problem of a field. Problems of a section whose mode does not run are kept
	// until it does.
	Wrong func(path, value, want string)
	// Insist notes one that always counts.
	Insist func(path, value, want string)
	// Warn records a warning.
	Warn func(format string, args ...any)
	// Name returns the user's name of a field: the flag, or the field if the file sets it.
	Name func(path string) string
	// Given reports whether a flag or the file sets the field.
	Given func(path string) bool
	// Runs: the section's mode is configured. Cleanup: the process removes rules, and exits.
	Runs, Cleanup bool
}

// Within checks the bounds of a number, and returns it.
func (r *Report) Within(path string, n, low, high int32) int {
	if n < low || n > high {
		want := fmt.Sprintf("want %d to %d", low, high)
		if high == 1<<31-1 {
			want = fmt.Sprintf("want %d or more", low)
		}
		r.Wrong(path, fmt.Sprint(n), want)
	}
	return int(n)
}

// Positive checks that a time is greater than 0.
func (r *Report) Positive(path string, d Duration) {
	if d.Duration <= 0 {
		r.Wrong(path, d.Duration.String(), "want more than 0")
	}
}

// NotNegative checks that a time is 0 or greater.
func (r *Report) NotNegative(path string, d Duration) {
	if d.Duration < 0 {
		r.Wrong(path, d.Duration.String(), "want 0 or more")
	}
}

// Periods checks the time between two full comparisons, 0 for the engine's default, and the least
// time between two writes.
func (r *Report) Periods(block string, sync, least Duration) {
	s, l := sync.Duration, Exact(least)
	switch path := block + ".minSyncPeriod"; {
	case l < 0:
		r.Wrong(path, l.String(), "want 0 or more")
	case l > s && s > 0:
		r.Wrong(path, l.String(), "want at most the sync period, "+s.String())
	}
}

// noPeriod represents 0 in a file where 0 means "not given" (FL-08): the shortest time that can be
// written.
const noPeriod = time.Nanosecond

// Exact returns the time that a file means.
func Exact(d Duration) time.Duration {
	if d.Duration == noPeriod {
		return 0
	}
	return d.Duration
}

// Sayable returns a time as written in a file if its default differs.
func Sayable(d Duration) Duration {
	d.Duration = cmp.Or(d.Duration, noPeriod)
	return d
}
