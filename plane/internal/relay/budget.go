package relay

import "sync/atomic"

// Budget limits a scarce resource, and keeps one user from taking all of it. Of descriptors, each
// listener has a share for its connections, and each namespace one for its listeners and all their
// connections. The relays of a process share one Budget: each family alone may use all of it.
//
// A user may take more while it has less than some multiple of what is free. With a multiple of
// four, one user alone gets 4/5 of all, each of ten gets a tenth, and a late one still finds some.
// No number of shares is configured, and returned units count at once.
type Budget struct {
	max  int64
	used atomic.Int64
}

// How many times the free amount one user may have: a listener, or a zero Share; and a group, so
// that a greedy listener leaves some for the others in its group.
const (
	greed      = 4
	groupGreed = 8
)

// Share is one user's part of a budget. The zero Share belongs to no group.
type Share struct {
	used  atomic.Int64
	group *Share
	greed int64 // 0 is greed
}

// Used returns its size.
func (s *Share) Used() int64 { return s.used.Load() }

// add adds n to the share and its group, and reports whether the sum is allowed with so much free.
func (s *Share) add(n, free int64) (may bool) {
	may = true
	for ; s != nil; s = s.group {
		times := int64(greed)
		if s.greed != 0 {
			times = s.greed
		}
		if had := s.used.Add(n) - n; had > times*free {
			may = false
		}
	}
	return may
}

// NewBudget limits to max. 0 means five eighths of the process's descriptors: sockets of UDP take a
// quarter, and the rest of the process needs some.
func NewBudget(max int) *Budget {
	if max <= 0 {
		max = OpenFiles() * 5 / 8
	}
	return &Budget{max: int64(max)}
}

// Take takes n for one user, and reports whether the user's share allows it.
func (b *Budget) Take(s *Share, n int64) bool {
	used := b.used.Add(n)
	if may := s.add(n, b.max-used); !may || used > b.max {
		b.Give(s, n)
		return false
	}
	return true
}

// force takes n for a user regardless of the limit.
func (b *Budget) force(s *Share, n int64) {
	b.used.Add(n)
	s.add(n, 0)
}

// Give returns n.
func (b *Budget) Give(s *Share, n int64) {
	b.used.Add(-n)
	s.add(-n, 0)
}

// Used returns the sum of all shares.
func (b *Budget) Used() int64 { return b.used.Load() }

// Max returns the size of the budget.
func (b *Budget) Max() int64 { return b.max }
