// Package cputest measures code by the processor time of the process: wall-clock time is unreliable
// on a shared machine. Tests compare two costs of one run, never one cost with a limit.
package cputest

import "time"

// Least returns the cost of a call of f, the least of several tries. Nothing else should run in the
// process.
func Least(f func()) time.Duration {
	least := time.Duration(0)
	for range 5 {
		start, calls := Time(), 0
		for calls == 0 || Time()-start < 2*time.Millisecond {
			f()
			calls++
		}
		if cost := (Time() - start) / time.Duration(calls); least == 0 || cost < least {
			least = cost
		}
	}
	return least
}

// Ratio returns how many times as much large costs as small.
func Ratio(small, large func()) float64 { return float64(Least(large)) / float64(max(1, Least(small))) }
