package nft

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/trace"
)

// step evaluates one expression for all flows. on are the flows for which the rule continues.
func (w *walk) step(s Step, flows []flow) (on, broken []flow, err error) {
	switch s.name {
	case "lookup":
		seeing, blind := w.seeing(s, flows)
		on, broken, err = w.lookup(s, seeing)
		return append(on, blind...), broken, err
	case "numgen":
		if w.node == nil || int(s.modulus)*len(flows) <= maxDrawn {
			return draw(s, flows)
		}
	case "dynset":
		if w.node == nil || s.value == "" {
			return w.write(s, flows)
		}
	}
	on, broken = flows[:0], w.broken[:0]
	for _, f := range flows {
		if w.do(s, &f) {
			on = append(on, f)
		} else {
			broken = append(broken, f)
		}
	}
	w.broken = broken
	return on, broken, nil
}

// do evaluates an expression for one flow. It returns false if the rule ends.
func (w *walk) do(s Step, f *flow) bool {
	switch s.name {
	case "payload":
		return w.payload(s, f)
	case "meta":
		return w.meta(s, f)
	case "ct":
		return w.ct(s, f)
	case "fib":
		return w.fib(s, f)
	case "socket":
		return w.socket(s, f)
	case "cmp":
		if f.blindAt(s.from, len(s.value)) {
			return w.unknown(s, f)
		}
		return compare(s.key, bytes.Compare(f.at(s.from, len(s.value)), []byte(s.value)))
	case "range":
		if f.blindAt(s.from, len(s.mask)) {
			return w.unknown(s, f)
		}
		in := bytes.Compare(f.at(s.from, len(s.mask)), []byte(s.mask)) >= 0 && bytes.Compare(f.at(s.from, len(s.xor)),
			[]byte(s.xor)) <= 0
		return in == (s.key == unix.NFT_RANGE_EQ)
	case "bitwise":
		if s.key != 0 || len(s.mask) != int(s.length) || len(s.xor) != int(s.length) ||
			f.blindAt(s.from, int(s.length)) {
			return w.blind(s, f)
		}
		v := bytes.Clone(f.at(s.from, int(s.length)))
		for i := range v {
			v[i] = v[i]&s.mask[i] ^ s.xor[i]
		}
		return f.load(s.to, v)
	case "hash":
		if s.key != expr0Jenkins || f.blindAt(s.from, int(s.length)) {
			return w.blind(s, f)
		}
		return f.load(s.to, number(rule.HashOf(f.at(s.from, int(s.length)), s.modulus, s.seed)+s.offset))
	case "immediate":
		if s.to != 0 {
			return f.load(s.to, []byte(s.value))
		}
		if f.jump = s.verdict; f.jump.Kind == expr.VerdictDrop {
			f.Verdict = trace.Drop
		}
		return true
	case "nat":
		return w.nat(s, f)
	case "redir":
		return w.translate(f, w.itself(), s.second)
	case "masq":
		f.Masqueraded, f.jump.Kind = true, expr.VerdictAccept
		return true
	case "reject":
		f.Verdict = trace.Reject
		return true
	}
	return w.general(s, f)
}

// expr0Jenkins is NFT_HASH_JENKINS.
const expr0Jenkins = 0

func number(n uint32) []byte { return nlconn.Order.AppendUint32(nil, n) }

// at returns the content of registers.
func (f *flow) at(from, n int) []byte { return f.regs[from:min(from+n, registers)] }

// load puts a value into registers and fills the last register with zeros. It returns false for an
// empty value.
func (f *flow) load(to int, v []byte) bool {
	if v == nil || to+(len(v)+3)/4*4 > registers {
		return false
	}
	clear(f.regs[to : to+(len(v)+3)/4*4])
	copy(f.regs[to:], v)
	f.hide(to, len(v), false)
	return true
}

func compare(op uint32, c int) bool {
	switch op {
	case unix.NFT_CMP_EQ:
		return c == 0
	case unix.NFT_CMP_NEQ:
		return c != 0
	case unix.NFT_CMP_LT:
		return c < 0
	case unix.NFT_CMP_LTE:
		return c <= 0
	case unix.NFT_CMP_GT:
		return c > 0
	}
	return c >= 0
}

func networkHeader(family, proto byte, from, to netip.Addr) []byte {
	if family == unix.NFPROTO_IPV6 {
		b := make([]byte, 40)
		b[0], b[6] = 6<<4, proto
		copy(b[8:24], from.AsSlice())
		copy(b[24:], to.AsSlice())
		return b
	}
	b := make([]byte, 20)
	b[0], b[8], b[9] = 4<<4|5, 64, proto
	copy(b[12:16], from.AsSlice())
	copy(b[16:], to.AsSlice())
	return b
}

// socket evaluates the expression socket as for a proxy's socket, which is transparent. SCTP has no
// such sockets here.
func (w *walk) socket(s Step, f *flow) bool {
	switch {
	case s.key != uint32(expr.SocketKeyTransparent):
		return w.blind(Step{name: fmt.Sprintf("socket, key %d", s.key), to: s.to, length: 4}, f)
	case w.node != nil:
		return w.blind(s, f)
	case byte(w.p.Proto) == unix.IPPROTO_SCTP:
		return false
	}
	return f.load(s.to, []byte{1})
}

