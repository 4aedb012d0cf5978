//go:build linux

package xtables

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
)

// LeafSize is the number of entries that a chain holds before it becomes a node of a tree. The
// kernel walks a few dozen rules about as fast as the levels of a tree.
const LeafSize = 32

// A child with more than 1/heavy of a node's entries has no chain: the node jumps to that child's
// children itself. So each level of a tree has at most a quarter of the entries of the level above,
// whatever addresses tenants choose. nf_tables refuses a rule from which a packet could jump 16
// times (NFT_JUMP_STACK_SIZE, EMLINK).
const heavy = 4

// A Dispatcher is a chain that finds the rules of a frontend. With few frontends it is a list, as
// upstream's. With many it is a tree: the chain jumps by the next four bits of the destination to
// sub-chains, and so on. The bits are those of the address, then the protocol, then the port, so
// that an address with a thousand ports is split too. A chain takes more bits at a time where most
// of its entries share them (see heavy).
//
// The tree depends only on the entries. They are sorted, a chain of the tree is a range of them,
// and the first and last of a range determine where it is split. So every order of changes makes
// the tree of a fresh start.
type Dispatcher struct {
	Table  Table
	Root   string
	Prefix string // of sub-chains' names
	// Head and tail are the first rules of the chain, if it has entries, and the last.
	Head, Tail []string
	Family     lb.Family
	// Ports is set if keys have no address, as for NodePorts.
	Ports bool

	entries []Entry // sorted by path
	Nodes   map[string]*Node
}

// Fill sets the entries of an empty dispatcher.
func (d *Dispatcher) Fill(entries []Entry) {
	d.Nodes = map[string]*Node{"": {}}
	d.Set(entries)
}

// split divides a path into the nibbles of the address and the rest.
func (d *Dispatcher) split(path string) (addr, rest string) {
	n := 8
	switch {
	case d.Ports:
		n = 0
	case d.Family == lb.IPv6:
		n = 32
	}
	n = min(n, len(path))
	return path[:n], path[n:]
}

// address returns the address that begins with nibbles; not valid without any.
func (d *Dispatcher) address(nibbles string) netip.Addr {
	if nibbles == "" {
		return netip.Addr{}
	}
	var b [16]byte
	for i := range len(nibbles) {
		b[i/2] |= nibbles[i] << (4 * (1 - i%2))
	}
	if d.Family == lb.IPv6 {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[:]))
}

// Entry is one frontend.
type Entry struct {
	Path  string // nibbles, each a byte
	Rules []string
}

// Node is a chain of the tree; its key in the map is its path.
type Node struct {
	Parent   string
	Children []string // nil in a leaf
}

// protocols are by their nibble.
var protocols = []lb.Proto{lb.TCP, lb.UDP, lb.SCTP}

// PathOf returns the path of a key.
func PathOf(k lb.Key) string {
	var b []byte
	if k.Addr.IsValid() {
		for _, octet := range k.Addr.AsSlice() {
			b = append(b, octet>>4, octet&15)
		}
	}
	b = append(b, byte(slices.Index(protocols, k.Proto)))
	for shift := 12; shift >= 0; shift -= 4 {
		b = append(b, byte(k.Port>>shift)&15)
	}
	return string(b)
}

func comparePath(e Entry, p string) int { return cmp.Compare(e.Path, p) }

// Set replaces entries, each once; one without rules is deleted. It returns the changes that undo
// this, the paths of nodes to write, leaves first, and those of deleted nodes.
func (d *Dispatcher) Set(changes []Entry) (undo []Entry, write, drop []string) {
	byPath := func(a, b Entry) int { return comparePath(a, b.Path) }
	paths := make([]string, 0, len(changes))
	for _, c := range slices.SortedFunc(slices.Values(changes), byPath) { // so that an empty list grows at its end
		paths = append(paths, c.Path)
		i, found := slices.BinarySearchFunc(d.entries, c.Path, comparePath)
		switch {
		case found && len(c.Rules) == 0:
			undo = append(undo, d.entries[i])
			d.entries = slices.Delete(d.entries, i, i+1)
		case found:
			undo = append(undo, d.entries[i])
			d.entries[i] = c
		case len(c.Rules) > 0:
			undo = append(undo, Entry{Path: c.Path})
			d.entries = slices.Insert(d.entries, i, c)
		}
	}
	write, drop = d.update(paths)
	return undo, write, drop
}

