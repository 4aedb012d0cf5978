//go:build linux

package xt

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kube-proxy/internal/xtables"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/trace"
)

// rule is a rule whose text was read.
type rule struct {
	text string
	// when are the conditions; a packet must meet all. Unconditional matches have none.
	when []condition
	// recalls is the list of clients that the rule reads, "" for none; within is its time limit in
	// seconds, 0 for none.
	recalls string
	within  uint32
	do      action
	// strange are the unknown parts. Such a rule is reported, and it is unknown which packets match
	// it.
	strange []string
}

// condition returns the probability that a packet meets a match, 0 to 1, or untold.
type condition func(w *walker, f follow.Flow) float64

// unreported means unknown.
const unreported = -1

func yesOrNo(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// odds returns the probability that a packet matches the whole rule, except its list of clients.
func (r *rule) odds(w *walker, f follow.Flow) float64 {
	all, known := 1.0, len(r.strange) == 0
	for _, c := range r.when {
		switch p := c(w, f); p {
		case 0:
			return 0
		case unreported:
			known = false
		default:
			all *= p
		}
	}
	if !known {
		return unreported
	}
	return all
}

// action is the effect of a rule on packets: it changes them, and determines where they continue.
type action struct {
	kind    follow.Kind
	chain   string // of a jump or a goto
	refuses bool   // change gives them a verdict
	source  bool   // change gives them another source
	change  func(w *walker, f *follow.Flow)
}

// reader reads a rule as iptables-save prints it.
type reader struct {
	rule
	sets  Sets                                // nil without ipsets
	any   map[string]func(b *reader, no bool) // more conditions, of rules of any program
	match string
	left  []string
	// list is the list of clients of the match recent; notes: the rule only writes to it.
	list  string
	notes bool
}

func readText(text string, sets Sets) rule { return (&reader{sets: sets}).read(text) }

func (b *reader) read(text string) rule {
	b.rule = rule{text: text}
	if at := strings.LastIndex(text, "(not read: "); at >= 0 && strings.HasSuffix(text, ")") { // as xtables reports
		text = text[:at]
		b.cannot("what was not read")
	}
	b.left = xtables.Words(text)
	no := false
	for len(b.left) > 0 {
		switch word := b.next(); word {
		case "!":
			no = true
			continue
		case "-m":
			b.match = b.next()
			if b.any != nil && b.match == "rpfilter" {
				b.reverse()
			} else if !knownMatches[b.match] && (b.any == nil || !anyMatches[b.match]) {
				b.cannot("match " + b.match)
				b.skip(func(word string) bool { return slices.Contains([]string{"-m", "-j", "-g"}, word) })
			}
		case "-j", "-g":
			b.target(b.next(), word == "-g")
		default:
			name := word
			if strings.HasPrefix(word, "--") {
				name = b.match + " " + word
			}
			if read := options[name]; read != nil {
				read(b, no)
			} else if read := b.any[name]; read != nil {
				read(b, no)
			} else {
				b.cannot(word)
				b.skip(func(word string) bool { return strings.HasPrefix(word, "-") || word == "!" })
			}
		}
		no = false
	}
	if b.list != "" && !b.notes {
		b.recalls = b.list
	}
	if len(b.strange) > 0 {
		b.text = strings.TrimPrefix(b.text+" (not judged: "+strings.Join(b.strange, ", ")+")", " ")
	}
	return b.rule
}

// next returns the next word, without quotes.
func (b *reader) next() string {
	if len(b.left) == 0 {
		b.cannot("its end")
		return ""
	}
	word := b.left[0]
	b.left = b.left[1:]
	if strings.HasPrefix(word, `"`) {
		word = unescaped.Replace(strings.Trim(word, `"`))
	}
	return word
}

var unescaped = strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\'`, `'`)

// skip skips the arguments of an unknown word.
func (b *reader) skip(until func(word string) bool) {
	for len(b.left) > 0 && !until(b.left[0]) {
		b.left = b.left[1:]
	}
}

func (b *reader) cannot(what string) { b.strange = append(b.strange, what) }

// check reports an error in a word.
func (b *reader) check(what string, err error) bool {
	if err != nil {
		b.cannot(what)
	}
	return err == nil
}

func (b *reader) meets(c condition) { b.when = append(b.when, c) }

// is adds a condition that can be inverted.
func (b *reader) is(no bool, c func(w *walker, f follow.Flow) bool) {
	b.meets(func(w *walker, f follow.Flow) float64 { return yesOrNo(c(w, f) != no) })
}

var knownMatches = map[string]bool{"comment": true, "nfacct": true, "tcp": true, "udp": true, "sctp": true,
	"mark": true, "statistic": true, "addrtype": true,
	"conntrack": true, "state": true, "socket": true, "recent": true, "set": true}

// options read the conditions of a rule: those of a match have its name as the key.
var options = map[string]func(b *reader, no bool){
	"-p": func(b *reader, no bool) {
		name := b.next()
		if n, err := protocol(name); b.check("protocol "+name, err) {
			b.is(no, func(w *walker, _ follow.Flow) bool { return uint8(w.packet.Proto) == n })
		}
	},
	"-s": func(b *reader, no bool) { b.contains(no, (*walker).sender) },
	"-d": func(b *reader, no bool) { b.contains(no, (*walker).receiver) },
	"-i": func(b *reader, no bool) {
		b.through(no, func(w *walker, _ follow.Flow) (string, bool) { return w.route.comesIn(w) })
	},
	"-o": func(b *reader, no bool) {
		b.through(no, func(w *walker, f follow.Flow) (string, bool) { return w.route.leaves(w, f.To.Addr()) })
	},
	"comment --comment":    func(b *reader, _ bool) { b.next() },
	"nfacct --nfacct-name": func(b *reader, _ bool) { b.next() },
	"tcp --sport":          sourcePorts,
	"udp --sport":          sourcePorts,
	"sctp --sport":         sourcePorts,
	"tcp --dport":          ports,
	"udp --dport":          ports,
	"sctp --dport":         ports,
	"mark --mark": func(b *reader, no bool) {
		if value, mask, ok := b.mark(); ok {
			b.is(no, func(_ *walker, f follow.Flow) bool { return f.Mark&mask == value })
		}
	},
	"statistic --mode": func(b *reader, _ bool) {
		if mode := b.next(); mode != "random" {
			b.cannot("mode " + mode)
		}
	},
	"statistic --probability": func(b *reader, no bool) {
		word := b.next()
		if p, err := strconv.ParseFloat(word, 64); b.check("probability "+word, err) {
			if no {
				p = 1 - p
			}
			b.meets(func(*walker, follow.Flow) float64 { return p })
		}
	},
	"addrtype --src-type": func(b *reader, no bool) { b.addressType(no, (*walker).sender) },
	"addrtype --dst-type": func(b *reader, no bool) { b.addressType(no, (*walker).receiver) },
	"conntrack --ctstate": states,
	"state --state":       states,
	"conntrack --ctdir":   func(b *reader, _ bool) { b.direction(b.next()) },
	// Listeners of mode userspace are transparent. Packets that are translated to this node's ports
	// are assumed to reach one.
	"socket --transparent": func(b *reader, no bool) {
		b.is(no, func(_ *walker, f follow.Flow) bool { return f.Translated })
	},
	"socket --nowildcard": func(*reader, bool) {},
	"recent --rcheck":     func(b *reader, no bool) { b.unturned(no) },
	"recent --update":     func(b *reader, no bool) { b.unturned(no) },
	"recent --set":        func(b *reader, no bool) { b.unturned(no); b.notes = true },
	"recent --reap":       func(*reader, bool) {},
	"recent --rsource":    func(*reader, bool) {},
	"recent --mask":       func(b *reader, _ bool) { b.next() },
	"recent --name":       func(b *reader, _ bool) { b.list = b.next() },
	"recent --seconds": func(b *reader, _ bool) {
		word := b.next()
		n, err := strconv.ParseUint(word, 10, 32)
		b.check("seconds "+word, err)
		b.within = uint32(n)
	},
	"set --match-set": func(b *reader, no bool) {
		if name, by, ok := b.set(); ok {
			b.is(no, func(w *walker, f follow.Flow) bool {
				has, err := b.sets.Has(name, by, w.asOf(f))
				w.fail(err)
				return has
			})
		}
	},
}

func protocol(name string) (uint8, error) {
	for n, is := range xtables.ProtocolNames {
		if is == name {
			return n, nil
		}
	}
	n, err := strconv.ParseUint(name, 10, 8)
	return uint8(n), err
}

func (b *reader) prefix(of func(netip.Prefix)) {
	word := b.next()
	if !strings.Contains(word, "/") {
		if a, err := netip.ParseAddr(word); err == nil {
			word = netip.PrefixFrom(a, a.BitLen()).String()
		}
	}
	if p, err := netip.ParsePrefix(word); b.check("address "+word, err) {
		of(p)
	}
}

func (w *walker) sender(follow.Flow) netip.Addr     { return w.from() }
func (w *walker) receiver(f follow.Flow) netip.Addr { return f.To.Addr() }

// contains reads a prefix, which must contain an address of the packet.
func (b *reader) contains(no bool, of func(*walker, follow.Flow) netip.Addr) {
	b.prefix(func(p netip.Prefix) {
		b.is(no, func(w *walker, f follow.Flow) bool { return p.Contains(of(w, f)) })
	})
}

// through matches packets by their input or output interface, or by a prefix of its name.
func (b *reader) through(no bool, by func(*walker, follow.Flow) (name string, known bool)) {
	want, begins := strings.CutSuffix(b.next(), "+")
	b.meets(func(w *walker, f follow.Flow) float64 {
		have, known := by(w, f)
		if !known {
			return unreported
		}
		return yesOrNo((have == want || begins && strings.HasPrefix(have, want)) != no)
	})
}

// ports reads a range of destination ports, sourcePorts one of source ports.
func ports(b *reader, no bool) {
	if low, high, ok := b.portRange(); ok {
		b.meets(func(_ *walker, f follow.Flow) float64 { return within(no, f.To.Port(), [2]uint16{low, high}) })
	}
}

func sourcePorts(b *reader, no bool) {
	if low, high, ok := b.portRange(); ok {
		b.meets(func(w *walker, _ follow.Flow) float64 {
			return within(no, w.packet.From.Port(), [2]uint16{low, high})
		})
	}
}

// within reports whether a port is in ranges; 0 is that of a client, which is not known.
func within(no bool, port uint16, ranges ...[2]uint16) float64 {
	sure := true
	for _, r := range ranges {
		is, known := r[0] <= port && port <= r[1], true
		if port == 0 {
			is, known = follow.ClientPort(r[0], r[1])
		}
		if is {
			return yesOrNo(!no)
		}
		sure = sure && known
	}
	if !sure {
		return unreported
	}
	return yesOrNo(no)
}

func (b *reader) portRange() (low, high uint16, ok bool) {
	word := b.next()
	first, last, isRange := strings.Cut(word, ":")
	if !isRange {
		last = first
	}
	l, err := strconv.ParseUint(first, 10, 16)
	h, err2 := strconv.ParseUint(last, 10, 16)
	return uint16(l), uint16(h), b.check("ports "+word, err) && b.check("ports "+word, err2)
}

// mark reads a mark with its mask; without one that has all bits.
func (b *reader) mark() (value, mask uint32, ok bool) {
	word := b.next()
	first, second, masked := strings.Cut(word, "/")
	v, err := strconv.ParseUint(first, 0, 32)
	m := uint64(1<<32 - 1)
	if err == nil && masked {
		m, err = strconv.ParseUint(second, 0, 32)
	}
	return uint32(v), uint32(m), b.check("mark "+word, err)
}

// addressType reads the type of an address. Only LOCAL is understood without a node ([Node]).
func (b *reader) addressType(no bool, of func(*walker, follow.Flow) netip.Addr) {
	kinds := strings.Split(b.next(), ",")
	local := slices.Equal(kinds, []string{"LOCAL"})
	if len(b.left) > 0 && strings.HasPrefix(b.left[0], "--limit-iface-") {
		if limit := b.next(); b.any == nil || !local {
			b.cannot("option " + limit)
		} else {
			b.localAt(no, of, limit == "--limit-iface-in")
		}
		return
	}
	if local {
		b.is(no, func(w *walker, f follow.Flow) bool { return w.route.here(w, of(w, f)) })
		return
	}
	if b.any == nil {
		b.cannot("type " + strings.Join(kinds, ","))
		return
	}
	b.meets(func(w *walker, f follow.Flow) float64 {
		a := of(w, f)
		kind, err := w.conn.Node.AddressType(a)
		name := addressTypes[kind]
		if err != nil || name == "" ||
			slices.ContainsFunc(kinds, func(k string) bool { return !slices.Contains(typesKnown, k) }) {
			return unreported
		}
		if a.Is6() { // a type that is of the address itself, and one that is of its route, must both be right
			if slices.Contains(kinds, "UNICAST") && name == "MULTICAST" || slices.Contains(kinds, "MULTICAST") &&
				name != "MULTICAST" {
				return yesOrNo(no)
			}
			byRoute := slices.ContainsFunc(kinds, func(k string) bool { return k == "LOCAL" || k == "ANYCAST" })
			return yesOrNo((!byRoute || slices.Contains(kinds, name)) != no)
		}
		return yesOrNo(slices.Contains(kinds, name) != no)
	})
}

// addressTypes are the names of RTN_*.
var addressTypes = map[uint32]string{1: "UNICAST", 2: "LOCAL", 3: "BROADCAST", 4: "ANYCAST", 5: "MULTICAST"}

var typesKnown = slices.Collect(maps.Values(addressTypes))

// states reads states of connections.
func states(b *reader, no bool) {
	var names []string
	for _, name := range strings.Split(b.next(), ",") {
		switch name {
		case "NEW", "DNAT", "INVALID", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT":
			names = append(names, name)
		default:
			b.cannot("state " + name)
			return
		}
	}
	b.is(no, func(w *walker, f follow.Flow) bool {
		state := w.conn.State
		if f.Untracked {
			state = "UNTRACKED"
		}
		dnat := f.Translated && f.To != w.conn.To || w.conn.DNAT
		snat := w.conn.SNAT || w.any && f.NewSource(w.sent, w.packet.From.Addr())
		return slices.Contains(names, state) ||
			w.tracks(f) && (dnat && slices.Contains(names, "DNAT") || snat && slices.Contains(names, "SNAT"))
	})
}

// localAt matches packets with an address that the input or the output interface has.
func (b *reader) localAt(no bool, of func(*walker, follow.Flow) netip.Addr, in bool) {
	b.meets(func(w *walker, f follow.Flow) float64 {
		name, known := w.route.leaves(w, f.To.Addr())
		if in {
			name, known = w.route.comesIn(w)
		}
		holder, err := w.conn.Node.LinkOf(of(w, f))
		w.fail(err)
		if !known || name == "" {
			return unreported
		}
		return yesOrNo((holder == name) != no)
	})
}

func (b *reader) direction(name string) {
	b.known(false, func(w *walker, _ follow.Flow) bool { return w.conn.Reply == (name == "REPLY") })
}

// known is is for properties of conntrack entries. They are all false for a packet without an
// entry.
func (b *reader) known(no bool, c func(w *walker, f follow.Flow) bool) {
	b.is(false, func(w *walker, f follow.Flow) bool { return w.tracks(f) && c(w, f) != no })
}

// tracks reports whether conntrack has the packet.
func (w *walker) tracks(f follow.Flow) bool { return w.conn.Known && !f.Untracked }

// unturned rejects an inverted match of recent.
func (b *reader) unturned(no bool) {
	if no {
		b.cannot("! of recent")
	}
}

func (b *reader) set() (name, by string, ok bool) {
	name, by = b.next(), b.next()
	if ok = b.sets != nil && b.sets.Knows(name); !ok {
		b.cannot("ipset " + name)
	}
	return name, by, ok
}

// onlyLooks are targets after which a packet continues unchanged with the next rule.
var onlyLooks = map[string]bool{"LOG": true, "NFLOG": true, "TRACE": true, "TCPMSS": true, "CHECKSUM": true,
	"AUDIT": true, "CLASSIFY": true}

// target reads the effect of the rule, with all remaining words.
func (b *reader) target(name string, final bool) {
	refuse := func(v trace.Verdict) action {
		return action{kind: follow.End, refuses: true, change: func(_ *walker, f *follow.Flow) { f.Verdict = v }}
	}
	words, known := b.left, len(b.strange)
	b.left = nil
	option := func(want string) bool {
		if len(words) == 0 || words[0] != want {
			b.cannot("target " + name)
			return false
		}
		b.left = words[1:]
		return true
	}
	switch {
	case name == "":
	case name == "ACCEPT":
		b.do = action{kind: follow.End}
	case name == "DROP":
		b.do = refuse(trace.Drop)
	case name == "REJECT":
		b.do = refuse(trace.Reject)
	case name == "RETURN":
		b.do = action{kind: follow.Return}
	case b.any != nil && b.anyTarget(name, words):
	case name == "MASQUERADE", name == "SNAT":
		another := slices.ContainsFunc(words, func(s string) bool { return strings.HasPrefix(s, "--random") }) ||
			slices.Contains(words, "--to-ports")
		b.do = action{kind: follow.End, source: true, change: func(_ *walker, f *follow.Flow) {
			f.Masqueraded, f.NewPort = true, f.NewPort || another
		}}
	case name == "DNAT" && option("--to-destination"):
		b.translates()
	case name == "MARK" && option("--set-xmark"):
		if value, mask, ok := b.mark(); ok {
			b.do.change = func(_ *walker, f *follow.Flow) { f.Mark = f.Mark&^mask ^ value }
		}
	case name == "SET" && option("--map-set"):
		if set, by, ok := b.set(); ok && !b.sets.Marks(set) {
			b.cannot("marks of ipset " + set)
		} else if ok {
			b.do.change = func(w *walker, f *follow.Flow) {
				value, mask, err := b.sets.MarkOf(set, by, w.asOf(*f))
				w.fail(err)
				f.Mark = f.Mark&^mask ^ value
			}
		}
		if b.next() != "--map-mark" {
			b.cannot("target SET")
		}
	case slices.Contains([]string{"DNAT", "MARK", "SET"}, name), onlyLooks[name]:
	case len(words) > 0: // chains have no options, and a target with some may end a packet's path
		b.do = action{kind: follow.End}
		b.cannot("target " + name)
	case final:
		b.do = action{kind: follow.Goto, chain: name}
	default:
		b.do = action{kind: follow.Jump, chain: name}
	}
	if !onlyLooks[name] && len(b.left) > 0 && name != "" {
		b.cannot(strings.Join(b.left, " "))
	}
	if b.any != nil && len(b.strange) > known { // it may do anything; a drop differs from all other effects
		b.do = refuse(trace.Drop)
	}
	b.left = nil
}

// translates reads the destination of a DNAT: an address and a port, or a port alone.
func (b *reader) translates() {
	word := b.next()
	to, err := netip.ParseAddrPort(word)
	if port, alone := strings.CutPrefix(word, ":"); alone {
		var n uint64
		n, err = strconv.ParseUint(port, 10, 16)
		to = netip.AddrPortFrom(netip.Addr{}, uint16(n))
	}
	if b.check("destination "+word, err) {
		b.do = action{kind: follow.End, change: func(_ *walker, f *follow.Flow) {
			if f.Translated = true; to.Addr().IsValid() {
				f.To = to
			} else {
				f.To = netip.AddrPortFrom(f.To.Addr(), to.Port())
			}
		}}
	}
}
