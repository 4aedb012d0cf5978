package xtables

import (
	"net/netip"

	"kube-proxy/lb"
)

// Packet has the properties that rules match at one place of its path.
type Packet struct {
	From, To netip.AddrPort
	Proto    lb.Proto
	// In and Out are the interfaces; "" if unknown, or without one.
	In, Out string
	Mark    uint32
	// FromHere and ToHere: the addresses are this node's.
	FromHere, ToHere bool
	// Masqueraded: it gets an address of this node as its source.
	Masqueraded bool
}

// ChainRule is a rule with the name of its chain.
type ChainRule struct{ Table, Chain, Rule string }

// Sets answers matches on ipsets. by selects the packet's fields, such as "dst,dst".
type Sets interface {
	// Knows reports whether the set of that name can be queried; no others are.
	Knows(set string) bool
	// Has reports whether a set has the packet's member.
	Has(set, by string, p Packet) (bool, error)
	// Marks reports whether MarkOf can find the marks of a set that can be queried.
	Marks(set string) bool
	// MarkOf returns the mark and mask of the packet's member; zeros without one.
	MarkOf(set, by string, p Packet) (value, mask uint32, err error)
}

// Visit is a packet at a chain of a mode's own rules, for a trace. Rules of other programs do not
// count, and the Packet answers for the node's routes.
type Visit struct {
	Rules        []ChainRule
	Sets         Sets
	Table, Chain string
	// Packet is changed as the rules say.
	Packet *Packet
	// Report is called with a line for each rule that the packet matches, and for each unknown one,
	// which counts as not matching.
	Report func(line string)
}
