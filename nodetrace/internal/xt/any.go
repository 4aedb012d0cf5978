//go:build linux

package xt

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kube-proxy/internal/xtables"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/trace"
)

// Any judges rules of any program, for a packet at one place of its way. Where it does not
// understand a rule, it follows both ways, one of them doubtful ([follow.Flow.Doubt]).
type Any struct {
	w    walker
	sets Sets
	read map[*follow.Rule]*rule
}

// Place is the packet's place, with the properties that rules match there.
type Place struct {
	// Packet has the packet's source and protocol, and the original destination.
	Packet trace.Packet
	// In and Out are the interfaces; "" for none.
	In, Out string
	Conn    Conn
}

// Conn is the connection of a packet. State is the name of its state as iptables has it.
type Conn struct {
	State             string
	Reply, DNAT, SNAT bool
	// Known: conntrack has an entry for the packet.
	Known bool
	// From and To are the tuple of the original direction.
	From, To netip.AddrPort
	// Error: the packet reports an error of the connection; of TCP, it is a reset.
	Error bool
	// Acknowledged: the packet is not the first one of its direction.
	Acknowledged bool
	Node         Node
}

// Node answers the queries of matches about the node.
type Node interface {
	AddressType(a netip.Addr) (uint32, error)
	LinkTo(a netip.Addr) (index uint32, name string, err error)
	// LinkOf returns the device that has an address of the node; "" for other addresses.
	LinkOf(a netip.Addr) (name string, err error)
}

// NewAny returns a judge. sets may be nil.
func NewAny(sets Sets) *Any { return &Any{sets: sets, read: map[*follow.Rule]*rule{}} }

// Knows reports whether the rule was applied before, so that its text is final.
func (a *Any) Knows(r *follow.Rule) bool { return a.read[r] != nil }

// At sets the place of the packet.
func (a *Any) At(ctx context.Context, p Place) {
	a.w = walker{ctx: ctx, packet: p.Packet, route: p, sets: a.sets, conn: p.Conn, source: p.Packet.From,
		any: true, sent: p.In == "", allOurs: true, said: a.w.said}
}

// Meet applies a rule to flows, as follow.Chain has it. The text of the rule is that of iptables.
func (a *Any) Meet(as *follow.Rule, flows []follow.Flow) (met []follow.Met, rest []follow.Flow, err error) {
	r := a.read[as]
	if r == nil {
		one := (&reader{sets: a.sets, any: anyOptions}).read(as.Text)
		r, a.read[as] = &one, &one
	}
	a.w.as = as
	return a.w.meet(xtables.ChainID{Name: as.Chain}, r, flows)
}

// Lines returns lines about rules that packets met, and forgets them.
func (a *Any) Lines() []string {
	lines := a.w.said.Lines
	a.w.said = follow.Said{}
	return lines
}

// A Place is a route.

func (p Place) here(w *walker, a netip.Addr) bool {
	kind, err := p.Conn.Node.AddressType(a)
	w.fail(err)
	return addressTypes[kind] == "LOCAL"
}

func (p Place) comesIn(*walker) (string, bool)            { return p.In, true }
func (p Place) leaves(*walker, netip.Addr) (string, bool) { return p.Out, true }

// anyMatches are matches with options in anyOptions.
var anyMatches = map[string]bool{"multiport": true, "iprange": true, "connmark": true, "icmp": true, "icmp6": true,
	"ttl": true, "hl": true, "dscp": true, "tos": true}

