package balance

import (
	"hash/maphash"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
)

const (
	// setPlaces is how many places of clients a set has at most.
	setPlaces = 4096
	// window is how many backends are looked at for one client: more than package relay tries.
	window = 64
)

// Set is a backend set, and but for Serves a [relay.Balancer] of listeners whose clients are all
// for it.
type Set struct {
	b  *Balance
	id lb.SetID
	is *lb.BackendSet // what hold was called with last

	mu       sync.Mutex
	ring     []*member // in the order of their turns
	next     int       // whose turn it is
	affinity time.Duration
	places   map[uint16]place
	sweepAt  time.Time
}

// member is a backend in a set.
type member struct {
	addr   netip.AddrPort
	health *health
	gone   bool
}

// place is where clients of one hash stay.
type place struct {
	m     *member
	until int64 // ticks
}

// hold replaces the backends. Those that stay keep their turns, and new ones get random turns among
// them, so that none comes first more often than others.
func (s *Set) hold(want *lb.BackendSet) {
	was := s.is
	if was == nil {
		was = &lb.BackendSet{}
	}
	s.is = want
	come, gone := want.Backends.Without(&was.Backends), was.Backends.Without(&want.Backends)
	left := make(map[netip.AddrPort]bool, len(gone))
	for _, a := range gone {
		left[a] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ring := make([]*member, 0, want.Backends.Len())
	for i := range s.ring {
		m := s.ring[(s.next+i)%len(s.ring)]
		if left[m.addr] {
			m.gone = true
			s.b.leave(s.id.Proto, m)
		} else {
			ring = append(ring, m)
		}
	}
	s.ring, s.next = among(ring, s.b.joinAll(s.id.Proto, come)), 0
}

// Backends returns the set's backends, sorted.
func (s *Set) Backends() []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]netip.AddrPort, 0, len(s.ring))
	for _, m := range s.ring {
		all = append(all, m.addr)
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}

// stick sets the affinity. Without one, no client is remembered.
func (s *Set) stick(affinity time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.affinity = affinity
	if affinity == 0 && s.places != nil {
		s.b.places.Add(-int64(len(s.places)))
		s.places = nil
	}
}

// among inserts new members at random places. The others keep their order.
func among(stay, come []*member) []*member {
	if len(come) == 0 {
		return stay
	}
	all := make([]*member, 0, len(stay)+len(come))
	for n := len(stay) + len(come); n > 0; n-- {
		from := &stay
		if rand.IntN(n) < len(come) {
			from = &come
		}
		all = append(all, (*from)[0])
		*from = (*from)[1:]
	}
	return all
}

// Pick is part of [relay.Balancer].
func (s *Set) Pick(c relay.Client, tried []netip.AddrPort) netip.AddrPort {
	now := time.Now()
	m, full := s.pick(c.Addr.Addr().Unmap().WithZone(""), tried, now)
	if full {
		s.b.makeRoom(s, now)
	}
	if m == nil {
		return netip.AddrPort{}
	}
	return m.addr
}

// pick chooses for a client; full: there was no place for it.
func (s *Set) pick(client netip.Addr, tried []netip.AddrPort, now time.Time) (m *member, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := len(s.ring); {
	case n == 0 || len(tried) >= n:
		return nil, false
	case s.affinity == 0:
		return s.turn(tried, now), false
	}
	s.sweep(now)
	hash := maphash.Comparable(s.b.seed, client)
	at := uint16(hash % setPlaces)
	p, known := s.places[at]
	m = s.stayWith(p, tried, now)
	if m == nil {
		if !known && !s.b.take() {
			m, _ = s.from(int(hash/setPlaces%uint64(len(s.ring))), tried, now)
			return m, true
		}
		m = s.turn(tried, now)
		if m == nil {
			if !known {
				s.b.places.Add(-1)
			}
			return nil, false
		}
	}
	if len(s.places) == 0 {
		s.places = map[uint16]place{}
	}
	s.places[at] = place{m, ticks(now.Add(s.affinity))}
	return m, false
}

// stayWith returns the backend of a place if its clients stay with it.
func (s *Set) stayWith(p place, tried []netip.AddrPort, now time.Time) *member {
	if p.m == nil || p.m.gone || p.until <= ticks(now) || !s.worth(p.m, tried) || !p.m.health.good(now) &&
		len(s.ring) > 1 {
		return nil
	}
	return p.m
}

// worth reports whether an attempt to reach the backend could do any good.
func (s *Set) worth(m *member, tried []netip.AddrPort) bool {
	return !slices.Contains(tried, m.addr) && (s.b.cfg.Loops == nil || !s.b.cfg.Loops(m.addr))
}

// turn returns the backend whose turn it is.
func (s *Set) turn(tried []netip.AddrPort, now time.Time) *member {
	m, at := s.from(s.next, tried, now)
	if m != nil {
		s.next = (at + 1) % len(s.ring)
	}
	return m
}

// from returns the first healthy backend from a position of the ring on, or else the one that
// recovers first, and its position.
func (s *Set) from(start int, tried []netip.AddrPort, now time.Time) (best *member, at int) {
	for i := range min(len(s.ring), window) {
		i = (start + i) % len(s.ring)
		switch m := s.ring[i]; {
		case !s.worth(m, tried):
		case m.health.good(now):
			return m, i
		case best == nil || m.health.until.Load() < best.health.until.Load():
			best, at = m, i
		}
	}
	return best, at
}

// sweep releases expired places, at most once in the time of the affinity.
func (s *Set) sweep(now time.Time) {
	if len(s.places) == 0 || now.Before(s.sweepAt) {
		return
	}
	s.sweepAt = now.Add(s.affinity)
	before := len(s.places)
	for at, p := range s.places {
		if p.until <= ticks(now) || p.m.gone {
			delete(s.places, at)
		}
	}
	s.b.places.Add(int64(len(s.places) - before))
}

// Dialled is part of [relay.Balancer].
func (s *Set) Dialled(_ relay.Client, backend netip.AddrPort, err error) {
	s.b.dialled(s.id.Proto, backend, err)
}

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
		if !m.health.good(now) {
			t.Failing = time.Duration(m.health.until.Load() - ticks(now))
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
