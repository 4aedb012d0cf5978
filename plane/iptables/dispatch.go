//go:build linux

package iptables

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
)

// leafSize is how many rows a chain holds before it becomes a node of a tree: a few dozen rules are walked about
// as fast as the levels of a tree.
const leafSize = 32

// A child with more than one of heavy parts of a node's rows has no chain: the node leads to that child's children itself.
// Each level of a tree then has at most a quarter of the rows of the level above, whatever addresses tenants choose, because
// nf_tables refuses a rule from which a packet could jump 16 times (NFT_JUMP_STACK_SIZE, EMLINK).
const heavy = 4

// A dispatcher is a chain that finds the rules of a row. With few rows it is a list, as upstream's. With many it
// is a tree: the chain leads by the next four bits of the destination to sub-chains, and so on. The bits are those of
// the address, then the protocol, then the port, so that also an address with a thousand ports is split. A chain takes
// more bits at a time where most of its rows share them (see heavy).
//
// The tree is a function of the rows alone: rows are kept sorted, a chain of the tree is a range of them, and where
// to split follows from the first and the last. So no order of changes gives another tree than a fresh start.
type dispatcher struct {
	table  table
	root   string
	prefix string // of sub-chains' names
	// head and tail are the first rules of the chain, if it has others, and the last.
	head, tail []string
	// addrNibbles is the length of an address; 0 for NodePorts.
	addrNibbles int
	family      lb.Family

	entries []entry // sorted by path
	nodes   map[string]*node
}

// entry is one row.
type entry struct {
	path  string // nibbles, each a byte
	rules []string
}

// node is a chain of the tree; its name in the map is the path that leads to it.
type node struct {
	parent   string
	children []string // nil in a leaf
}

var protoNibble = map[lb.Proto]byte{lb.TCP: 0, lb.UDP: 1, lb.SCTP: 2}

// path is the way to a key.
func path(k lb.Key) string {
	var b []byte
	if k.Addr.IsValid() {
		for _, octet := range k.Addr.AsSlice() {
			b = append(b, octet>>4, octet&15)
		}
	}
	b = append(b, protoNibble[k.Proto])
	for shift := 12; shift >= 0; shift -= 4 {
		b = append(b, byte(k.Port>>shift)&15)
	}
	return string(b)
}

func comparePath(e entry, p string) int { return cmp.Compare(e.path, p) }

