package engine

import "time"

const (
	// paceBurst is how many messages of one sort may come at once, paceGap how long each counts.
	paceBurst = 50
	paceGap   = 10 * time.Second
)

// pace bounds messages of one sort: so many at once, and then one in each gap. The zero pace has seen none.
type pace struct {
	full time.Time // when all messages so far have stopped to count
}

// take reports whether there may be one more message now, and counts it.
func (p *pace) take(now time.Time) bool {
	full := latest(p.full, now).Add(paceGap)
	if full.Sub(now) > paceBurst*paceGap {
		return false
	}
	p.full = full
	return true
}
