//go:build linux

package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Session affinity. Packets fill one map for all sets, so the share of each Service is bounded: for
// each set the map remembers places, not clients. A client's place is a hash of its address with a
// seed that only root on the node can read. Clients of a set that share a place share a backend,
// and all of them stay with it.
//
// The whole map is bounded too, to limit memory. When the clients of many Services fill it, the
// hash of its address alone chooses the backend of a client without a place. That client stays with
// its backend until the number of backends changes, or until a place becomes free.
const (
	// affinityPlaces is the number of places of each set. A node reaches at most that many backends
	// of a larger set at a time.
	affinityPlaces = 1 << 12
	// affinityLimit is the maximum number of elements of the map: those of 256 full sets. They take
	// about 100 MB.
	affinityLimit = 1 << 20
)

// client is the client's part of a key of the affinity map.
//
// A kernel without the hash expression remembers clients by address. There, many clients of one
// Service can use up the space of others, and clients without a place are spread at random once the
// map is full.
func (r *ruleset) client() rule.Operand {
	if !r.hashes {
		return r.Source()
	}
	return r.Hash(r.places, r.seed)
}

// Two chains serve a set with affinity, see [shape] and [ruleset.scope].
//
// The key of the affinity map is set and client, and its value is a member: a number that stands
// for one backend in one set, see [slots.Members]. The rules look the backend up by member and set
// id. So whatever value the map has, packets go to a backend of this set or to no backend. A
// backend that left has no entry in member-backends, so its clients need no cleanup. A rule deletes
// such a value when it finds one, because updating an element does not change its data.

// sameBackend returns the rules that send a client to the backend that the affinity map has for it,
// and that renew its timeout. The statement set finds the set id.
func (r *ruleset) sameBackend(seconds uint32, set rule.Statement) []rule.Rule {
	client := r.client()
	last := rule.Find(rule.Member, r.set(sAffinity), rule.SetID, client)
	look, dnat := r.Backend(r.set(sMemberBackends), rule.Member, rule.SetID)
	return []rule.Rule{
		r.New("the same backend again", set, last, look, rule.Remember(r.set(sAffinity), client.Loaded(), seconds),
			dnat),
		r.New("its backend has left", set, last, rule.Forget(r.set(sAffinity), client.Loaded(), seconds)),
	}
}

// choose returns the rules that put a backend for a client into the affinity map, for as long as a
// packet needs to reach the rules of sameBackend. When the map is full, the update fails, and the
// last rules balance without affinity.
func (r *ruleset) choose(s shape, set rule.Statement) []rule.Rule {
	var rules []rule.Rule
	remember := rule.Remember(r.set(sAffinity), r.client(), passingSeconds)
	for _, n := range s.picks() {
		rules = append(rules, r.New("a backend to stay with", set, rule.Find(rule.Member, r.set(sMembers), rule.SetID,
			rule.Random(n)), remember, rule.GoBack))
	}
	look, dnat := r.Backend(r.set(sMemberBackends), rule.Member, rule.SetID)
	for i, n := range s.picks() {
		slot := rule.Random(n)
		if r.hashes {
			slot = r.Hash(n, r.seed+uint32(i)) // draws are independent
		}
		rules = append(rules, r.New("no memory left", set, rule.Find(rule.Member, r.set(sMembers), rule.SetID, slot),
			look, dnat))
	}
	return rules
}

// Remember has clients stay with backends, whatever the affinity map has for them. It leaves out
// sets without affinity, and backends that a set does not have.
func (p *Plane) Remember(ctx context.Context, choices []plane.Choice) error {
	if p.st == nil {
		return nil
	}
	t, wanted, keys := p.rules.transaction(TableName), map[string]bool{}, [][]byte(nil)
	for _, c := range choices {
		s := p.st.sets[c.Set]
		if s == nil || s.members == nil {
			continue
		}
		slot, key := slices.Index(s.slots(), c.Backend), p.keyOf(s, c.Client)
		if slot < 0 || wanted[string(key)] {
			continue
		}
		wanted[string(key)] = true
		keys = append(keys, key)
		t.AddFor(sAffinity, wire.AppendNumber(slices.Clip(key), s.members[slot]), c.For)
	}
	// Without this, the kernel would refuse another backend, and keep the time of the same one.
	err := p.reader().Elements(ctx, p.rules.set(sAffinity).Name, keys, func(el []byte) {
		t.Remove(sAffinity, wire.ElementKey(el))
	})
	if err == nil && len(keys) > 0 {
		err = p.commit(ctx, t)
	}
	if err != nil {
		return fmt.Errorf("write the backends of clients with affinity: %w", err)
	}
	return nil
}

