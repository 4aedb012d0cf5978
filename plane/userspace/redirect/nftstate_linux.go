package redirect

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/diff"
	"kube-proxy/plane/internal/ranges"
)

// element is an element of a set, as a record.
type element struct {
	set setIndex
	rec string
}

// nftState is the applied state.
type nftState struct {
	leads map[lb.Key]held
	// shared counts the entries that need an element of a shared set.
	shared map[element]int
	lists  *ranges.Lists
	// address is the node's address to redirect to; not valid if the node has none.
	address netip.Addr
}

// held is an entry with the list of its sources.
type held struct {
	Entry
	list *ranges.List
}

// change collects the elements that a batch removes and adds.
type change struct {
	st     *nftState
	log    *rollback.Log // nil for a state under construction
	lists  *ranges.Change
	swaps  [][2]held        // old and new entries
	staged map[element]bool // true to add, false to remove
}

func (st *nftState) change(log *rollback.Log) *change {
	return &change{st: st, log: log, lists: st.lists.Change(log), staged: map[element]bool{}}
}

// stage adds or removes an element, or undoes the opposite.
func (c *change) stage(e element, add bool) {
	if was, there := c.staged[e]; there && was != add {
		delete(c.staged, e)
	} else {
		c.staged[e] = add
	}
}

// put replaces the entry of its key; one without routes removes it. It counts the shared elements,
// and queues the others for finish.
func (c *change) put(l Entry) {
	was, known := c.st.leads[l.Key]
	now := held{list: c.lists.Swap(l.Sources, was.list)}
	switch {
	case len(l.Routes) > 0:
		now.Entry = l
		rollback.Put(c.log, c.st.leads, l.Key, now)
	case known:
		rollback.Delete(c.log, c.st.leads, l.Key)
	default:
		return
	}
	c.swaps = append(c.swaps, [2]held{was, now})
	for e := range now.sharedElements() {
		if count(c.log, c.st.shared, e, 1) == 1 {
			c.stage(e, true)
		}
	}
	for e := range was.sharedElements() {
		if count(c.log, c.st.shared, e, -1) == 0 {
			c.stage(e, false)
		}
	}
}

// finish stages the elements of entries and lists, after the numbers of lists are known.
func (c *change) finish() {
	c.lists.Finish()
	for _, s := range c.swaps {
		for e := range s[0].elements() {
			c.stage(e, false)
		}
		for e := range s[1].elements() {
			c.stage(e, true)
		}
	}
	for _, l := range c.lists.Edits {
		diff.Sorted(l.Was, l.Now, netip.Prefix.Compare,
			func(p netip.Prefix) { c.stage(rangeElement(l.List, p), false) },
			func(p netip.Prefix) { c.stage(rangeElement(l.List, p), true) })
	}
}

func rangeElement(l *ranges.List, p netip.Prefix) element {
	return element{sSourceRanges, string(l.AppendKey(nil, p))}
}

// elements returns the elements that only this entry has.
func (l held) elements() iter.Seq[element] {
	return func(yield func(element) bool) {
		var buf [40]byte
		k := wire.AppendKey(buf[:0], l.Key)
		for _, r := range l.Routes {
			e := element{set: ports(r.From, l.Key.IsNodePort()), rec: string(binary.BigEndian.AppendUint16(k, r.Port))}
			if r.Port == 0 {
				e = element{set: refusals(r.From, l.Key.IsNodePort()), rec: string(wire.AppendNumber(k, uint32(r.Do)))}
			}
			if !yield(e) {
				return
			}
		}
		if l.list != nil {
			yield(element{sSourceLists, string(wire.AppendNumber(k, l.list.Key()))})
		}
	}
}

// sharedElements returns the elements that other entries may need as well.
func (l Entry) sharedElements() iter.Seq[element] {
	return func(yield func(element) bool) {
		var buf [40]byte
		if l.Kind == lb.ClusterIP && !l.Key.IsNodePort() &&
			!yield(element{sClusterIPs, string(append(buf[:0], l.Key.Addr.AsSlice()...))}) {
			return
		}
		for _, r := range l.Routes {
			key := lb.Key{Port: r.Port, Proto: l.Key.Proto}
			if r.Port != 0 && !yield(element{sListeners, string(wire.AppendKey(buf[:0], key))}) {
				return
			}
		}
	}
}

// records returns all elements of the state.
func (st *nftState) records(rules *ruleset) [setCount]diff.Records {
	all := rules.noRecords()
	put := func(e element) { all[e.set].Bytes = append(all[e.set].Bytes, e.rec...) }
	for _, lead := range st.leads {
		for e := range lead.elements() {
			put(e)
		}
	}
	for e := range st.shared {
		put(e)
	}
	for _, l := range st.lists.ByContent {
		for _, p := range l.Ranges {
			put(rangeElement(l, p))
		}
	}
	if st.address.IsValid() {
		put(addressElement(rules.Proto, st.address))
	}
	return all
}

func addressElement(proto byte, a netip.Addr) element {
	return element{sNodeAddresses, string(append([]byte{proto}, a.AsSlice()...))}
}

// stateOf returns the state of entries. Lists keep their numbers in the kernel.
func stateOf(leads []Entry, snap *snapshot, addrLen int) *nftState {
	st := &nftState{leads: map[lb.Key]held{}, shared: map[element]int{}, lists: ranges.NewLists()}
	want := make(map[lb.Key]Entry, len(leads))
	for _, l := range leads {
		want[l.Key] = l
	}
	c := st.change(nil)
	snap.records[sSourceRanges] = snap.records[sSourceRanges].Sorted()
	c.lists.Adopt(func(yield func(uint32, []netip.Prefix) bool) {
		for rec := range snap.records[sSourceLists].All() {
			if !yield(netlink.Order.Uint32(rec[len(rec)-4:]), want[wire.ParseKey(rec, addrLen)].Sources) {
				return
			}
		}
	}, snap.records[sSourceRanges])
	for _, l := range want {
		c.put(l)
	}
	c.finish()
	return st
}
