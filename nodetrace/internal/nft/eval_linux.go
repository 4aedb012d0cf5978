package nft

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/trace"
)

// step evaluates one expression for all flows. on are the flows for which the rule continues.
func (w *walk) step(x rule.Expression, flows []flow) (on, broken []flow, err error) {
	switch x := x.(type) {
	case rule.Lookup:
		seeing, blind := w.seeing(x, flows)
		on, broken, err = w.lookup(x, seeing)
		return append(on, blind...), broken, err
	case rule.Numgen:
		if w.node == nil || int(x.Modulus)*len(flows) <= maxDrawn {
			return draw(x, flows)
		}
	case rule.Dynset:
		if w.node == nil || x.Limit == "" {
			return w.write(x, flows)
		}
	}
	on, broken = flows[:0], w.broken[:0]
	for _, f := range flows {
		if w.eval(x, &f) {
			on = append(on, f)
		} else {
			broken = append(broken, f)
		}
	}
	w.broken = broken
	return on, broken, nil
}

// eval evaluates an expression for one flow. It returns false if the rule ends.
func (w *walk) eval(x rule.Expression, f *flow) bool {
	switch x := x.(type) {
	case rule.Count, rule.Log, rule.Last, rule.Copy:
		return true
	case rule.Payload:
		return w.payload(x, f)
	case rule.PayloadSet:
		return w.rewrite(x, f)
	case rule.Meta:
		return w.meta(x, f)
	case rule.MetaSet:
		if x.Key == unix.NFT_META_MARK {
			if f.blindAt(x.From, 4) {
				return w.unknown(x, f)
			}
			f.Mark = nlconn.Order.Uint32(f.at(x.From, 4))
		}
		return x.Key != unix.NFT_META_PKTTYPE || w.unknown(x, f)
	case rule.Ct:
		return w.ct(x, f)
	case rule.CtSet:
		return w.setCt(x, f)
	case rule.Fib:
		return w.fib(x, f)
	case rule.Socket:
		return w.socket(x, f)
	case rule.Cmp:
		if len(x.Value) == 2 && f.portAt(x.From) {
			low, high := bounds(x.Op, binary.BigEndian.Uint16([]byte(x.Value)))
			return w.clientPort(x, low, high, x.Op == unix.NFT_CMP_NEQ, f)
		}
		if f.blindAt(x.From, len(x.Value)) {
			return w.unknown(x, f)
		}
		return compare(x.Op, bytes.Compare(f.at(x.From, len(x.Value)), []byte(x.Value)))
	case rule.Range:
		if len(x.Low) == 2 && len(x.High) == 2 && f.portAt(x.From) {
			return w.clientPort(x, binary.BigEndian.Uint16([]byte(x.Low)), binary.BigEndian.Uint16([]byte(x.High)),
				x.Op != unix.NFT_RANGE_EQ, f)
		}
		if f.blindAt(x.From, len(x.Low)) {
			return w.unknown(x, f)
		}
		in := bytes.Compare(f.at(x.From, len(x.Low)), []byte(x.Low)) >= 0 &&
			bytes.Compare(f.at(x.From, len(x.High)), []byte(x.High)) <= 0
		return in == (x.Op == unix.NFT_RANGE_EQ)
	case rule.Bitwise:
		return w.bitwise(x, f)
	case rule.Byteorder:
		return w.byteorder(x, f)
	case rule.Hash:
		if x.Type != rule.HashJenkins || f.blindAt(x.From, int(x.Len)) {
			return w.blind(x, x.To, 4, f)
		}
		return f.load(x.To, number(rule.HashOf(f.at(x.From, int(x.Len)), x.Modulus, x.Seed)+x.Offset))
	case rule.Immediate:
		return f.load(x.To, []byte(x.Value))
	case rule.Ends:
		if f.jump = x.Verdict; f.jump.Kind == expr.VerdictDrop {
			f.Verdict = trace.Drop
		}
		return true
	case rule.NAT:
		return w.nat(x, f)
	case rule.Redirect:
		return w.translate(f, w.itself(), x.PortMin, x.PortMax)
	case rule.Masquerading:
		f.masquerade(x.PortMin, x.Flags)
		return true
	case rule.Refuse:
		f.Verdict = trace.Reject
		return true
	case rule.Numgen:
		return w.blind(x, x.To, 4, f)
	}
	if w.node == nil {
		return w.unknown(x, f)
	}
	return w.ofOthers(x, f)
}