// anyOptions read conditions that rules of kube-proxy do not have.
var anyOptions = map[string]func(b *reader, no bool){
	"-f":                  func(b *reader, no bool) { b.is(no, func(*walker, follow.Flow) bool { return false }) },
	"multiport --dports":  func(b *reader, no bool) { b.multiport(no, false, true) },
	"multiport --sports":  func(b *reader, no bool) { b.multiport(no, true, false) },
	"multiport --ports":   func(b *reader, no bool) { b.multiport(no, true, true) },
	"iprange --src-range": func(b *reader, no bool) { b.addressRange(no, (*walker).sender) },
	"iprange --dst-range": func(b *reader, no bool) { b.addressRange(no, (*walker).receiver) },
	"icmp --icmp-type":    icmpType,
	"icmp6 --icmpv6-type": icmpType,
	"tcp --tcp-flags":     tcpFlags,
	"ttl --ttl-eq":        func(b *reader, no bool) { b.hops(func(ttl, n byte) bool { return ttl == n != no }) },
	"ttl --ttl-lt":        func(b *reader, no bool) { b.hops(func(ttl, n byte) bool { return ttl < n != no }) },
	"ttl --ttl-gt":        func(b *reader, no bool) { b.hops(func(ttl, n byte) bool { return ttl > n != no }) },
	"hl --hl-eq":          func(b *reader, no bool) { b.hops(func(ttl, n byte) bool { return ttl == n != no }) },
	"hl --hl-lt":          func(b *reader, no bool) { b.hops(func(ttl, n byte) bool { return ttl < n != no }) },
	"hl --hl-gt":          func(b *reader, no bool) { b.hops(func(ttl, n byte) bool { return ttl > n != no }) },
	"dscp --dscp": func(b *reader, no bool) {
		if n, ok := b.octet(); ok {
			b.is(no, func(_ *walker, f follow.Flow) bool { return f.TOS>>2 == n })
		}
	},
	"tos --tos": func(b *reader, no bool) {
		if value, mask, ok := b.mark(); ok {
			if mask == 1<<32-1 {
				mask = 0xff
			}
			b.is(no, func(_ *walker, f follow.Flow) bool { return uint32(f.TOS)&mask == value })
		}
	},
	"connmark --mark": func(b *reader, no bool) {
		if value, mask, ok := b.mark(); ok {
			b.known(no, func(_ *walker, f follow.Flow) bool { return f.ConnMark&mask == value })
		}
	},
	"conntrack --ctorigsrc": func(b *reader, no bool) { b.original(no, func(c Conn) netip.AddrPort { return c.From }) },
	"conntrack --ctorigdst": func(b *reader, no bool) { b.original(no, func(c Conn) netip.AddrPort { return c.To }) },
	"conntrack --ctorigdstport": func(b *reader, no bool) {
		if low, high, ok := b.portRange(); ok {
			is := func(port uint16) bool { return low <= port && port <= high }
			b.known(no, func(w *walker, _ follow.Flow) bool { return is(w.conn.To.Port()) })
		}
	},
}

// octet reads a number of eight bits.
func (b *reader) octet() (byte, bool) {
	word := b.next()
	n, err := strconv.ParseUint(word, 0, 8)
	return byte(n), b.check("number "+word, err)
}

// hops compares the hop limit with a number; it is unknown until a rule sets it.
func (b *reader) hops(is func(ttl, n byte) bool) {
	if n, ok := b.octet(); ok {
		b.meets(func(_ *walker, f follow.Flow) float64 {
			if f.TTL == 0 {
				return unreported
			}
			return yesOrNo(is(f.TTL, n))
		})
	}
}

// header reads a target that changes the TTL or the TOS of the packet.
func (b *reader) header(option, value string) bool {
	value, maskText, masked := strings.Cut(value, "/")
	n, err := strconv.ParseUint(value, 0, 8)
	mask := uint64(0xff)
	if err == nil && masked {
		mask, err = strconv.ParseUint(maskText, 0, 8)
	}
	set := func(do func(f *follow.Flow)) {
		b.do.change = func(_ *walker, f *follow.Flow) { do(f) }
	}
	switch option {
	case "--ttl-set", "--hl-set":
		set(func(f *follow.Flow) { f.TTL = byte(n) })
	case "--ttl-dec", "--hl-dec":
		set(func(f *follow.Flow) { f.TTL -= min(f.TTL, byte(n)) })
	case "--ttl-inc", "--hl-inc":
		set(func(f *follow.Flow) {
			if f.TTL != 0 {
				f.TTL = byte(min(uint64(f.TTL)+n, 255))
			}
		})
	case "--set-dscp":
		set(func(f *follow.Flow) { f.TOS = f.TOS&3 | byte(n)<<2 })
	case "--set-tos":
		set(func(f *follow.Flow) { f.TOS = f.TOS&^byte(mask) ^ byte(n) })
	default:
		return false
	}
	return b.check(option+" "+value, err)
}

