package engine

import "time"

const (
	// tellBurst is how many messages of one sort may come at once, tellGap how long each counts.
	tellBurst = 50
	tellGap   = 10 * time.Second
	// withheldGap is the least time between two lines that say how many were withheld.
	withheldGap = time.Minute
	// maxTold bounds the memory for what has been told.
	maxTold = 10000
)

// teller bounds what is told of one sort of fault that tenants can make, each message once: so many at once, then one
// in each gap, and of the others their number. The zero teller has told nothing.
type teller struct {
	told map[string]struct{}
	full time.Time // when all messages so far have stopped to count

	withheld    int       // since the last line about them
	sayWithheld time.Time // the earliest time for another
}

// may reports whether the message is to be told now.
func (t *teller) may(text string, now time.Time) bool {
	if _, told := t.told[text]; told {
		return false
	}
	full := latest(t.full, now).Add(tellGap)
	if full.Sub(now) > tellBurst*tellGap {
		t.withheld++
		return false
	}
	t.full = full
	if t.told == nil || len(t.told) >= maxTold {
		t.told = map[string]struct{}{}
	}
	t.told[text] = struct{}{}
	return true
}

// rest returns how many were withheld, if it is time to say so; else 0.
func (t *teller) rest(now time.Time) int {
	if t.withheld == 0 || now.Before(t.sayWithheld) {
		return 0
	}
	n := t.withheld
	t.withheld, t.sayWithheld = 0, now.Add(withheldGap)
	return n
}

// plan remembers when rest is due.
func (t *teller) plan(a *agenda) {
	if t.withheld > 0 {
		a.due(t.sayWithheld)
	}
}