// update updates the tree after the entries of these sorted paths were set. It returns the paths of
// nodes to write and of deleted ones, as Set does.
func (d *Dispatcher) update(paths []string) (write, drop []string) {
	if len(paths) == 0 {
		return nil, nil
	}
	var candidates []string
	d.visit("", "", 0, len(d.entries), paths, &write, &candidates)
	for len(candidates) > 0 {
		c := candidates[len(candidates)-1]
		candidates = candidates[:len(candidates)-1]
		n := d.Nodes[c]
		if n == nil {
			continue
		}
		if p := d.Nodes[n.Parent]; p != nil && slices.Contains(p.Children, c) {
			continue
		}
		delete(d.Nodes, c)
		drop = append(drop, c)
		candidates = append(candidates, n.Children...)
	}
	slices.Sort(drop)
	slices.Reverse(drop)
	return write, drop
}

// visit updates one node, whose entries are those from lo to hi.
func (d *Dispatcher) visit(at, parent string, lo, hi int, paths []string, write, candidates *[]string) {
	old := d.Nodes[at]
	now := &Node{Parent: parent}
	d.Nodes[at] = now
	if hi-lo > LeafSize {
		for _, b := range d.branches(lo, hi, max(LeafSize, (hi-lo)/heavy)) {
			now.Children = append(now.Children, b.path)
			inside := within(paths, b.path)
			if known := d.Nodes[b.path]; known == nil || len(inside) > 0 {
				d.visit(b.path, at, b.lo, b.hi, inside, write, candidates)
			} else {
				known.Parent = at
			}
		}
	}
	if old != nil {
		*candidates = append(*candidates, old.Children...)
		if old.Children != nil && slices.Equal(old.Children, now.Children) {
			return
		}
	}
	*write = append(*write, at)
}

// branch is the range of the entries from lo to hi, which share the path.
type branch struct {
	path   string
	lo, hi int
}

// branches returns the parts of the entries from lo to hi, divided by the first nibble that
// differs, in order. A part of more than most entries is divided again.
func (d *Dispatcher) branches(lo, hi, most int) (all []branch) {
	first, last := d.entries[lo].Path, d.entries[hi-1].Path
	common := 0
	for first[common] == last[common] {
		common++
	}
	for i := lo; i < hi; {
		b := branch{path: d.entries[i].Path[:common+1], lo: i}
		b.hi = i + d.count(i, hi, b.path)
		i = b.hi
		if b.hi-b.lo > most {
			all = append(all, d.branches(b.lo, b.hi, most)...)
		} else {
			all = append(all, b)
		}
	}
	return all
}

// count returns the number of entries from lo on that begin with the prefix.
func (d *Dispatcher) count(lo, hi int, prefix string) int {
	n, _ := slices.BinarySearchFunc(d.entries[lo:hi], prefix, func(e Entry, p string) int {
		if strings.HasPrefix(e.Path, p) {
			return -1
		}
		return cmp.Compare(e.Path, p)
	})
	return n
}

// within returns the sorted paths that begin with the prefix.
func within(paths []string, prefix string) []string {
	lo, _ := slices.BinarySearch(paths, prefix)
	hi := lo
	for hi < len(paths) && strings.HasPrefix(paths[hi], prefix) {
		hi++
	}
	return paths[lo:hi]
}

// Name returns the name of the chain of a node: the prefix and the nibbles in hexadecimal, or a
// hash of them if they exceed the 28 characters of a name.
func (d *Dispatcher) Name(at string) string {
	if at == "" {
		return d.Root
	}
	var b strings.Builder
	b.WriteString(d.Prefix)
	for i := range len(at) {
		fmt.Fprintf(&b, "%X", at[i])
	}
	if b.Len() <= 28 {
		return b.String()
	}
	return d.Prefix + "H" + Hash(at)[:12]
}

