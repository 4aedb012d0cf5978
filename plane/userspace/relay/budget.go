package relay

import "sync/atomic"

// budget bounds the descriptors that a relay holds, so that the process keeps some, and listener from listener.
//
// A listener may take more while what it has is less than greed times what nobody has. So one alone gets 4/5 of all, of ten
// that want all each gets a tenth, and whoever comes last still finds some. No number of shares is to be set, and what is given
// back counts at once.
type budget struct {
	max  int64
	used atomic.Int64
}

// greed is how many times what is free one listener may have.
const greed = 4

// share is what one listener has of the budget.
type share struct{ used atomic.Int64 }

// newBudget bounds to max descriptors, for 0 to half of what the process may open.
func newBudget(max int) *budget {
	if max <= 0 {
		max = openFiles() / 2
	}
	return &budget{max: int64(max)}
}

// take takes n descriptors for a listener, and reports whether it may have them.
func (b *budget) take(s *share, n int64) bool {
	used := b.used.Add(n)
	if had := s.used.Add(n) - n; used > b.max || had > greed*(b.max-used) {
		b.give(s, n)
		return false
	}
	return true
}

// force takes n descriptors that a listener has anyway.
func (b *budget) force(s *share, n int64) {
	b.used.Add(n)
	s.used.Add(n)
}

// give returns n descriptors.
func (b *budget) give(s *share, n int64) {
	b.used.Add(-n)
	s.used.Add(-n)
}
