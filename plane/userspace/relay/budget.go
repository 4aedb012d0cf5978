package relay

import "sync/atomic"

// Budget bounds the descriptors that relays hold for connections, so that the process keeps some, and listener from listener. The relays
// of a process share one: each family alone may have all of it, and both together no more.
//
// A listener may take more while what it has is less than greed times what nobody has. So one alone gets 4/5 of all, of ten
// that want all each gets a tenth, and whoever comes last still finds some. No number of shares is to be set, and what is given
// back counts at once.
type Budget struct {
	max  int64
	used atomic.Int64
}

// greed is how many times what is free one listener may have.
const greed = 4

// share is what one listener has of the budget.
type share struct{ used atomic.Int64 }

// NewBudget bounds to max descriptors, for 0 to half of what the process may open.
func NewBudget(max int) *Budget {
	if max <= 0 {
		max = openFiles() / 2
	}
	return &Budget{max: int64(max)}
}

// take takes n descriptors for a listener, and reports whether it may have them.
func (b *Budget) take(s *share, n int64) bool {
	used := b.used.Add(n)
	if had := s.used.Add(n) - n; used > b.max || had > greed*(b.max-used) {
		b.give(s, n)
		return false
	}
	return true
}

// force takes n descriptors that a listener has anyway.
func (b *Budget) force(s *share, n int64) {
	b.used.Add(n)
	s.used.Add(n)
}

// give returns n descriptors.
func (b *Budget) give(s *share, n int64) {
	b.used.Add(-n)
	s.used.Add(-n)
}
