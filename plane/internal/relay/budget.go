package relay

import "sync/atomic"

// Budget bounds what many take of something there is little of, and keeps it from being all one's: descriptors, of which each
// listener has a share for its connections, and each namespace one for its listeners and all their connections. The relays of a process
// have one of these: each family alone may have all of it, and both together no more.
//
// One may take more while what it has is less than some times what nobody has. With four times one alone gets 4/5 of all, of ten
// that want all each gets a tenth, and whoever comes last still finds some. No number of shares is to be set, and what is given
// back counts at once.
type Budget struct {
	max  int64
	used atomic.Int64
}

// How many times what is free one may have: a listener, or who else has a zero Share, and a group, so that a greedy one in it leaves some
// for the others in it.
const (
	greed      = 4
	groupGreed = 8
)

// Share is what one has of a budget. The zero Share is of one in no group.
type Share struct {
	used  atomic.Int64
	group *Share
	greed int64 // 0 is greed
}

// Used is how much it is.
func (s *Share) Used() int64 { return s.used.Load() }

// add adds n, for the group as well, and reports whether it may have so much with so much free.
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

// NewBudget bounds to max, for 0 to five eighths of the descriptors that the process may open: sockets of UDP take a quarter, and some
// are for the rest of the process.
func NewBudget(max int) *Budget {
	if max <= 0 {
		max = OpenFiles() * 5 / 8
	}
	return &Budget{max: int64(max)}
}

// Take takes n for one, and reports whether it may have them.
func (b *Budget) Take(s *Share, n int64) bool {
	used := b.used.Add(n)
	if may := s.add(n, b.max-used); !may || used > b.max {
		b.Give(s, n)
		return false
	}
	return true
}

// force takes n that one has anyway.
func (b *Budget) force(s *Share, n int64) {
	b.used.Add(n)
	s.add(n, 0)
}

// Give returns n.
func (b *Budget) Give(s *Share, n int64) {
	b.used.Add(-n)
	s.add(-n, 0)
}

// Used is how much all have.
func (b *Budget) Used() int64 { return b.used.Load() }

// Max is how much there is.
func (b *Budget) Max() int64 { return b.max }