func (w *walk) nat(s Step, f *flow) bool {
	if s.key != unix.NFT_NAT_DNAT {
		f.Masqueraded, f.jump.Kind = true, expr.VerdictAccept
		if a, ok := netip.AddrFromSlice(f.at(s.from, w.seen.From.Addr().BitLen()/8)); ok && s.from != 0 {
			f.From = netip.AddrPortFrom(a, w.seen.From.Port())
		}
		return true
	}
	to := f.To.Addr()
	if s.from != 0 {
		to, _ = netip.AddrFromSlice(f.at(s.from, len(to.AsSlice())))
	}
	return w.translate(f, to, s.second)
}

// translate changes the destination of the flow; port is the register of the port, 0 to keep it.
func (w *walk) translate(f *flow, to netip.Addr, port int) bool {
	p := f.To.Port()
	if port != 0 {
		p = binary.BigEndian.Uint16(f.at(port, 2))
	}
	f.To, f.Translated, f.jump.Kind = netip.AddrPortFrom(to, p), true, expr.VerdictAccept
	if w.node != nil {
		f.TranslatedBy = w.at.rule()
	}
	return true
}

// draw splits each flow into one for each value that a random number may have.
func draw(s Step, flows []flow) (on, broken []flow, err error) {
	n := int(max(s.modulus, 1))
	if n*len(flows) > maxWays {
		return nil, nil, fmt.Errorf("a number of %d is drawn for %d ways of the packet: more than can be followed", n,
			len(flows))
	}
	on = make([]flow, 0, n*len(flows))
	for _, f := range flows {
		f.Share /= float64(n)
		for i := range n {
			f.load(s.to, number(uint32(i)+s.offset))
			on = append(on, f)
		}
	}
	return on, nil, nil
}

// lookup looks up a key in a set for all flows.
func (w *walk) lookup(s Step, flows []flow) (on, broken []flow, err error) {
	n, err := w.keyLen(s.set)
	if err != nil {
		return nil, nil, err
	}
	keys := make([]string, len(flows))
	for i := range flows {
		keys[i] = string(flows[i].at(s.from, n))
	}
	dynamic := w.dynamic(s.set)
	w.asked = w.asked || dynamic
	if !dynamic || w.remembering {
		if err := w.fetch(s.set, keys); err != nil {
			return nil, nil, err
		}
	}
	w.sayElements(s.set, keys)
	for i, f := range flows {
		e := w.elements[s.set][keys[i]]
		if dynamic && !w.remembering {
			e = element{}
		}
		if f.Memory.Set == s.set && f.Memory.Key == keys[i] {
			e = element{there: f.Memory.Data != "", data: f.Memory.Data}
		} else if dynamic && e.there {
			w.hit = true
		}
		switch {
		case e.there == s.inverted:
			broken = append(broken, f)
			continue
		case s.lookup && s.to == 0:
			if f.jump = e.verdict; f.jump.Kind == expr.VerdictDrop {
				f.Verdict = trace.Drop
			}
		case s.lookup && !f.load(s.to, []byte(e.data)):
			return nil, nil, fmt.Errorf("an element of %s has data of %d bytes", s.set, len(e.data))
		}
		on = append(on, f)
	}
	return on, broken, nil
}

// sayElements records the elements that a lookup found.
func (w *walk) sayElements(set string, keys []string) {
	said := map[string]bool{}
	for _, k := range keys {
		if said[k] || w.dynamic(set) && !w.elements[set][k].there {
			continue
		}
		if said[k] = true; len(said) > maxWords {
			continue
		}
		w.say("%s", w.elementText(set, k))
	}
	if len(said) > maxWords {
		w.say("and %d more of %s", len(said)-maxWords, set)
	}
}

// elementText formats an element as nft does, or reports that it does not exist.
func (w *walk) elementText(set, key string) string {
	d, e := setNamed(&w.t, set), w.elements[set][key]
	what, data, of := "0x"+hex.EncodeToString([]byte(key)), "0x"+hex.EncodeToString([]byte(e.data)), "set "+set
	if d != nil {
		what, of = d.Key.Text([]byte(key)), d.String()
	}
	switch {
	case !e.there:
		return fmt.Sprintf("no element { %s } in %s", what, of)
	case e.decides:
		data = e.verdict.String()
	case e.data != "" && d != nil:
		data = d.Data.Text([]byte(e.data))
	}
	if e.decides || e.data != "" {
		what += " : " + data
	}
	return fmt.Sprintf("element { %s } of %s", what, of)
}

// dynamic reports whether packets fill the set.
func (w *walk) dynamic(set string) bool {
	d := setNamed(&w.t, set)
	return d != nil && d.Dynamic()
}

// write stores what a rule writes to a dynamic set in the walk's own memory.
func (w *walk) write(s Step, flows []flow) (on, broken []flow, err error) {
	n, err := w.keyLen(s.set)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range flows {
		f.Memory.Set, f.Memory.Key, f.Memory.Data = s.set, string(f.at(s.from, n)), ""
		if s.key != dynsetDelete {
			f.Memory.Data = string(f.at(s.second, 4))
		}
		on = append(on, f)
	}
	return on, nil, nil
}

// dynsetDelete is NFT_DYNSET_OP_DELETE, since Linux 5.4.
const dynsetDelete = 2
