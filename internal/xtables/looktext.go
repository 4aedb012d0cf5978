//go:build linux

package xtables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Packet is what rules see of a packet at one place of its way through a node.
type Packet struct {
	From, To netip.AddrPort
	Proto    lb.Proto
	// In and Out are the interfaces; "" if they are not known, or there is none.
	In, Out string
	Mark    uint32
	// FromHere and ToHere: the addresses are this node's.
	FromHere, ToHere bool
	// Masqueraded: it gets an address of this node as its source.
	Masqueraded bool
}

// Sets answers what rules ask of ipsets. by is what of a packet its member has, such as "dst,dst".
type Sets interface {
	// Knows reports whether the set of that name can be asked; no others are.
	Knows(set string) bool
	// Has reports whether a set has the packet's member.
	Has(set, by string, p Packet) (bool, error)
	// MarkOf returns the mark, and its mask, that the packet's member has; zeros if it has none, or is not there.
	MarkOf(set, by string, p Packet) (value, mask uint32, err error)
}

// Chains are those of a mode that keeps them with a [Keeper], as its Held returns them. A packet goes through them as [Looker.Follow] has it go
// through the kernel's; but rules of others are not there, and of the node's routes nothing is asked: the Packet has all.
type Chains struct {
	sets   Sets
	tell   func(line string)
	rules  map[ChainID][]string
	chains map[ChainID]*ChainState // that were asked for
}

// NewChains takes rules, and reads those that packets come to. tell gets a line for each rule that a packet meets, and for each that is not
// understood, which nobody meets.
func NewChains(rules []ChainRule, sets Sets, tell func(line string)) *Chains {
	c := &Chains{sets, tell, map[ChainID][]string{}, map[ChainID]*ChainState{}}
	for _, r := range rules {
		if t, known := TableNamed(r.Table); known {
			id := ChainID{t, r.Chain}
			c.rules[id] = append(c.rules[id], r.Rule)
		}
	}
	return c
}

// Pass has a packet go through a chain of a table, which changes it, and says what comes of that: Drop, Reject, or Pass for what goes on
// behind the chain. An error is of a set.
func (c *Chains) Pass(ctx context.Context, table, chain string, p *Packet) (trace.Verdict, error) {
	t, known := TableNamed(table)
	if !known {
		return "", fmt.Errorf("there is no table %s of iptables", table)
	}
	w := &walk{ctx: ctx, packet: trace.Packet{From: p.From, To: p.To, Proto: p.Proto}, holds: c, place: p, tell: c.tell, allOurs: true,
		read: map[ChainID]*ChainState{}, said: map[saying]bool{}}
	on := w.base(flows{flow{to: p.To, mark: p.Mark, masqueraded: p.Masqueraded}: 1}, ChainID{t, chain})
	if w.err != nil {
		return "", w.err
	}
	for f := range on { // it is one: nothing here goes by chance
		p.Mark, p.Masqueraded = f.mark, f.masqueraded
		return trace.Pass, nil
	}
	return w.ends[0].verdict, nil
}

// Chain reads a chain, nil if there is none.
func (c *Chains) Chain(id ChainID) (*ChainState, error) {
	if c.chains[id] == nil && len(c.rules[id]) > 0 {
		read := &ChainState{Hooked: true}
		for _, text := range c.rules[id] {
			read.Rules = append(read.Rules, c.readText(text))
		}
		c.chains[id] = read
	}
	return c.chains[id], nil
}

// A Packet is a place.

func (p *Packet) sourceHere(*walk) bool                                      { return p.FromHere }
func (p *Packet) here(*walk, netip.Addr) bool                                { return p.ToHere }
func (p *Packet) comesIn(*walk) (string, bool)                               { return p.In, true }
func (p *Packet) leaves(*walk, flow) (string, bool)                          { return p.Out, true }
func (p *Packet) Remembers(string, netip.Addr, uint32) (time.Duration, bool) { return 0, false }

// asOf is the packet as a flow is.
func (w *walk) asOf(f flow) Packet {
	p := *w.place.(*Packet)
	p.Mark, p.Masqueraded = f.mark, f.masqueraded
	return p
}

