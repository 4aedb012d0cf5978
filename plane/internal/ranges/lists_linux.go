package ranges

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/plane/internal/diff"
)

// List is a list of source ranges in a set of nftables, whose keys are the number of the list with the length of a range, and the range.
// All rows with equal ranges share one.
type List struct {
	Number uint32         // 0 before the first write
	Ranges []netip.Prefix // as [Of] has them

	content string
	refs    int32 // rows that it restricts

	written    bool  // its elements are in the kernel, or will be with the present batch
	replaces   *List // of a new list: what the first of its rows had until now
	replacedBy *List // the new list that takes over its number, and the elements that they have in common
	touched    bool
}

// A list's number leaves its lowest eight bits to the length of a range.
const (
	lengthBits = 8
	MaxLists   = 1<<(32-lengthBits) - 1
)

// Key is what rows have of a list; 0 for nil.
func (l *List) Key() uint32 {
	if l == nil {
		return 0
	}
	return l.Number << lengthBits
}

// NumberOf is the number of a list, of which that is what rows have, or the beginning of a key.
func NumberOf(key uint32) uint32 { return key >> lengthBits }

// AppendKey appends the key of one range of a list.
func (l *List) AppendKey(b []byte, p netip.Prefix) []byte { return appendKey(b, l.Number, p) }

func appendKey(b []byte, number uint32, p netip.Prefix) []byte {
	return wire.AppendAddr(wire.AppendNumber(b, number<<lengthBits|uint32(p.Bits())), p.Addr())
}

// ParseKey is the inverse of AppendKey.
func ParseKey(b []byte) (number uint32, p netip.Prefix) {
	n := netlink.Order.Uint32(b)
	return NumberOf(n), netip.PrefixFrom(wire.ParseAddr(b[4:]), int(n&(1<<lengthBits-1)))
}

// Has reports whether an element of the key belongs to the list.
func (l *List) Has(key []byte) bool {
	_, p := ParseKey(key)
	_, ok := slices.BinarySearchFunc(l.Ranges, p, netip.Prefix.Compare)
	return ok
}

// Lists are those of a table.
type Lists struct {
	ByContent map[string]*List
	ByNumber  map[uint32]*List
	last      uint32 // the last number given out
}

// NewLists returns none.
func NewLists() *Lists { return &Lists{ByContent: map[string]*List{}, ByNumber: map[uint32]*List{}} }

// content identifies lists that are equal.
func content(sources []netip.Prefix) string {
	b := make([]byte, 0, len(sources)*17)
	for _, p := range sources {
		b = binary.BigEndian.AppendUint16(wire.AppendAddr(b, p.Addr()), uint16(p.Bits()))
	}
	return string(b)
}

// Change is what a batch does to lists.
type Change struct {
	// Edits are lists whose elements the batch changes, after Finish.
	Edits []Edit

	lists       *Lists
	log         *rollback.Log
	touched     []*List
	lastSources []netip.Prefix // what lastList is the list of
	lastList    *List
}

// Edit is a list with the ranges that it had, and that it has now.
type Edit struct {
	*List
	Was, Now []netip.Prefix
}

// Change begins a batch, which the log can take back; nil for a state that is built anew.
func (ls *Lists) Change(log *rollback.Log) *Change { return &Change{lists: ls, log: log} }

// Swap returns the list for a row with these sources, nil if it has none, in place of the one that it had.
func (c *Change) Swap(sources []netip.Prefix, was *List) (now *List) {
	if len(sources) > 0 {
		now = c.of(sources, was)
		c.touch(now)
		now.refs++
	}
	if was != nil {
		c.touch(was)
		was.refs--
	}
	return now
}

// of finds the list of these sources, or makes it. The rows of a Service share their slice, so the last one is remembered.
func (c *Change) of(sources []netip.Prefix, replaces *List) *List {
	if len(c.lastSources) == len(sources) && &c.lastSources[0] == &sources[0] {
		return c.lastList
	}
	key := content(sources)
	l := c.lists.ByContent[key]
	if l == nil {
		l = &List{content: key, Ranges: Of(sources), replaces: replaces}
		rollback.Put(c.log, c.lists.ByContent, key, l)
	}
	c.lastSources, c.lastList = sources, l
	return l
}

func (c *Change) touch(l *List) {
	if l.touched {
		return
	}
	rollback.Value(c.log, l)
	l.touched = true
	c.touched = append(c.touched, l)
}

// Finish says what the batch makes of lists, now that all rows are known. A list that takes the place of another, as where a range was
// added, gets its number: so only what differs is written, and nothing for the rows.
func (c *Change) Finish() {
	for _, l := range c.touched {
		if b := l.replaces; l.refs > 0 && !l.written && b != nil && b.refs == 0 && b.replacedBy == nil {
			b.replacedBy, l.Number = l, b.Number
		}
	}
	for _, l := range c.touched {
		l.touched = false
		switch {
		case l.refs == 0:
			c.remove(l)
		case !l.written:
			c.write(l)
		}
	}
	c.touched = nil
}

// write gives a new list its number, and notes its elements, or what distinguishes them from those of the list before.
func (c *Change) write(l *List) {
	var was []netip.Prefix
	if b := l.replaces; b != nil && b.replacedBy == l {
		was = b.Ranges
	}
	if l.Number == 0 {
		l.Number = c.lists.free()
	}
	l.written, l.replaces = true, nil
	rollback.Put(c.log, c.lists.ByNumber, l.Number, l)
	c.Edits = append(c.Edits, Edit{l, was, l.Ranges})
}

// remove ends a list that no row has any more.
func (c *Change) remove(l *List) {
	rollback.Delete(c.log, c.lists.ByContent, l.content)
	if l.replacedBy != nil {
		return
	}
	if l.Number != 0 {
		rollback.Delete(c.log, c.lists.ByNumber, l.Number)
	}
	if l.written {
		c.Edits = append(c.Edits, Edit{l, l.Ranges, nil})
	}
}

// free returns a number that no list has.
func (ls *Lists) free() uint32 {
	for {
		ls.last = ls.last%MaxLists + 1
		if ls.ByNumber[ls.last] == nil {
			return ls.last
		}
	}
}

// Adopt gives lists the numbers by which the kernel's rows already refer to them: first those that have their ranges there, then all.
// claims are what the kernel's rows have, each with the sources that its row shall have; have are the keys of ranges, sorted.
func (c *Change) Adopt(claims iter.Seq2[uint32, []netip.Prefix], have diff.Records) {
	for _, all := range []bool{false, true} {
		for key, sources := range claims {
			number := NumberOf(key)
			c.lists.last = max(c.lists.last, number)
			if len(sources) == 0 || number == 0 || c.lists.ByNumber[number] != nil {
				continue
			}
			l := c.of(sources, nil)
			lacks := func(p netip.Prefix) bool { return !In(have, number, p) }
			if l.Number != 0 || !all && slices.ContainsFunc(l.Ranges, lacks) {
				continue
			}
			l.Number = number
			c.lists.ByNumber[number] = l
			c.touch(l)
		}
	}
}

// In reports whether keys of ranges, which are sorted, have a range of the list with a number.
func In(have diff.Records, number uint32, p netip.Prefix) (there bool) {
	have.Each(appendKey(nil, number, p), func([]byte) { there = true })
	return there
}
