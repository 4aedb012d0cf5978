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

// List is a list of source ranges in an nftables set. The set's keys consist of the number of the
// list, the length of a range, and the range. All frontends with equal ranges share one list.
type List struct {
	Number uint32         // 0 before the first write
	Ranges []netip.Prefix // as returned by [Of]

	content string
	refs    int32 // frontends that it restricts

	written    bool  // its elements are in the kernel, or in the present batch
	replaces   *List // for a new list: the previous list of its first frontend
	replacedBy *List // the new list that takes over its number, and their common elements
	touched    bool
}

// A list's number leaves its lowest eight bits to the length of a range.
const (
	lengthBits = 8
	MaxLists   = 1<<(32-lengthBits) - 1
)

// Key returns the number that frontends have for a list; 0 for nil.
func (l *List) Key() uint32 {
	if l == nil {
		return 0
	}
	return l.Number << lengthBits
}

// NumberOf returns the number of a list from a frontend's Key, or from the beginning of a range's
// key.
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

// Lists are the source range lists of a table.
type Lists struct {
	ByContent map[string]*List
	ByNumber  map[uint32]*List
	last      uint32 // the last number assigned
}

// NewLists returns empty Lists.
func NewLists() *Lists { return &Lists{ByContent: map[string]*List{}, ByNumber: map[uint32]*List{}} }

// content returns a string that equal lists share.
func content(sources []netip.Prefix) string {
	b := make([]byte, 0, len(sources)*17)
	for _, p := range sources {
		b = binary.BigEndian.AppendUint16(wire.AppendAddr(b, p.Addr()), uint16(p.Bits()))
	}
	return string(b)
}

// Change is a batch's changes of lists.
type Change struct {
	// Edits are the lists whose elements the batch changes; valid after Finish.
	Edits []Edit

	lists       *Lists
	log         *rollback.Log
	touched     []*List
	lastSources []netip.Prefix // the sources of lastList
	lastList    *List
}

// Edit is a list with its old and new ranges.
type Edit struct {
	*List
	Was, Now []netip.Prefix
}

// Change starts a batch. The log can undo it; nil for a state built from scratch.
func (ls *Lists) Change(log *rollback.Log) *Change { return &Change{lists: ls, log: log} }

// Swap replaces a frontend's old list by the list for these sources, which is nil without sources.
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

// of finds or creates the list of these sources. The frontends of a Service share their slice, so
// the last result is cached.
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

// Finish computes the batch's changes of lists, after all frontends are known. A list that replaces
// another, for example because a range was added, gets its number. So only the difference is
// written, and nothing for the frontends.
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

// write assigns a number to a new list, and records its elements, or their difference from those of
// the list that it replaces.
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

// remove deletes a list without frontends.
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

// free returns an unused number.
func (ls *Lists) free() uint32 {
	for {
		ls.last = ls.last%MaxLists + 1
		if ls.ByNumber[ls.last] == nil {
			return ls.last
		}
	}
}

// Adopt assigns lists the numbers by which the kernel's frontends already refer to them: first to
// lists whose ranges the kernel has under the number, then to all. claims are the kernel's list
// keys of frontends, each with that frontend's wanted sources; have are the keys of ranges, sorted.
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

// In reports whether the sorted keys of ranges contain a range of the list with that number.
func In(have diff.Records, number uint32, p netip.Prefix) (there bool) {
	have.Each(appendKey(nil, number, p), func([]byte) { there = true })
	return there
}