// original reads a prefix, which the original direction of the connection must have at one end.
func (b *reader) original(no bool, end func(Conn) netip.AddrPort) {
	b.prefix(func(p netip.Prefix) {
		b.known(no, func(w *walker, _ follow.Flow) bool { return p.Contains(end(w.conn).Addr()) })
	})
}

// reverse reads the match rpfilter: the route back to the source uses the incoming interface.
func (b *reader) reverse() {
	invert, marked, loose := false, false, false
	for len(b.left) > 0 && strings.HasPrefix(b.left[0], "--") {
		switch word := b.next(); word {
		case "--invert":
			invert = true
		case "--validmark":
			marked = true
		case "--loose":
			loose = true
		default:
			b.cannot(word)
		}
	}
	b.meets(func(w *walker, f follow.Flow) float64 {
		in, _ := w.route.comesIn(w)
		_, name, err := w.conn.Node.LinkTo(w.from())
		if err != nil || marked && f.Mark != 0 {
			return unreported
		}
		return yesOrNo((in == "lo" || name == in || loose && name != "") != invert)
	})
}

// multiport reads a list of ports and ranges; one must be the packet's.
func (b *reader) multiport(no, source, destination bool) {
	list := b.next()
	var all [][2]uint16
	for _, word := range strings.Split(list, ",") {
		one := reader{left: []string{word}}
		low, high, ok := one.portRange()
		if !ok {
			b.cannot("ports " + list)
			return
		}
		all = append(all, [2]uint16{low, high})
	}
	b.meets(func(w *walker, f follow.Flow) float64 {
		var is []float64
		if destination {
			is = append(is, within(no, f.To.Port(), all...))
		}
		if source {
			is = append(is, within(no, w.packet.From.Port(), all...))
		}
		switch matched := yesOrNo(!no); {
		case slices.Contains(is, matched):
			return matched
		case slices.Contains(is, unreported):
			return unreported
		}
		return yesOrNo(no)
	})
}

func (b *reader) addressRange(no bool, of func(*walker, follow.Flow) netip.Addr) {
	word := b.next()
	first, last, _ := strings.Cut(word, "-")
	low, err := netip.ParseAddr(first)
	high, err2 := netip.ParseAddr(last)
	if b.check("addresses "+word, err) && b.check("addresses "+word, err2) {
		b.is(no, func(w *walker, f follow.Flow) bool {
			a := of(w, f)
			return low.Compare(a) <= 0 && a.Compare(high) <= 0
		})
	}
}

// icmpType reads a type of ICMP, with or without a code. A packet has them as its destination
// port.
func icmpType(b *reader, no bool) {
	word := b.next()
	kind, code, coded := strings.Cut(word, "/")
	k, err := strconv.ParseUint(kind, 10, 8)
	c, err2 := uint64(0), error(nil)
	if coded {
		c, err2 = strconv.ParseUint(code, 10, 8)
	}
	if word == "any" {
		return
	}
	if b.check("type "+word, err) && b.check("type "+word, err2) {
		b.is(no, func(_ *walker, f follow.Flow) bool {
			port := f.To.Port()
			return port>>8 == uint16(k) && (!coded || port&0xff == uint16(c))
		})
	}
}

// tcpFlags reads which flags of TCP must be set: the first packet has SYN alone.
func tcpFlags(b *reader, no bool) {
	mask, set := strings.Split(b.next(), ","), strings.Split(b.next(), ",")
	for _, name := range slices.Concat(mask, set) {
		if !slices.Contains([]string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ALL", "NONE"}, name) {
			b.cannot("flag " + name)
			return
		}
	}
	b.is(no, func(w *walker, _ follow.Flow) bool {
		var want, have []string
		for _, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG"} {
			if !slices.Contains(mask, name) && !slices.Contains(mask, "ALL") {
				continue
			}
			if slices.Contains(set, name) || slices.Contains(set, "ALL") {
				want = append(want, name)
			}
			switch c := w.conn; {
			case name == "RST" && c.Error, name == "SYN" && !c.Error && !c.Acknowledged,
				name == "ACK" && (c.Error || c.Acknowledged || c.Reply):
				have = append(have, name)
			}
		}
		return slices.Equal(want, have)
	})
}

