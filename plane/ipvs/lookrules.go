package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kube-proxy/lb"
)

// fate is what a chain has made of a packet.
type fate uint8

const (
	goesOn fate = iota
	accepted
	dropped
	rejected
)

// packetInChains is a packet as rules see it.
type packetInChains struct {
	from, to netip.AddrPort
	proto    lb.Proto
	in, out  string // interfaces; "" if they are not known, or there is none yet
	mark     uint32
	// fromHere and toHere: the addresses are this node's.
	fromHere, toHere bool
	// masqueraded: it gets an address of this node as its source.
	masqueraded bool
}

// walker has a packet go through chains that consist of what rules of this mode do. A rule that has anything else in it is told of, and
// met by nobody.
type walker struct {
	*packetInChains
	family lb.Family
	rules  map[chainName][]string
	// has reports whether a set has a packet's member, and markOf what that of a set of marks has.
	has    func(s set, m member) (bool, error)
	markOf func(s set, m member) (mark, error)
	say    func(format string, args ...any)
	err    error
}

// deepest is how deep chains may lead to others.
const deepest = 16

// chain has the packet go through a chain.
func (w *walker) chain(table, name string, depth int) fate {
	if depth > deepest {
		return goesOn
	}
	for _, text := range w.rules[chainName{table, name}] {
		r, err := w.meets(text)
		if err != nil {
			w.say("-t %s -A %s %s: not understood, and left out: %v", table, name, text, err)
			continue
		}
		if w.err != nil {
			return goesOn
		}
		if !r.met {
			continue
		}
		w.say("-t %s -A %s %s", table, name, text)
		switch r.target {
		case "RETURN":
			return goesOn
		case "ACCEPT":
			return accepted
		case "DROP":
			return dropped
		case "REJECT":
			return rejected
		case "MASQUERADE":
			w.masqueraded = true
			return accepted
		case "MARK":
			w.mark = w.mark&^r.value.mask ^ r.value.value
		case "SET":
			m, err := w.markOf(r.set, w.memberOf(r.set))
			if err != nil {
				w.err = err
				return goesOn
			}
			w.mark = w.mark&^m.mask ^ m.value
		default:
			if f := w.chain(table, r.target, depth+1); f != goesOn || r.final {
				return f
			}
		}
	}
	return goesOn
}

// memberOf is the member of a set that the packet is; of sets of three dimensions the last is the source.
func (w *walker) memberOf(s set) member {
	m := member{set: s, port: w.to.Port()}
	switch s.typ() {
	case hashIP:
		return member{set: s, addr: w.to.Addr()}
	case bitmapPort:
		return m
	case hashIPPortIP, hashIPPortNet:
		m.from = netip.PrefixFrom(w.from.Addr(), w.from.Addr().BitLen())
	}
	m.addr, m.proto = w.to.Addr(), w.proto
	return m
}

// ruleMet is a rule that was read.
type ruleMet struct {
	met, final bool
	target     string
	value      mark // of MARK
	set        set  // of SET
}

// meets reads a rule as iptables-save prints it, and says whether the packet meets it.
func (w *walker) meets(text string) (r ruleMet, err error) {
	r.met = true
	not := false
	words := fields(text)
	next := func() string {
		if len(words) == 0 {
			err = fmt.Errorf("it ends early")
			return ""
		}
		word := words[0]
		words = words[1:]
		return word
	}
	when := func(is bool) {
		r.met = r.met && is != not
		not = false
	}
	for len(words) > 0 && err == nil {
		switch word := next(); word {
		case "!":
			not = true
		case "-m", "--comment", "--reject-with":
			next()
		case "--random-fully", "--map-mark":
		case "-p":
			proto := next()
			when(proto == w.proto.String())
		case "-s", "-d":
			p, parseErr := netip.ParsePrefix(next())
			if err = parseErr; err != nil {
				break
			}
			when(p.Contains(map[string]netip.Addr{"-s": w.from.Addr(), "-d": w.to.Addr()}[word]))
		case "-i":
			when(throughInterface(w.in, next()))
		case "-o":
			when(throughInterface(w.out, next()))
		case "--ctstate": // of a connection that begins
			when(slices.Contains(strings.Split(next(), ","), "NEW"))
		case "--mark":
			m, parseErr := parseMark(next())
			err = parseErr
			when(w.mark&m.mask == m.value)
		case "--src-type", "--dst-type":
			if next() != "LOCAL" {
				err = fmt.Errorf("the type is not LOCAL")
			}
			when(map[string]bool{"--src-type": w.fromHere, "--dst-type": w.toHere}[word])
		case "--match-set":
			s, known := setNamed(w.family, next())
			by := next()
			m := w.memberOf(s)
			switch {
			case !known:
				err = fmt.Errorf("it is a set of others")
			case s.typ() == hashIP && by == "src":
				m.addr = w.from.Addr()
			}
			if err != nil || !r.met {
				when(!not)
				break
			}
			has, askErr := w.has(s, m)
			if askErr != nil {
				w.err = askErr
			}
			when(has)
		case "-j":
			r.target = next()
		case "-g":
			r.target, r.final = next(), true
		case "--set-xmark":
			r.value, err = parseMark(next())
		case "--map-set":
			s, known := setNamed(w.family, next())
			if r.set = s; !known {
				err = fmt.Errorf("it is a set of others")
			}
			next()
		default:
			err = fmt.Errorf("%s is no word of this mode's rules", word)
		}
	}
	r.met = r.met && r.target != ""
	return r, err
}

// throughInterface reports whether an interface has a name, or one that begins so.
func throughInterface(name, pattern string) bool {
	if prefix, any := strings.CutSuffix(pattern, "+"); any {
		return name != "" && strings.HasPrefix(name, prefix)
	}
	return name == pattern
}

// setNamed finds a set by its name.
func setNamed(f lb.Family, name string) (set, bool) {
	for s := range setCount {
		if s.name(f) == name {
			return s, true
		}
	}
	return 0, false
}

// parseMark reads a mark with its mask; without one that has all bits.
func parseMark(text string) (mark, error) {
	value, mask, masked := strings.Cut(text, "/")
	m := mark{mask: wholeMark}
	v, err := strconv.ParseUint(value, 0, 32)
	if m.value = uint32(v); err == nil && masked {
		v, err = strconv.ParseUint(mask, 0, 32)
		m.mask = uint32(v)
	}
	return m, err
}

// fields are the words of a rule; what stands in quotes is one.
func fields(text string) (words []string) {
	for text = strings.TrimLeft(text, " "); text != ""; text = strings.TrimLeft(text, " ") {
		end := strings.IndexByte(text, ' ')
		if text[0] == '"' {
			end = 1
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			end = min(end+1, len(text))
		}
		if end < 0 {
			end = len(text)
		}
		words = append(words, text[:end])
		text = text[end:]
	}
	return words
}

// withoutComments is what a rule does: its words without those that say nothing.
func withoutComments(text string) string {
	var words []string
	for all := fields(text); len(all) > 0; all = all[1:] {
		if (all[0] == "-m" || all[0] == "--comment") && len(all) > 1 {
			all = all[1:]
			continue
		}
		words = append(words, all[0])
	}
	return strings.Join(words, " ")
}