// set makes entries those of the keys given, in which no rules mean no entry, and returns how to undo that.
func (d *dispatcher) set(changes []entry) (undo []entry) {
	if len(d.entries) == 0 && len(changes) > leafSize { // the first rows: sorted at once
		for _, c := range changes {
			undo = append(undo, entry{path: c.path})
			if len(c.rules) > 0 {
				d.entries = append(d.entries, c)
			}
		}
		slices.SortFunc(d.entries, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
		return undo
	}
	for _, c := range changes {
		i, found := slices.BinarySearchFunc(d.entries, c.path, comparePath)
		switch {
		case found && len(c.rules) == 0:
			undo = append(undo, d.entries[i])
			d.entries = slices.Delete(d.entries, i, i+1)
		case found:
			undo = append(undo, d.entries[i])
			d.entries[i] = c
		case len(c.rules) > 0:
			undo = append(undo, entry{path: c.path})
			d.entries = slices.Insert(d.entries, i, c)
		}
	}
	return undo
}

// update brings the tree up to date after the entries of those paths, sorted, were set. It returns the paths of
// nodes that may need to be written, from the leaves up, and of those that are no more.
func (d *dispatcher) update(paths []string) (write, drop []string) {
	if len(paths) == 0 {
		return nil, nil
	}
	var candidates []string
	d.visit("", "", 0, len(d.entries), paths, &write, &candidates)
	for len(candidates) > 0 {
		c := candidates[len(candidates)-1]
		candidates = candidates[:len(candidates)-1]
		n := d.nodes[c]
		if n == nil {
			continue
		}
		if p := d.nodes[n.parent]; p != nil && slices.Contains(p.children, c) {
			continue
		}
		delete(d.nodes, c)
		drop = append(drop, c)
		candidates = append(candidates, n.children...)
	}
	slices.Sort(drop)
	slices.Reverse(drop)
	return write, slices.DeleteFunc(slices.Compact(drop), func(p string) bool { return d.nodes[p] != nil })
}

// visit brings one node up to date, whose entries are those from lo to hi.
func (d *dispatcher) visit(at, parent string, lo, hi int, paths []string, write, candidates *[]string) {
	old := d.nodes[at]
	now := &node{parent: parent}
	d.nodes[at] = now
	if hi-lo > leafSize {
		for b := range d.branches(lo, hi, max(leafSize, (hi-lo)/heavy)) {
			now.children = append(now.children, b.path)
			inside := within(paths, b.path)
			if known := d.nodes[b.path]; known == nil || len(inside) > 0 {
				d.visit(b.path, at, b.lo, b.hi, inside, write, candidates)
			} else {
				known.parent = at
			}
		}
	}
	if old != nil {
		*candidates = append(*candidates, old.children...)
		if old.children != nil && slices.Equal(old.children, now.children) {
			return
		}
	}
	*write = append(*write, at)
}

// branch is a part of the entries, those from lo to hi: they share the path.
type branch struct {
	path   string
	lo, hi int
}

// branches yields the parts into which the entries from lo to hi fall by the first nibble that they do not share, in order.
// A part of more than most entries is divided again.
func (d *dispatcher) branches(lo, hi, most int) iter.Seq[branch] {
	return func(yield func(branch) bool) { d.divide(lo, hi, most, yield) }
}

func (d *dispatcher) divide(lo, hi, most int, yield func(branch) bool) bool {
	first, last := d.entries[lo].path, d.entries[hi-1].path
	common := 0
	for first[common] == last[common] {
		common++
	}
	for i := lo; i < hi; {
		b := branch{path: d.entries[i].path[:common+1], lo: i}
		b.hi = i + d.count(i, hi, b.path)
		switch i = b.hi; {
		case b.hi-b.lo > most:
			if !d.divide(b.lo, b.hi, most, yield) {
				return false
			}
		case !yield(b):
			return false
		}
	}
	return true
}

// count returns how many entries from lo on begin with the prefix.
func (d *dispatcher) count(lo, hi int, prefix string) int {
	n, _ := slices.BinarySearchFunc(d.entries[lo:hi], prefix, func(e entry, p string) int {
		if strings.HasPrefix(e.path, p) {
			return -1
		}
		return cmp.Compare(e.path, p)
	})
	return n
}

// within returns those of the sorted paths that begin with the prefix.
func within(paths []string, prefix string) []string {
	lo, _ := slices.BinarySearch(paths, prefix)
	hi := lo
	for hi < len(paths) && strings.HasPrefix(paths[hi], prefix) {
		hi++
	}
	return paths[lo:hi]
}

// name returns the name of the chain of a node: the prefix and the nibbles in hexadecimal or, where those do not
// fit in the 28 characters of a name, a hash of them.
func (d *dispatcher) name(at string) string {
	if at == "" {
		return d.root
	}
	var b strings.Builder
	b.WriteString(d.prefix)
	for i := range len(at) {
		fmt.Fprintf(&b, "%X", at[i])
	}
	if b.Len() <= 28 {
		return b.String()
	}
	return d.prefix + "H" + hash(at)[:12]
}

// chain returns the content of a node.
func (d *dispatcher) chain(at string) chain {
	c := chain{id: chainID{d.table, d.name(at)}}
	n := d.nodes[at]
	if at == "" && len(d.entries)+len(d.tail) > 0 {
		c.rules = append(c.rules, d.head...)
	}
	for _, child := range n.children {
		c.rules = append(c.rules, d.hop(child)+"-j "+d.name(child))
	}
	if n.children == nil {
		for _, e := range d.rangeOf(at) {
			c.rules = append(c.rules, e.rules...)
		}
	}
	if at == "" {
		c.rules = append(c.rules, d.tail...)
	}
	return c
}

// rangeOf returns the entries below a node.
func (d *dispatcher) rangeOf(at string) []entry {
	lo, _ := slices.BinarySearchFunc(d.entries, at, comparePath)
	return d.entries[lo : lo+d.count(lo, len(d.entries), at)]
}

// leafOf returns the leaf where a path's entry is.
func (d *dispatcher) leafOf(path string) string {
	at := ""
	for d.nodes[at].children != nil {
		at = d.nodes[at].childOf(path)
	}
	return at
}

// childOf returns the child below which a path's entry is. The children are sorted, and none begins another.
func (n *node) childOf(path string) string {
	i, found := slices.BinarySearch(n.children, path)
	if !found {
		i--
	}
	return n.children[i]
}

// upwards yields the nodes, each after its children.
func (d *dispatcher) upwards() iter.Seq[string] {
	var visit func(at string, yield func(string) bool) bool
	visit = func(at string, yield func(string) bool) bool {
		for _, child := range d.nodes[at].children {
			if !visit(child, yield) {
				return false
			}
		}
		return yield(at)
	}
	return func(yield func(string) bool) { visit("", yield) }
}

// hop matches the destinations of which a path is the beginning.
func (d *dispatcher) hop(p string) string {
	addr, rest := p[:min(len(p), d.addrNibbles)], p[min(len(p), d.addrNibbles):]
	s := ""
	if len(addr) > 0 {
		octets := make([]byte, d.addrNibbles/2)
		for i := range len(addr) {
			octets[i/2] |= addr[i] << (4 * (1 - i%2))
		}
		a, _ := netip.AddrFromSlice(octets)
		s = "-d " + netip.PrefixFrom(a, 4*len(addr)).String() + " "
	}
	if rest == "" {
		return s
	}
	proto := lb.TCP
	for p, n := range protoNibble {
		if n == rest[0] {
			proto = p
		}
	}
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

// key is the key of which a path is the way.
func (d *dispatcher) key(path string) (k lb.Key) {
	addr, rest := path[:d.addrNibbles], path[d.addrNibbles:]
	octets := make([]byte, len(addr)/2)
	for i := range len(addr) {
		octets[i/2] |= addr[i] << (4 * (1 - i%2))
	}
	k.Addr, _ = netip.AddrFromSlice(octets)
	for p, n := range protoNibble {
		if n == rest[0] {
			k.Proto = p
		}
	}
	for _, nibble := range []byte(rest[1:]) {
		k.Port = k.Port<<4 | uint16(nibble)
	}
	return k
}

func pathsOf(entries []entry) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.path
	}
	slices.Sort(out)
	return out
}
