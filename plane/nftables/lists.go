//go:build linux

package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/diff"
	"kube-proxy/plane/internal/ranges"
)

// sourceList is a list of source ranges in the kernel. All frontends with equal ranges share one.
type sourceList struct {
	content string
	number  uint32         // the first bits of its keys; 0 before the first write
	ranges  []netip.Prefix // sorted, their lengths multiples of ranges.Stride
	refs    int32          // rows that it restricts

	written    bool        // its elements are in the kernel, or will be with the present batch
	replaces   *sourceList // of a new list: what the first of its rows had until now
	replacedBy *sourceList // the new list that takes over its number, and the elements that they have in common
	touched    bool
}

// A list's number leaves its lowest eight bits to the length of a range.
const (
	lengthBits = 8
	maxLists   = 1<<(32-lengthBits) - 1
)

func (l *sourceList) key() uint32 {
	if l == nil {
		return 0
	}
	return l.number << lengthBits
}

// appendSourceRange appends the record of one range of a list.
func appendSourceRange(b []byte, l *sourceList, p netip.Prefix) []byte {
	return wire.AppendAddr(wire.AppendNumber(b, l.key()|uint32(p.Bits())), p.Addr())
}

// has reports whether an element of the key belongs to the list.
func (l *sourceList) has(key []byte) bool {
	want := netip.PrefixFrom(wire.ParseAddr(key[4:]), int(nlconn.Order.Uint32(key)&(1<<lengthBits-1)))
	_, ok := slices.BinarySearchFunc(l.ranges, want, netip.Prefix.Compare)
	return ok
}

func (l *sourceList) records(f func(i setIndex, rec []byte)) {
	b := make([]byte, 0, 24)
	for _, p := range l.ranges {
		f(sSourceRanges, appendSourceRange(b, l, p))
	}
}

// content identifies lists that are equal.
func content(sources []netip.Prefix) string {
	b := make([]byte, 0, len(sources)*17)
	for _, p := range sources {
		b = binary.BigEndian.AppendUint16(wire.AppendAddr(b, p.Addr()), uint16(p.Bits()))
	}
	return string(b)
}

// restrict has rows refer to the lists of their source ranges, and no longer to those that they had.
func (c *change) restrict(rows []rowChange) {
	for i := range rows {
		r := &rows[i]
		if r.front != nil && len(r.front.Sources) > 0 {
			r.now.list = c.listOf(r.front.Sources, r.was.list)
			c.touchList(r.now.list)
			r.now.list.refs++
		}
		if r.was.list != nil {
			c.touchList(r.was.list)
			r.was.list.refs--
		}
	}
}

// listOf finds the list of these sources, or makes it. The frontends of a Service share their slice, so the last one is
// remembered.
func (c *change) listOf(sources []netip.Prefix, replaces *sourceList) *sourceList {
	if len(c.lastSources) == len(sources) && &c.lastSources[0] == &sources[0] {
		return c.lastList
	}
	key := content(sources)
	l := c.st.lists[key]
	if l == nil {
		l = &sourceList{content: key, ranges: ranges.Of(sources), replaces: replaces}
		rollback.Put(c.log, c.st.lists, key, l)
	}
	c.lastSources, c.lastList = sources, l
	return l
}

func (c *change) touchList(l *sourceList) {
	if l.touched {
		return
	}
	rollback.Value(c.log, l)
	l.touched = true
	c.lists = append(c.lists, l)
}

// listChange is a list whose elements a batch changes.
type listChange struct {
	*sourceList
	was, now []netip.Prefix
}

// finishLists says what the batch makes of lists, now that all rows are known. A list that takes the place of another, as where a range was
// added, gets its number: so only what differs is written, and nothing for the rows.
func (c *change) finishLists() {
	for _, l := range c.lists {
		if b := l.replaces; l.refs > 0 && !l.written && b != nil && b.refs == 0 && b.replacedBy == nil {
			b.replacedBy, l.number = l, b.number
		}
	}
	for _, l := range c.lists {
		l.touched = false
		switch {
		case l.refs == 0:
			c.removeList(l)
		case !l.written:
			c.writeList(l)
		}
	}
	c.lists = nil
}

// writeList gives a new list its number, and notes its elements, or what distinguishes them from those of the list before.
func (c *change) writeList(l *sourceList) {
	var was []netip.Prefix
	if b := l.replaces; b != nil && b.replacedBy == l {
		was = b.ranges
	}
	if l.number == 0 {
		l.number = c.st.freeList()
	}
	l.written, l.replaces = true, nil
	rollback.Put(c.log, c.st.listNumbers, l.number, l)
	c.ranges = append(c.ranges, listChange{l, was, l.ranges})
}

// removeList ends a list that no row has any more.
func (c *change) removeList(l *sourceList) {
	rollback.Delete(c.log, c.st.lists, l.content)
	if l.replacedBy != nil {
		return
	}
	if l.number != 0 {
		rollback.Delete(c.log, c.st.listNumbers, l.number)
	}
	if l.written {
		c.ranges = append(c.ranges, listChange{l, l.ranges, nil})
	}
}

// freeList returns a number that no list has.
func (st *state) freeList() uint32 {
	for {
		st.lastList = st.lastList%maxLists + 1
		if st.listNumbers[st.lastList] == nil {
			return st.lastList
		}
	}
}

// adoptLists gives the lists of want the numbers by which the kernel's rows already refer to them: first those that have their ranges
// there, then all.
func (c *change) adoptLists(snap *snapshot, want *lb.Table) {
	have := snap.records[sSourceRanges].Sorted()
	snap.records[sSourceRanges] = have
	for _, all := range []bool{false, true} {
		for rec := range snap.records[sSourceLists].All() {
			number := nlconn.Order.Uint32(rec[len(rec)-4:]) >> lengthBits
			c.st.lastList = max(c.st.lastList, number)
			f := want.Get(wire.ParseKey(rec, c.AddrLen))
			if f == nil || len(f.Sources) == 0 || number == 0 || c.st.listNumbers[number] != nil {
				continue
			}
			l := c.listOf(f.Sources, nil)
			lacks := func(p netip.Prefix) bool { return !in(have, number, p) }
			if l.number != 0 || !all && slices.ContainsFunc(l.ranges, lacks) {
				continue
			}
			l.number = number
			c.st.listNumbers[number] = l
			c.touchList(l)
		}
	}
}

// in reports whether records, which are sorted, have a range of the list under a number.
func in(have diff.Records, number uint32, p netip.Prefix) (there bool) {
	have.Each(appendSourceRange(nil, &sourceList{number: number}, p), func([]byte) { there = true })
	return there
}