// Chain returns the content of a node.
func (d *Dispatcher) Chain(at string) Chain {
	c := Chain{ID: ChainID{d.Table, d.Name(at)}}
	n := d.Nodes[at]
	if at == "" && len(d.entries)+len(d.Tail) > 0 {
		c.Rules = append(c.Rules, d.Head...)
	}
	for _, child := range n.Children {
		c.Rules = append(c.Rules, d.hop(child)+"-j "+d.Name(child))
	}
	if n.Children == nil {
		for _, e := range d.RangeOf(at) {
			c.Rules = append(c.Rules, e.Rules...)
		}
	}
	if at == "" {
		c.Rules = append(c.Rules, d.Tail...)
	}
	return c
}

// Wanted yields the chains of all nodes.
func (d *Dispatcher) Wanted() iter.Seq[Wanted] {
	return func(yield func(Wanted) bool) {
		for _, at := range d.Upwards("") {
			if !yield(Wanted{Chain: d.Chain(at), Key: func(rule string) lb.Key { return d.keyOf(at, rule) }}) {
				return
			}
		}
	}
}

// keyOf returns the frontend key of a node's rule; the zero Key for none.
func (d *Dispatcher) keyOf(at, rule string) lb.Key {
	if d.Nodes[at].Children != nil {
		return lb.Key{}
	}
	for _, e := range d.RangeOf(at) {
		if slices.Contains(e.Rules, rule) {
			return d.Key(e.Path)
		}
	}
	if k, ok := MatchedKey(rule, func(string, string) {}); ok { // of a deleted entry
		return k
	}
	return lb.Key{}
}

// RangeOf returns the entries below a node.
func (d *Dispatcher) RangeOf(at string) []Entry {
	lo, _ := slices.BinarySearchFunc(d.entries, at, comparePath)
	return d.entries[lo : lo+d.count(lo, len(d.entries), at)]
}

// LeafOf returns the leaf that holds a path's entry.
func (d *Dispatcher) LeafOf(path string) string {
	at := ""
	for d.Nodes[at].Children != nil {
		at = d.Nodes[at].ChildOf(path)
	}
	return at
}

// ChildOf returns the child above a path's entry. The children are sorted, and none is a prefix of
// another.
func (n *Node) ChildOf(path string) string {
	i, found := slices.BinarySearch(n.Children, path)
	if !found {
		i--
	}
	return n.Children[i]
}

// Upwards returns a node and those below it, each after its children.
func (d *Dispatcher) Upwards(at string) (all []string) {
	for _, child := range d.Nodes[at].Children {
		all = append(all, d.Upwards(child)...)
	}
	return append(all, at)
}

// hop matches the destinations that begin with a path.
func (d *Dispatcher) hop(p string) string {
	addr, rest := d.split(p)
	s := ""
	if len(addr) > 0 {
		s = "-d " + netip.PrefixFrom(d.address(addr), 4*len(addr)).String() + " "
	}
	if rest == "" {
		return s
	}
	proto := protocols[rest[0]]
	s += "-p " + proto.String() + " "
	if len(rest) == 1 {
		return s
	}
	low := 0
	for i := range 4 {
		low *= 16
		if i+1 < len(rest) {
			low += int(rest[i+1])
		}
	}
	high := low + 1<<(4*(5-len(rest))) - 1
	if low == high {
		return s + fmt.Sprintf("-m %s --dport %d ", proto, low)
	}
	return s + fmt.Sprintf("-m %s --dport %d:%d ", proto, low, high)
}

// Key returns the key of a path.
func (d *Dispatcher) Key(path string) (k lb.Key) {
	addr, rest := d.split(path)
	k.Addr, k.Proto = d.address(addr), protocols[rest[0]]
	for _, nibble := range []byte(rest[1:]) {
		k.Port = k.Port<<4 | uint16(nibble)
	}
	return k
}
