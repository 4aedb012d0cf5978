// Package bisect finds the few items among many that make a batch fail, by halves and in a limited
// number of attempts. The items must not depend on each other. The caller makes the attempts, in
// one loop or one by one:
//
//	s := bisect.New(bisect.Halves(all), 1)
//	for group := s.Next(); group != nil; group = s.Next() {
//		if err := try(group); err == nil {
//			s.Took()
//		} else if s.Refused(group) {
//			// group[0] is a culprit
//		}
//	}
//	// s.Left returns the untried items: the search gave up
//
// Of n items, up to three that are refused alone, with any number of others, are always found; more
// as far as the limit allows. One costs about 2·log2(n) attempts. If everything is refused the
// search gives up after log2(n) and a few attempts, so that it causes no storm.
package bisect

import "math/bits"

// Search is a search under way. Make one with [New].
type Search[T any] struct {
	groups [][]T // the last is tried next
	left   int   // refusals until it gives up
	inARow int   // refusals since the last success
	limit  int   // of inARow
	took   bool
}

// New starts a search among groups. It first tries each as a whole, the last one first. refused is
// the number of consecutive refusals of batches with these items.
func New[T any](groups [][]T, refused int) *Search[T] {
	n := 0
	for _, g := range groups {
		n += len(g)
	}
	depth := bits.Len(uint(n))
	return &Search[T]{groups: groups, left: 4*depth + 16, inARow: refused, limit: depth + 8}
}

// Halves returns the groups of a refused batch; the first half is tried first.
func Halves[T any](all []T) [][]T {
	m := len(all) / 2
	return [][]T{all[m:], all[:m]}
}

// Next takes the group to be tried next; nil ends the search.
func (s *Search[T]) Next() []T {
	for len(s.groups) > 0 && !s.GaveUp() {
		last := len(s.groups) - 1
		g := s.groups[last]
		s.groups = s.groups[:last]
		if len(g) > 0 {
			return g
		}
	}
	return nil
}

// Took records that the group was accepted.
func (s *Search[T]) Took() { s.inARow, s.took = 0, true }

// Refused records that the group, or the rest of it, was refused. It reports whether that is a
// single item: a culprit. Otherwise its halves are tried next.
func (s *Search[T]) Refused(group []T) (culprit bool) {
	s.left--
	s.inARow++
	if len(group) <= 1 {
		return true
	}
	s.groups = append(s.groups, Halves(group)...)
	return false
}

// GaveUp reports whether too many items were refused to continue.
func (s *Search[T]) GaveUp() bool { return s.left <= 0 || s.inARow > s.limit }

// Promising reports whether something was taken: then the rest is likely to hold more that can be.
func (s *Search[T]) Promising() bool { return s.took }

// Left returns the items that were not tried alone, or in an accepted group.
func (s *Search[T]) Left() []T {
	var all []T
	for _, g := range s.groups {
		all = append(all, g...)
	}
	return all
}
