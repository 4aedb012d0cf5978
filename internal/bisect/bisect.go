// Package bisect finds the few things among many because of which all of them are refused, by halves and in a bounded number
// of attempts. The things must not depend on each other. Whoever searches makes the attempts, in one loop or one by one:
//
//	s := bisect.New(bisect.Halves(all), 1)
//	for group := s.Next(); group != nil; group = s.Next() {
//		if err := try(group); err == nil {
//			s.Took()
//		} else if s.Refused(group) {
//			// group[0] is a culprit
//		}
//	}
//	// what s.Left returns was not tried: the search gave up
//
// Of n things up to three that are refused alone, and any number of others, are always told apart; of more as far as the
// bound allows. One costs about 2·log2(n) attempts. Where everything is refused the search gives up after log2(n) and a few, so
// that who is asked meets no storm.
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

// New begins a search among groups, each of which is tried as a whole first, the last one first. refused is how often in a row
// something with them in it was refused before.
func New[T any](groups [][]T, refused int) *Search[T] {
	n := 0
	for _, g := range groups {
		n += len(g)
	}
	depth := bits.Len(uint(n))
	return &Search[T]{groups: groups, left: 4*depth + 16, inARow: refused, limit: depth + 8}
}

// Halves are the groups of what was refused together; what comes first is tried first.
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

// Took says that the group was taken.
func (s *Search[T]) Took() { s.inARow, s.took = 0, true }

// Refused says that the group, or what is left of it, was refused. It reports whether that is a single thing: a culprit. Else
// its halves are tried next.
func (s *Search[T]) Refused(group []T) (culprit bool) {
	s.left--
	s.inARow++
	if len(group) <= 1 {
		return true
	}
	s.groups = append(s.groups, Halves(group)...)
	return false
}

// GaveUp reports whether too much was refused to go on.
func (s *Search[T]) GaveUp() bool { return s.left <= 0 || s.inARow > s.limit }

// Promising reports whether something was taken: then the rest is likely to hold more that can be.
func (s *Search[T]) Promising() bool { return s.took }

// Left returns what has not been tried by itself, or in a group that was taken.
func (s *Search[T]) Left() []T {
	var all []T
	for _, g := range s.groups {
		all = append(all, g...)
	}
	return all
}