// anyMore holds targets that change nothing that the rules here match.
var anyMore = map[string]bool{"ECN": true, "SECMARK": true, "CONNSECMARK": true, "IDLETIMER": true, "RATEEST": true,
	"TEE": true}

// anyTarget reads a target that kube-proxy's rules do not use. It returns false for others.
func (b *reader) anyTarget(name string, words []string) bool {
	change := func(do func(w *walker, f *follow.Flow)) { b.do.change = do }
	first, second := "", ""
	if len(words) > 0 {
		first = words[0]
	}
	if len(words) > 1 {
		second = words[1]
	}
	switch {
	case anyMore[name]:
	case name == "TTL", name == "HL", name == "DSCP", name == "TOS":
		return b.header(first, second)
	case name == "NOTRACK", name == "CT" && first == "--notrack":
		change(func(w *walker, f *follow.Flow) {
			if !f.Untracked && w.conn.State == "INVALID" {
				f.Untracked, f.UntrackedBy = true, w.as
			}
		})
	case name == "CONNMARK" && first == "--set-xmark":
		b.left = []string{second}
		if value, mask, ok := b.mark(); ok {
			change(func(w *walker, f *follow.Flow) {
				if w.tracks(*f) {
					f.ConnMark = f.ConnMark&^mask ^ value
				}
			})
		}
	case name == "CONNMARK" && (first == "--save-mark" || first == "--restore-mark"):
		b.copyMark(first == "--save-mark", words[1:])
	case name == "SNAT" && first == "--to-source":
		to, err := netip.ParseAddrPort(second)
		if a, bare := netip.ParseAddr(second); bare == nil {
			to, err = netip.AddrPortFrom(a, 0), nil
		}
		b.check("source "+second, err)
		b.do = action{kind: follow.End, change: func(w *walker, f *follow.Flow) {
			f.Masqueraded = true
			if f.From = to; to.Port() == 0 {
				f.From = netip.AddrPortFrom(to.Addr(), w.packet.From.Port())
			}
		}}
	case name == "DNAT" && first == "--to-destination" && !strings.ContainsAny(second, "-"):
		a, err := netip.ParseAddr(second)
		if err != nil {
			return false
		}
		b.do = action{kind: follow.End, change: func(_ *walker, f *follow.Flow) {
			f.To, f.Translated = netip.AddrPortFrom(a, f.To.Port()), true
		}}
	case name == "REDIRECT":
		b.redirect(first, second)
	default:
		return false
	}
	return true
}

// copyMark copies bits of the mark of a packet to its connection, or back.
func (b *reader) copyMark(save bool, words []string) {
	masks := map[string]uint32{"--nfmask": 1<<32 - 1, "--ctmask": 1<<32 - 1}
	for i := 0; i+1 < len(words); i += 2 {
		b.left = []string{words[i+1]}
		value, _, _ := b.mark()
		masks[words[i]] = value
	}
	packet, conn := masks["--nfmask"], masks["--ctmask"]
	if len(masks) > 2 || len(words)%2 != 0 {
		b.cannot("target CONNMARK")
	}
	b.do.change = func(w *walker, f *follow.Flow) {
		switch {
		case !w.tracks(*f):
		case save:
			f.ConnMark = f.ConnMark&^conn ^ f.Mark&packet
		default:
			f.Mark = f.Mark&^packet ^ f.ConnMark&conn
		}
	}
}

// redirect sends packets to this node.
func (b *reader) redirect(option, ports string) {
	port, err := uint64(0), error(nil)
	if option == "--to-ports" {
		port, err = strconv.ParseUint(ports, 10, 16)
	}
	b.check("ports "+ports, err)
	b.do = action{kind: follow.End, change: func(w *walker, f *follow.Flow) {
		to, p := netip.IPv4Unspecified(), f.To.Port()
		if f.To.Addr().Is6() {
			to = netip.IPv6Unspecified()
		}
		if name, _ := w.route.comesIn(w); name == "" { // of a process of this node
			if to = netip.AddrFrom4([4]byte{127, 0, 0, 1}); f.To.Addr().Is6() {
				to = netip.IPv6Loopback()
			}
		}
		if port != 0 {
			p = uint16(port)
		}
		f.To, f.Translated = netip.AddrPortFrom(to, p), true
	}}
}
