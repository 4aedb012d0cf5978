// Package ratelimit bounds what the log and events say of faults that tenants can make, however many they make.
package ratelimit

import "time"

const (
	// Burst is how many messages of one sort may come at once, and Gap how long each counts.
	Burst = 50
	Gap   = 10 * time.Second
	// WithheldGap is the least time between two lines that say how many were withheld.
	WithheldGap = time.Minute
	// maxTold bounds the memory for what has been told.
	maxTold = 10000
)

// Messages bounds the messages of one sort: so many at once, then one in each gap, and of the others their number. The
// zero Messages has told nothing. It is not safe for concurrent use.
type Messages struct {
	told map[string]struct{}
	full time.Time // when all messages so far have stopped to count

	withheld    int       // since the last line about them
	sayWithheld time.Time // the earliest time for another
}

// Once is Next for a message that is not to be told again.
func (m *Messages) Once(message string, now time.Time) bool {
	if _, told := m.told[message]; told || !m.Next(now) {
		return false
	}
	if m.told == nil || len(m.told) >= maxTold {
		m.told = map[string]struct{}{}
	}
	m.told[message] = struct{}{}
	return true
}

// Next reports whether one more message is to be told now, and counts it.
func (m *Messages) Next(now time.Time) bool {
	full := m.full
	if full.Before(now) {
		full = now
	}
	if full = full.Add(Gap); full.Sub(now) > Burst*Gap {
		m.withheld++
		return false
	}
	m.full = full
	return true
}

// Withheld returns how many were withheld since it last did so, if it is time to say it; else 0.
func (m *Messages) Withheld(now time.Time) int {
	if m.withheld == 0 || now.Before(m.sayWithheld) {
		return 0
	}
	n := m.withheld
	m.withheld, m.sayWithheld = 0, now.Add(WithheldGap)
	return n
}

// Due is when Withheld has something to say; false if it has not.
func (m *Messages) Due() (time.Time, bool) { return m.sayWithheld, m.withheld > 0 }
