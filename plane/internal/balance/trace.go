package balance

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"time"
)

// State is what a set would do with a new client now.
type State struct {
	Turns []Turn // sorted by address
	// Affinity is how long clients stay with a backend, 0 for not at all. Stays is the backend of
	// this client; not valid for none.
	Affinity time.Duration
	Stays    netip.AddrPort
}

// Turn is a backend with its share of new clients, without those that stay with another.
type Turn struct {
	Addr  netip.AddrPort
	Share float64
	// Failing is how long the backend will be tried last because it could not be reached; 0 if it
	// has its turn. Meanwhile the others get its share.
	Failing time.Duration
}

// State returns how the set would treat a client. It changes nothing, and blocks other clients
// while it copies the list.
func (s *Set) State(client netip.Addr) State {
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