// readText reads a rule as iptables-save prints it.
func (c *Chains) readText(text string) Rule {
	b := &ruleBuilder{}
	left := Words(text)
	next := func() string {
		if len(left) == 0 {
			b.cannot("its end")
			return ""
		}
		word := left[0]
		left = left[1:]
		return word
	}
	prefix := func(of func(netip.Prefix, bool), no bool) {
		p, err := netip.ParsePrefix(next())
		if err != nil {
			b.cannot(err.Error())
			return
		}
		of(p, no)
	}
	mark := func() (value, mask uint32, ok bool) {
		word := next()
		value, mask, err := parseMark(word)
		if err != nil {
			b.cannot("mark " + word)
		}
		return value, mask, err == nil
	}
	set := func() (name, by string) {
		if name, by = next(), next(); !c.sets.Knows(name) {
			b.cannot("ipset " + name)
		}
		return name, by
	}
	no := false
	for len(left) > 0 {
		word := next()
		if word == "!" {
			no = true
			continue
		}
		switch word {
		case "-m", "--comment", "--reject-with":
			next()
		case "--random-fully", "--map-mark":
		case "-p":
			name := next()
			if n, known := protoNamed(name); known {
				b.protocol(n, no)
			} else {
				b.cannot("protocol " + name)
			}
		case "-s":
			prefix(b.source, no)
		case "-d":
			prefix(b.destination, no)
		case "-i", "-o":
			name, begins := strings.CutSuffix(next(), "+")
			b.through(word == "-i", name, begins, no)
		case "--ctstate":
			b.statesNamed(strings.Split(next(), ","), no)
		case "--mark":
			if value, mask, ok := mark(); ok {
				b.marked(value, mask, no)
			}
		case "--src-type", "--dst-type":
			if kind := next(); kind != "LOCAL" {
				b.cannot("type " + kind)
			} else if word == "--src-type" {
				b.addrtype(typeLocal, 0, no, false)
			} else {
				b.addrtype(0, typeLocal, false, no)
			}
		case "--match-set":
			name, by := set()
			b.has("set", "", c.in(name, by, no))
		case "-j", "-g":
			b.targets(next(), word == "-g")
		case "--set-xmark":
			b.do.mark, b.do.mask, _ = mark()
		case "--map-set":
			name, by := set()
			b.do.markOf = func(w *walk, f flow) (value, mask uint32) {
				value, mask, err := c.sets.MarkOf(name, by, w.asOf(f))
				w.fail(err)
				return value, mask
			}
		default:
			b.cannot(word)
		}
		no = false
	}
	return b.said(text)
}

// protoNamed returns the number of a protocol.
func protoNamed(name string) (number uint8, known bool) {
	for n, is := range protoNames {
		if is == name {
			return n, true
		}
	}
	n, err := strconv.ParseUint(name, 10, 8)
	return uint8(n), err == nil
}

// in has packets whose member a set has, or has not.
func (c *Chains) in(set, by string, no bool) condition {
	return func(w *walk, f flow) float64 {
		if !c.sets.Knows(set) {
			return untold
		}
		has, err := c.sets.Has(set, by, w.asOf(f))
		w.fail(err)
		return yesOrNo(has != no)
	}
}

// targets gives the rule a target, or a chain, by its name.
func (b *ruleBuilder) targets(name string, final bool) {
	switch name {
	case "RETURN":
		b.returns()
	case "ACCEPT", "DROP":
		b.ends(name == "ACCEPT")
	case "REJECT":
		b.do = verdict{do: reject}
	case "MASQUERADE":
		b.do = verdict{do: masquerade}
	case "MARK", "SET":
		b.do = verdict{do: setMark}
	default:
		b.leads(name, final)
	}
}

// statesNamed adds the match of states of connections by their names.
func (b *ruleBuilder) statesNamed(names []string, no bool) {
	var states uint16
	for _, name := range names {
		at := slices.IndexFunc(ctStates, func(s ctState) bool { return s.name == name })
		if at < 0 {
			b.cannot("state " + name)
			return
		}
		states |= ctStates[at].bit
	}
	b.states(states, no)
}

// parseMark reads a mark with its mask; without one that has all bits.
func parseMark(text string) (value, mask uint32, err error) {
	first, second, masked := strings.Cut(text, "/")
	v, err := strconv.ParseUint(first, 0, 32)
	m := uint64(1<<32 - 1)
	if err == nil && masked {
		m, err = strconv.ParseUint(second, 0, 32)
	}
	return uint32(v), uint32(m), err
}
