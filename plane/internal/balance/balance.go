package balance

import (
	"cmp"
	"hash/maphash"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"kube-proxy/lb"
)

// Config bounds a Balance.
type Config struct {
	// Places limits the places of clients with an affinity in all sets; 0 means 1,048,576, of about
	// 40 bytes each.
	Places int
	// Loops reports whether a connection of this node to the address would reach one of the proxy's
	// own listeners: such a backend gets no clients. Nil: none would, because the kernel does not
	// redirect the proxy's own packets.
	Loops func(netip.AddrPort) bool
}

// Stats are the state of a Balance.
type Stats struct {
	// Places are those in use, including expired ones that have not been swept; Limit is their
	// maximum.
	Places, Limit int
	// Failing are the backends that are tried last.
	Failing int
}

// Balance has the backend sets of one family. One goroutine at a time calls its methods, except
// Stats; any goroutine may call those of its sets and frontends.
type Balance struct {
	cfg  Config
	seed maphash.Seed

	mu     sync.RWMutex // of the maps alone
	sets   map[lb.SetID]*Set
	health map[endpoint]*health

	places, failing atomic.Int64
}

// endpoint is the subject of health. The protocol is part of it: a closed port of SCTP says nothing
// about TCP.
type endpoint struct {
	proto lb.Proto
	addr  netip.AddrPort
}

// New returns an empty Balance.
func New(cfg Config) *Balance {
	cfg.Places = cmp.Or(cfg.Places, 1<<20)
	return &Balance{cfg: cfg, seed: maphash.MakeSeed(), sets: map[lb.SetID]*Set{}, health: map[endpoint]*health{}}
}

// Set makes the set have the backends of s, from now on, and returns it. The cost follows the size
// of the set; an unchanged set costs nothing.
func (b *Balance) Set(s *lb.BackendSet, affinity time.Duration) *Set {
	set := b.sets[s.ID]
	if set == nil {
		set = &Set{b: b, id: s.ID}
		b.mu.Lock()
		b.sets[s.ID] = set
		b.mu.Unlock()
	}
	if set.is != s {
		set.hold(s)
	}
	set.stick(affinity)
	return set
}

// Remove forgets a set. Its remaining users are refused.
func (b *Balance) Remove(id lb.SetID) {
	set := b.sets[id]
	if set == nil {
		return
	}
	set.hold(&lb.BackendSet{ID: id})
	set.stick(0)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sets, id)
}

// Stats may be called from any goroutine.
func (b *Balance) Stats() Stats {
	return Stats{Places: int(b.places.Load()), Limit: b.cfg.Places, Failing: int(b.failing.Load())}
}

// joinAll returns members for backends of one more set that has them.
func (b *Balance) joinAll(p lb.Proto, addrs []netip.AddrPort) []*member {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]*member, 0, len(addrs))
	for _, a := range addrs {
		h := b.health[endpoint{p, a}]
		if h == nil {
			h = &health{failing: &b.failing}
			b.health[endpoint{p, a}] = h
		}
		h.sets++
		all = append(all, &member{addr: a, health: h})
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// leave ends a set's interest in a backend. After the last one, its history is dropped.
func (b *Balance) leave(p lb.Proto, m *member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.health.sets--
	if m.health.sets == 0 {
		m.health.forget()
		delete(b.health, endpoint{p, m.addr})
	}
}

// dialled notes how an attempt ended.
func (b *Balance) dialled(p lb.Proto, a netip.AddrPort, err error) {
	if err == nil && b.failing.Load() == 0 || err != nil && !Unreachable(err) {
		return
	}
	b.mu.RLock()
	h := b.health[endpoint{p, a}]
	b.mu.RUnlock()
	switch {
	case h == nil: // it left while it was tried
	case err != nil:
		h.failed(time.Now())
	default:
		h.succeeded()
	}
}

// take takes one of the places of all sets.
func (b *Balance) take() bool {
	if b.places.Add(1) <= int64(b.cfg.Places) {
		return true
	}
	b.places.Add(-1)
	return false
}

// sweptAtOnce is how many sets give up places that are over for one client that finds none.
const sweptAtOnce = 8

// makeRoom makes some sets other than s release expired places, so that Services without clients do
// not keep them.
func (b *Balance) makeRoom(s *Set, now time.Time) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	n := 0
	for _, o := range b.sets {
		n++
		if n > sweptAtOnce {
			return
		}
		if o != s && o.mu.TryLock() {
			o.sweep(now)
			o.mu.Unlock()
		}
	}
}

// jitter spreads d by a quarter to both sides.
func jitter(d time.Duration) time.Duration { return d - d/4 + rand.N(d/2+1) }