// ofOthers evaluates expressions that no rule of kube-proxy has.
func (w *walk) ofOthers(x rule.Expression, f *flow) bool {
	switch x := x.(type) {
	case rule.Untrack:
		if !f.Untracked && !w.seen.Conn.Known {
			f.Untracked, f.UntrackedBy = true, w.at.rule()
		}
		return true
	case rule.Exthdr:
		return x.To == 0 || w.blind(x, x.To, int(x.Len), f) // it writes an option, as of the segment size
	case rule.Load:
		return w.blind(x, x.To, 16, f)
	case rule.Object:
		const counter = 1 // NFT_OBJECT_COUNTER
		return x.Type == counter || w.unknown(x, f)
	case rule.Offload: // it takes up a connection that has had a reply, which then bypasses the chain
		if w.seen.Conn.State == stateNew {
			return false
		}
		f.Offload = w.at.rule()
		return true
	case rule.Takes: // another one decides
		w.unknown(x, f)
		f.Verdict = trace.Drop
		return true
	case rule.Limit, rule.Quota, rule.Connlimit, rule.Dynset:
		return w.unknown(x, f)
	}
	f.hide(0, rule.Registers, true) // it may have written them
	return w.unknown(x, f)
}

func number(n uint32) []byte { return nlconn.Order.AppendUint32(nil, n) }

// at returns the content of registers.
func (f *flow) at(from rule.Register, n int) []byte {
	return f.regs[from:min(int(from)+n, rule.Registers)]
}

// load puts a value into registers and fills the last register with zeros. It returns false for an
// empty value.
func (f *flow) load(to rule.Register, v []byte) bool {
	n := (len(v) + 3) / 4 * 4
	if v == nil || int(to)+n > rule.Registers {
		return false
	}
	clear(f.regs[to : int(to)+n])
	copy(f.regs[to:], v)
	f.hide(to, n, false)
	return true
}

// hide records whether the content of registers is unknown.
func (f *flow) hide(from rule.Register, n int, unknown bool) {
	for i := int(from); i < min(int(from)+n, rule.Registers); i++ {
		f.hidden[i/8] &^= 1 << (i % 8)
		f.ports[i/8] &^= 1 << (i % 8)
		if unknown {
			f.hidden[i/8] |= 1 << (i % 8)
		}
	}
}

// hidePort records that a byte is of a client's port that is not known.
func (f *flow) hidePort(at rule.Register) {
	f.hide(at, 1, true)
	if at < rule.Registers {
		f.ports[at/8] |= 1 << (at % 8)
	}
}

// portAt reports whether two bytes are of a client's port that is not known.
func (f *flow) portAt(at rule.Register) bool {
	for i := at; i < at+2; i++ {
		if i >= rule.Registers || f.ports[i/8]>>(i%8)&1 == 0 {
			return false
		}
	}
	return true
}

// portsAlone reports whether nothing but a client's port is unknown in these registers. A set of
// single members has too few to take one for that port.
func (f *flow) portsAlone(from rule.Register, n int) bool {
	for i := int(from); i < min(int(from)+n, rule.Registers); i++ {
		if f.hidden[i/8]>>(i%8)&1 != 0 && f.ports[i/8]>>(i%8)&1 == 0 {
			return false
		}
	}
	return true
}

// clientPort evaluates a match of a client's port that is not known.
func (w *walk) clientPort(x rule.Expression, low, high uint16, inverted bool, f *flow) bool {
	is, known := follow.ClientPort(low, high)
	if !known {
		return w.unknown(x, f)
	}
	return is != inverted
}

// masquerade gives the packet an address of this node as its source. port is the register of a
// port, 0 for none.
func (f *flow) masquerade(port rule.Register, flags uint32) {
	const random = unix.NF_NAT_RANGE_PROTO_RANDOM | unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY
	f.NewPort = port != 0 || flags&random != 0
	f.Masqueraded, f.jump.Kind = true, expr.VerdictAccept
}