// keyOf returns the key of a client of a set in the affinity map, see client.
func (p *Plane) keyOf(s *set, client netip.Addr) []byte {
	key := wire.AppendNumber(nil, s.id)
	if !p.rules.hashes {
		return wire.AppendAddr(key, client)
	}
	return wire.AppendNumber(key, rule.HashOf(client.AsSlice(), p.rules.places, p.rules.seed))
}

// passingSeconds is the timeout of an element of the affinity map between two rules.
const passingSeconds = 10

// stickable returns the backends that a set with affinity holds: all of them, or those that this
// node chooses if there are more than fit. Each node chooses others, so that all backends serve.
// The choice stays while other backends come and go.
func (p *planner) stickable(b *lb.BackendSet) *lb.BackendSet {
	if b == nil || b.Backends.Len() <= maxStickySlots {
		return b
	}
	if p.chosen[b] == nil {
		if p.chosen == nil {
			p.chosen = map[*lb.BackendSet]*lb.BackendSet{}
		}
		p.chosen[b] = selection(b, p.seed)
	}
	return p.chosen[b]
}

// selection returns maxStickySlots of the backends, others for each seed.
func selection(b *lb.BackendSet, seed uint32) *lb.BackendSet {
	type ranked struct {
		lb.Backend
		rank uint64
	}
	all, rec := make([]ranked, b.Backends.Len()), make([]byte, 0, 32)
	for i := range all {
		x := b.Backends.At(i)
		h := fnv.New64a()
		h.Write(wire.AppendAddrPort(wire.AppendNumber(rec, seed), x.Addr))
		all[i] = ranked{x, h.Sum64()}
	}
	slices.SortFunc(all, func(x, y ranked) int { return cmp.Or(cmp.Compare(x.rank, y.rank), x.Addr.Compare(y.Addr)) })
	all = all[:maxStickySlots]
	few := make([]lb.Backend, len(all))
	for i, x := range all {
		few[i] = x.Backend
	}
	slices.SortFunc(few, lb.Backend.Compare)
	return &lb.BackendSet{ID: b.ID, Backends: lb.BackendsOf(few...)}
}

// lacks reports whether the kernel lacks an expression of a rule. It probes with a transaction that
// the kernel refuses in any case.
func (p *Plane) lacks(ctx context.Context, r rule.Rule) (bool, error) {
	t := p.rules.transaction(TableName + "-probe")
	t.AddTable()
	t.AddChain("probe", wire.Hook{})
	t.AddRule("probe", r.Expressions, r.Comment)
	err := p.sock.Takes(ctx, t)
	if errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("nftables: probe the kernel's expressions: %w", err)
	}
	return false, nil
}

// affinityUse is how full the session affinity map is.
type affinityUse struct {
	entries, limit int      // the estimated number of elements, and the maximum
	busiest        []string // some of the Services with the most entries, as "namespace/name:port"
}

// affinitySamples is the number of places that a measurement reads. Counting all of them would take
// the kernel seconds, and no known kernel reports their number.
const affinitySamples = 512

// measureAffinity estimates the number of used places from a sample, unless the kernel cannot hash.
func (p *Plane) measureAffinity(ctx context.Context) error {
	if !p.rules.hashes {
		return nil
	}
	var sets []*set
	for _, s := range p.st.sets {
		if s.seconds > 0 {
			sets = append(sets, s)
		}
	}
	taken, by := 0, map[string]int{}
	for i := 0; i < affinitySamples && len(sets) > 0; i++ {
		s := sets[rand.IntN(len(sets))]
		key := wire.AppendNumber(wire.AppendNumber(nil, s.id), rand.Uint32N(p.rules.places))
		found := func([]byte) { taken++; by[s.source.ID.Service]++ }
		if err := p.reader().Elements(ctx, p.rules.set(sAffinity).Name, [][]byte{key}, found); err != nil {
			p.use.Store(nil)
			return fmt.Errorf("nftables %s: look at elements of %s: %w", p.ip.Family, p.rules.set(sAffinity).Name, err)
		}
	}
	p.use.Store(&affinityUse{entries: taken * len(sets) * int(p.rules.places) / affinitySamples,
		limit: int(p.rules.sets[sAffinity].Size), busiest: most(by, 3)})
	return nil
}

// most returns the n keys with the highest counts.
func most(counts map[string]int, n int) []string {
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	return keys[:min(n, len(keys))]
}
