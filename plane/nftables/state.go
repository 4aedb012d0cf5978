//go:build linux

package nftables

import (
	"cmp"
	"maps"
	"math/bits"
	"net/netip"
	"slices"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/ranges"
	"kube-proxy/plane/internal/slots"
)

// state is the kernel's content as of our last write.
type state struct {
	node  lb.Node
	rows  map[lb.Key]row
	sets  map[lb.SetID]*set
	lists *ranges.Lists
	// leaving are sets that no frontend uses and that still have elements, by the key of the last
	// frontend.
	leaving map[lb.Key][]*set
	// ids counts the set ids.
	ids slots.Counter
	// seed is the seed of the client hash for affinity.
	seed uint32

	// The number of frontends that need the address; an element exists while it is not 0.
	clusterIPs map[netip.Addr]int32

	classes map[class]bool
	shapes  map[shape]bool    // their parts
	chains  map[string]string // name → digest of the rules
}

// newState returns an empty state with capacity for a number of frontends.
func newState(rows int) *state {
	return &state{
		rows: make(map[lb.Key]row, rows), sets: make(map[lb.SetID]*set, rows),
		lists:      ranges.NewLists(),
		clusterIPs: make(map[netip.Addr]int32, rows), leaving: map[lb.Key][]*set{},
		classes: map[class]bool{}, shapes: map[shape]bool{}, chains: map[string]string{},
	}
}

// row is a frontend in the kernel.
type row struct {
	front          *lb.Frontend
	class          class
	cluster, local *set // nil if no route balances over that scope
	list           *ranges.List
}

// mapsOf returns the maps from a frontend's key to its class and its sets.
func mapsOf(k lb.Key) (classes, cluster, local setIndex) {
	if k.IsNodePort() {
		return sNodePorts, sNodePortClusterSets, sNodePortLocalSets
	}
	return sServices, sClusterSets, sLocalSets
}

// records calls f for each element that the state requires in the kernel, except in verdict maps
// and maps that packets fill. rec is only valid during the call.
func (st *state) records(f func(i setIndex, rec []byte)) {
	b := make([]byte, 0, 64)
	for _, r := range st.rows {
		rowRecords(r, f)
	}
	for _, s := range slices.SortedFunc(maps.Values(st.sets), inRecordOrder) {
		s.records(f)
	}
	for _, l := range st.lists.ByContent {
		listRecords(l, f)
	}
	st.reserved(f)
	for a := range st.clusterIPs {
		f(sClusterIPs, wire.AppendAddr(b[:0], a))
	}
	for n := range 256 {
		f(sEqualBytes, wire.AppendOctet(wire.AppendOctet(b[:0], byte(n)), byte(n)))
	}
}

// inRecordOrder compares sets by their records, see [diff.Records.Sorted]. It avoids sorting a
// million records that are already in order.
func inRecordOrder(a, b *set) int {
	return cmp.Compare(bits.ReverseBytes32(a.id), bits.ReverseBytes32(b.id))
}

// rowRecords calls f for the elements of one frontend.
func rowRecords(r row, f func(i setIndex, rec []byte)) {
	classes, cluster, local := mapsOf(r.front.Key)
	b := wire.AppendKey(make([]byte, 0, 80), r.front.Key)
	f(classes, wire.AppendNumber(b, uint32(r.class)))
	if r.cluster != nil {
		f(cluster, wire.AppendNumber(b, r.cluster.id))
	}
	if r.local != nil {
		f(local, wire.AppendNumber(b, r.local.id))
	}
	if r.list != nil {
		f(sSourceLists, wire.AppendNumber(b, r.list.Key()))
	}
}

// unfinished returns the keys of changes that are only partly written.
func (st *state) unfinished(changes []lb.Change) (later []lb.Key) {
	for _, ch := range changes {
		r := st.rows[ch.Key]
		if (len(st.leaving[ch.Key]) > 0 || r.cluster.unfinished() || r.local.unfinished()) &&
			!slices.Contains(later, ch.Key) {
			later = append(later, ch.Key)
		}
	}
	return later
}

// listRecords calls f for the elements of one list.
func listRecords(l *ranges.List, f func(i setIndex, rec []byte)) {
	b := make([]byte, 0, 24)
	for _, p := range l.Ranges {
		f(sSourceRanges, l.AppendKey(b, p))
	}
}