// bounds are the ports that a comparison selects, none if low is above high; of "not equal", those
// that it leaves out.
func bounds(op uint32, port uint16) (low, high uint16) {
	switch {
	case op == unix.NFT_CMP_LT && port == 0, op == unix.NFT_CMP_GT && port == math.MaxUint16:
		return 1, 0
	case op == unix.NFT_CMP_LT:
		return 0, port - 1
	case op == unix.NFT_CMP_LTE:
		return 0, port
	case op == unix.NFT_CMP_GT:
		return port + 1, math.MaxUint16
	case op == unix.NFT_CMP_GTE:
		return port, math.MaxUint16
	}
	return port, port
}

// blindAt reports whether a part of these registers is unknown.
func (f *flow) blindAt(from rule.Register, n int) bool {
	for i := int(from); i < min(int(from)+n, rule.Registers); i++ {
		if f.hidden[i/8]>>(i%8)&1 != 0 {
			return true
		}
	}
	return false
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

// bitwise masks and inverts bits. A bit that the mask clears is known.
func (w *walk) bitwise(x rule.Bitwise, f *flow) bool {
	n := int(x.Len)
	if x.Op != rule.BitwiseMask || len(x.Mask) != n || len(x.Xor) != n || int(x.From)+n > rule.Registers {
		return w.blind(x, x.To, n, f)
	}
	v := bytes.Clone(f.at(x.From, n))
	var unknown []int
	for i := range v {
		if x.Mask[i] != 0 && f.blindAt(x.From+rule.Register(i), 1) {
			unknown = append(unknown, i)
		}
		v[i] = v[i]&x.Mask[i] ^ x.Xor[i]
	}
	if !f.load(x.To, v) {
		return false
	}
	for _, i := range unknown {
		f.hide(x.To+rule.Register(i), 1, true)
	}
	return len(unknown) == 0 || w.node != nil || w.unknown(x, f)
}

func (w *walk) byteorder(x rule.Byteorder, f *flow) bool {
	v := slices.Clone(f.at(x.From, int(x.Len)))
	if n := int(x.Size); n > 1 && nlconn.Order.Uint16([]byte{1, 0}) == 1 {
		for i := 0; i+n <= len(v); i += n {
			slices.Reverse(v[i : i+n])
		}
	}
	unknown := f.blindAt(x.From, int(x.Len))
	if !f.load(x.To, v) {
		return false
	}
	f.hide(x.To, len(v), unknown)
	return true
}

// socket evaluates the expression socket as for a proxy's socket, which is transparent, in tables
// of kube-proxy. SCTP has no such sockets here.
func (w *walk) socket(x rule.Socket, f *flow) bool {
	switch {
	case !strings.HasPrefix(w.table.Name, "kube-proxy") || x.Key != uint32(expr.SocketKeyTransparent):
		return w.blind(x, x.To, 4, f)
	case w.seen.Proto == unix.IPPROTO_SCTP:
		return false
	}
	return f.load(x.To, []byte{1})
}

func (w *walk) nat(x rule.NAT, f *flow) bool {
	n := w.seen.From.Addr().BitLen() / 8
	if x.AddrMin != 0 && f.blindAt(x.AddrMin, n) {
		return w.unknown(x, f)
	}
	if x.Type != unix.NFT_NAT_DNAT {
		f.masquerade(x.PortMin, x.Flags)
		a, ok := netip.AddrFromSlice(f.at(x.AddrMin, n))
		if ok && x.AddrMin != 0 {
			f.From = netip.AddrPortFrom(a, w.seen.From.Port())
		}
		return true
	}
	to := f.To.Addr()
	if x.AddrMin != 0 {
		to, _ = netip.AddrFromSlice(f.at(x.AddrMin, n))
		last, _ := netip.AddrFromSlice(f.at(x.AddrMax, n))
		if x.AddrMax != 0 && x.AddrMax != x.AddrMin && last != to && w.node != nil {
			w.unknown(x, f) // it chooses one of a range
		}
	}
	return w.translate(f, to, x.PortMin, x.PortMax)
}

// translate changes the destination of the flow; port is the register of the port, 0 to keep it.
func (w *walk) translate(f *flow, to netip.Addr, port, last rule.Register) bool {
	p := f.To.Port()
	if port != 0 {
		p = binary.BigEndian.Uint16(f.at(port, 2))
		if w.node != nil && (f.blindAt(port, 2) || last != 0 && binary.BigEndian.Uint16(f.at(last, 2)) != p) {
			w.unknown(rule.NAT{}, f)
		}
	}
	f.To, f.Translated, f.jump.Kind = netip.AddrPortFrom(to, p), true, expr.VerdictAccept
	if w.node != nil {
		f.TranslatedBy = w.at.rule()
	}
	return true
}

// itself returns the destination of a redirect: this node.
func (w *walk) itself() netip.Addr {
	v6, out := w.seen.Family == unix.NFPROTO_IPV6, w.node != nil && w.seen.In.Name == ""
	switch {
	case v6 && out:
		return netip.IPv6Loopback()
	case v6:
		return netip.IPv6Unspecified()
	case out:
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv4Unspecified()
}

// maxDrawn limits the ways that a walk through any rules follows for a random number.
const maxDrawn = 1 << 13

// draw splits each flow into one for each value that a random number may have.
func draw(x rule.Numgen, flows []flow) (on, broken []flow, err error) {
	n := int(max(x.Modulus, 1))
	if n*len(flows) > maxWays {
		return nil, nil, fmt.Errorf("a number of %d is drawn for %d ways of the packet: more than can be followed", n,
			len(flows))
	}
	on = make([]flow, 0, n*len(flows))
	for _, f := range flows {
		f.Share /= float64(n)
		for i := range n {
			f.load(x.To, number(uint32(i)+x.Offset))
			on = append(on, f)
		}
	}
	return on, nil, nil
}

// lookup looks up a key in a set for all flows.
func (w *walk) lookup(x rule.Lookup, flows []flow) (on, broken []flow, err error) {
	n, err := w.keyLen(x.Set)
	if err != nil {
		return nil, nil, err
	}
	keys := make([]string, len(flows))
	for i := range flows {
		keys[i] = string(flows[i].at(x.From, n))
	}
	dynamic := w.dynamic(x.Set)
	w.asked = w.asked || dynamic
	if !dynamic || w.remembering {
		if err := w.fetch(x.Set, keys); err != nil {
			return nil, nil, err
		}
	}
	w.sayElements(x.Set, keys)
	for i, f := range flows {
		e := w.elements[x.Set][keys[i]]
		if dynamic && !w.remembering {
			e = element{}
		}
		if f.Memory.Set == x.Set && f.Memory.Key == keys[i] {
			e = element{there: f.Memory.Data != "", data: f.Memory.Data}
		} else if dynamic && e.there {
			w.hit = true
		}
		if e.there == x.Inverted {
			broken = append(broken, f)
			continue
		}
		if e.limited != "" && w.node != nil {
			w.unknown(x, &f)
		}
		switch {
		case x.Maps && x.To == 0:
			if f.jump = e.verdict; f.jump.Kind == expr.VerdictDrop {
				f.Verdict = trace.Drop
			}
		case x.Maps && !f.load(x.To, []byte(e.data)):
			return nil, nil, fmt.Errorf("an element of %s has data of %d bytes", x.Set, len(e.data))
		}
		on = append(on, f)
	}
	return on, broken, nil
}

// seeing separates flows that know the key of a lookup from the others. The others match in doubt:
// their value is unknown, and from a verdict map they get the worst verdict.
func (w *walk) seeing(x rule.Lookup, flows []flow) (seeing, blind []flow) {
	if w.node == nil {
		return flows, nil
	}
	n, err := w.keyLen(x.Set)
	for _, f := range flows {
		if err != nil || !f.blindAt(x.From, n) || f.portsAlone(x.From, n) && !w.intervals(x.Set) {
			seeing = append(seeing, f)
			continue
		}
		w.unknown(x, &f)
		if x.Maps && x.To == 0 {
			f.Verdict = trace.Drop
		} else if x.Maps {
			f.hide(x.To, 16, true)
		}
		blind = append(blind, f)
	}
	return seeing, blind
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
func (w *walk) write(x rule.Dynset, flows []flow) (on, broken []flow, err error) {
	n, err := w.keyLen(x.Set)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range flows {
		f.Memory.Set, f.Memory.Key, f.Memory.Data = x.Set, string(f.at(x.Key, n)), ""
		if x.Op != rule.DynsetDelete {
			f.Memory.Data = string(f.at(x.Data, 4))
		}
		on = append(on, f)
	}
	return on, nil, nil
}
