package balance

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"time"
)

// State is what a set would do with a new client at this moment.
type State struct {
	Turns []Turn // sorted by address
	// Affinity is how long clients stay; 0: they do not. Stays is the backend that this one stays with; not valid for none.
	Affinity time.Duration
	Stays    netip.AddrPort
}

// Turn is a backend with the part of new clients that it gets when all are in their turns, those left out that stay with another.
type Turn struct {
	Addr  netip.AddrPort
	Share float64
	// Failing is how long the backend is tried last from now on, because it could not be reached; 0 if it is in its turn. Meanwhile its
	// part goes to the others.
	Failing time.Duration
}

// Look says what the set would do with a client. It changes nothing, and holds up other clients for as long as it takes to copy the list.
func (s *Set) Look(client netip.Addr) State {
	now := time.Now()
	s.mu.Lock()
	st := State{Affinity: s.affinity}
	ring := slices.Clone(s.ring)
	if s.affinity > 0 {
		p := s.places[uint16(maphash.Comparable(s.b.seed, client.Unmap().WithZone(""))%setPlaces)]
		if m := s.stayWith(p, nil, now); m != nil {
			st.Stays = m.addr
		}
	}
	s.mu.Unlock()

	worth := 0
	for _, m := range ring {
		t := Turn{Addr: m.addr}
		if u := m.health.until.Load(); u > now.UnixNano() {
			t.Failing = time.Duration(u - now.UnixNano())
		}
		if s.worth(m, nil) {
			worth++
			t.Share = 1
		}
		st.Turns = append(st.Turns, t)
	}
	for i := range st.Turns {
		st.Turns[i].Share /= float64(max(worth, 1))
	}
	slices.SortFunc(st.Turns, func(a, b Turn) int { return a.Addr.Compare(b.Addr) })
	return st
}
