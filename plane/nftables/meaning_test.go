//go:build linux

package nftables

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// meaning describes what a rule does, independent of the registers and slots that it uses: its
// matches and effects in order, each with the source of its values. It models the kernel and shares
// no code with package rule. Two rules with one meaning treat every packet alike, except for the
// scratch marks that Render's comment names.
func meaning(t *testing.T, fam rule.IP, sets []wire.Set, exprs []expr.Any) []string {
	t.Helper()
	m := &machine{t: t, fam: fam, sets: map[string]*wire.Set{}, regs: map[int]word{}, before: map[int]word{}}
	for i := range sets {
		m.sets[sets[i].Name] = &sets[i]
	}
	m.mark = plain("mark", 0, 4)
	for _, x := range exprs {
		m.step(x)
	}
	m.effect("end")
	return m.out
}

// word is one 32-bit register: part of a value, with a mask and an exclusive or.
type word struct {
	what     string
	off, n   int // of a packet's bytes, or of a name
	and, xor string
}

func plain(what string, off, n int) word {
	return word{what, off, n, "ffffffff", "00000000"}
}

func (w word) String() string {
	s := fmt.Sprintf("%s+%d/%d", w.what, w.off, w.n)
	if w.and != "ffffffff" || w.xor != "00000000" {
		s += "&" + w.and + "^" + w.xor
	}
	return s
}

type machine struct {
	t            *testing.T
	fam          rule.IP
	sets         map[string]*wire.Set
	regs, before map[int]word // before: the registers' content before the last write
	mark         word
	ctMark, prio word
	out          []string
}

// index returns the number of the first 32-bit register that a kernel register number stands for.
func index(r uint32) int {
	if r <= 4 {
		return int(r-1) * 4
	}
	return int(r) - 8
}

func (m *machine) load(r uint32, what string, off, n int) {
	for i := 0; i < n; i += 4 {
		m.set(index(r)+i/4, plain(what, off+i, min(4, n-i)))
	}
}

func (m *machine) set(i int, w word) { m.regs[i], m.before[i] = w, m.regs[i] }

func (m *machine) words(r uint32, bytes int) string {
	var all []string
	for i := range (bytes + 3) / 4 {
		w, ok := m.regs[index(r)+i]
		if !ok {
			m.t.Errorf("register %d is read, and was never written", index(r)+i)
		}
		all = append(all, w.String())
	}
	return strings.Join(all, ",")
}

// original is a part of the original destination of a connection.
type original struct{ expr.Ct }

// effect records an effect of the rule, and the packet's mark at that point.
func (m *machine) effect(format string, args ...any) {
	m.out = append(m.out, fmt.Sprintf(format, args...)+" with mark "+m.mark.String())
}

func (m *machine) step(x expr.Any) {
	switch x := x.(type) {
	case *expr.Payload:
		m.load(x.DestRegister, fmt.Sprintf("header%d", x.Base), int(x.Offset), int(x.Len))
	case *expr.Meta:
		m.meta(x)
	case *expr.Ct:
		switch {
		case x.Key == expr.CtKeySTATE && !x.SourceRegister:
			m.load(x.Register, "ctstate", 0, 4)
		case x.Key == expr.CtKeySTATUS && !x.SourceRegister:
			m.load(x.Register, "ctstatus", 0, 4)
		case x.Key == expr.CtKeyMARK && x.SourceRegister:
			m.ctMark = m.regs[index(x.Register)]
		case x.Key == expr.CtKeyMARK:
			m.set(index(x.Register), m.ctMark)
		default:
			m.t.Errorf("ct %+v", x)
		}
	case *original:
		n := 2
		if x.Key == unix.NFT_CT_DST_IP || x.Key == unix.NFT_CT_DST_IP6 {
			n = m.fam.AddrLen
		}
		m.load(x.Register, fmt.Sprintf("original%d", x.Key), 0, n)
	case *expr.Fib:
		m.load(x.Register, fmt.Sprintf("fib%t%t%t", x.FlagSADDR, x.FlagDADDR, x.ResultADDRTYPE), 0, 4)
	case *expr.Numgen:
		m.load(x.Register, fmt.Sprintf("numgen%d/%d/%d", x.Type, x.Modulus, x.Offset), 0, 4)
	case *expr.Hash:
		m.load(x.DestRegister, fmt.Sprintf("hash%d(%s)/%d seed %x offset %d", x.Type,
			m.words(x.SourceRegister, int(x.Length)), x.Modulus, x.Seed, x.Offset), 0, 4)
	case *expr.Bitwise:
		for i := 0; i < int(x.Len); i += 4 {
			w := m.regs[index(x.SourceRegister)+i/4]
			if w.and != "ffffffff" || w.xor != "00000000" {
				m.t.Errorf("bitwise of %s", w)
			}
			w.and, w.xor = hex.EncodeToString(x.Mask[i:i+4]), hex.EncodeToString(x.Xor[i:i+4])
			m.set(index(x.DestRegister)+i/4, w)
		}
	case *expr.Cmp:
		m.compare(x)
	case *expr.Lookup:
		m.lookup(x)
	case *expr.Dynset:
		m.dynset(x)
	case *expr.NAT:
		m.effect("nat %d %d to %s port %s", x.Type, x.Family, m.words(x.RegAddrMin, m.fam.AddrLen),
			m.words(x.RegProtoMin, 2))
	case *expr.Masq:
		m.effect("%+v", *x)
	case *expr.Reject:
		m.effect("%+v", *x)
	case *expr.Verdict:
		m.effect("verdict %d %s", x.Kind, x.Chain)
	default:
		m.t.Errorf("an expression of type %T", x)
	}
}

func (m *machine) dynset(x *expr.Dynset) {
	d := m.sets[x.SetName]
	data := m.words(x.SrcRegData, d.DataLen())
	if i := index(x.SrcRegData); i >= index(x.SrcRegKey) && i < index(x.SrcRegKey)+d.KeyLen()/4 {
		m.t.Errorf("register %d holds data and a part of the key", i)
	}
	m.effect("dynset %d %s[%s] = %s for %s, %v", x.Operation, x.SetName, m.words(x.SrcRegKey, d.KeyLen()), data,
		x.Timeout, x.Exprs)
}

func (m *machine) meta(x *expr.Meta) {
	if x.SourceRegister {
		w := m.regs[index(x.Register)]
		switch x.Key {
		case expr.MetaKeyMARK:
			m.mark = w
		case expr.MetaKeyPRIORITY:
			m.prio = w
		default:
			m.t.Errorf("meta %+v", x)
		}
		return
	}
	switch x.Key {
	case expr.MetaKeyMARK:
		m.set(index(x.Register), m.mark)
	case expr.MetaKeyPRIORITY:
		m.set(index(x.Register), m.prio)
	case expr.MetaKeyL4PROTO:
		m.load(x.Register, "l4proto", 0, 1)
	case expr.MetaKeyIIFNAME:
		m.load(x.Register, "iifname", 0, 16)
	default:
		m.t.Errorf("meta %+v", x)
	}
}

// compare records a match byte by byte, because nft loads only the bytes of a prefix that matter.
func (m *machine) compare(x *expr.Cmp) {
	var all []string
	for i, is := range x.Data {
		w := m.regs[index(x.Register)+i/4]
		and, xor := w.and[i%4*2:i%4*2+2], w.xor[i%4*2:i%4*2+2]
		if and == "00" && xor == "00" && is == 0 {
			continue
		}
		all = append(all, fmt.Sprintf("%s+%d&%s^%s=%02x", w.what, w.off+i%4, and, xor, is))
	}
	m.out = append(m.out, fmt.Sprintf("cmp %d %s", x.Op, strings.Join(all, " ")))
}

func (m *machine) lookup(x *expr.Lookup) {
	d := m.sets[x.SetName]
	switch {
	case d == nil: // an anonymous set
		m.protocols(x)
	case d.Verdict:
		m.effect("vmap %s[%s]", d.Name, m.words(x.SourceRegister, d.KeyLen()))
	case x.IsDestRegSet:
		m.load(x.DestRegister, fmt.Sprintf("%s[%s]", d.Name, m.words(x.SourceRegister, d.KeyLen())), 0, d.DataLen())
	default:
		m.out = append(m.out, fmt.Sprintf("in %s[%s] %t", d.Name, m.words(x.SourceRegister, d.KeyLen()), x.Invert))
	}
}

// protocols checks the only anonymous set that a rule may have.
func (m *machine) protocols(x *expr.Lookup) {
	if w := m.words(x.SourceRegister, 4); w != "l4proto+0/1" || x.Invert || x.IsDestRegSet {
		m.t.Errorf("a lookup of %s in %s", w, x.SetName)
	}
	c, err := nft.New()
	if err != nil {
		m.t.Fatal(err)
	}
	fam := nft.TableFamilyIPv4
	if m.fam.Family == lb.IPv6 {
		fam = nft.TableFamilyIPv6
	}
	els, err := c.GetSetElements(&nft.Set{Table: &nft.Table{Name: TableName, Family: fam}, Name: x.SetName})
	if err != nil {
		m.t.Fatal(err)
	}
	var protos []byte
	for _, e := range els {
		protos = append(protos, e.Key[0])
	}
	slices.Sort(protos)
	if !slices.Equal(protos, []byte{byte(lb.TCP), byte(lb.UDP), byte(lb.SCTP)}) {
		m.t.Errorf("%s holds %v", x.SetName, protos)
	}
}

// sameSets compares properties that Reset ignores: the maximum size of a set, and its comment.
func sameSets(t *testing.T, p *Plane) {
	t.Helper()
	found := 0
	err := p.reader().EachSet(t.Context(), func(name string, body []byte) {
		for _, d := range p.rules.sets {
			if d.Name != name {
				continue
			}
			found++
			size := netlink.BE32(netlink.Attribute(netlink.Attribute(body, unix.NFTA_SET_DESC),
				unix.NFTA_SET_DESC_SIZE))
			comment, _ := userdata.GetString(netlink.Attribute(body, unix.NFTA_SET_USERDATA),
				userdata.NFTNL_UDATA_SET_COMMENT)
			if size != d.Size || comment != d.Comment {
				t.Errorf("set %s: at most %d elements, comment %q; want %d, %q", name, size, comment, d.Size, d.Comment)
			}
		}
	})
	if err != nil || found != int(setCount) {
		t.Errorf("%d sets, want %d: %v", found, setCount, err)
	}
}

// sameMeaning compares the kernel's rules with those that the plane would write.
func sameMeaning(t *testing.T, p *Plane) {
	t.Helper()
	chains, _ := p.newChange(p.st).structure()
	for _, ch := range chains {
		rules := kernelRules(t, p, ch.Name)
		if len(rules) != len(ch.Rules) {
			t.Errorf("chain %s has %d rules, want %d", ch.Name, len(rules), len(ch.Rules))
			continue
		}
		for i, r := range rules {
			is := meaning(t, p.ip, p.rules.sets[:], r)
			want := meaning(t, p.ip, p.rules.sets[:], exprsOf(t, p, ch.Rules[i].Expressions))
			if !slices.Equal(is, want) {
				t.Errorf("chain %s, rule %d, %s, means\n  %s\nwant\n  %s", ch.Name, i, ch.Rules[i].Comment,
					strings.Join(is, "\n  "), strings.Join(want, "\n  "))
			}
		}
	}
}

// kernelRules reads the rules of a chain.
func kernelRules(t *testing.T, p *Plane, chain string) [][]expr.Any {
	var rules [][]expr.Any
	err := p.reader().RulesOf(t.Context(), chain, func(body []byte) {
		rules = append(rules, exprsOf(t, p, netlink.Attribute(body, unix.NFTA_RULE_EXPRESSIONS)))
	})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// exprsOf reads the expressions of a rule.
func exprsOf(t *testing.T, p *Plane, b []byte) []expr.Any {
	var all []expr.Any
	netlink.Attributes(b, func(_ uint16, x []byte) bool {
		if e := kernelExpr(t, p, netlink.CStr(netlink.Attribute(x, unix.NFTA_EXPR_NAME)),
			netlink.Attribute(x, unix.NFTA_EXPR_DATA)); e != nil {
			all = append(all, e)
		}
		return true
	})
	return all
}

// kernelExpr reads one expression, and returns nil if it has no effect.
func kernelExpr(t *testing.T, p *Plane, name string, data []byte) expr.Any {
	var e expr.Any
	switch name {
	case "payload":
		e = &expr.Payload{}
	case "meta":
		e = &expr.Meta{}
	case "ct":
		// The library expects four bytes.
		if d := netlink.Attribute(data, unix.NFTA_CT_DIRECTION); d != nil {
			if d[0] != 0 {
				t.Errorf("ct direction %d", d[0])
			}
			return &original{expr.Ct{Key: expr.CtKey(netlink.BE32(netlink.Attribute(data, unix.NFTA_CT_KEY))),
				Register: netlink.BE32(netlink.Attribute(data, unix.NFTA_CT_DREG))}}
		}
		e = &expr.Ct{}
	case "fib":
		e = &expr.Fib{}
	case "numgen":
		e = &expr.Numgen{}
	case "hash":
		e = &expr.Hash{}
	case "bitwise":
		e = &expr.Bitwise{}
	case "cmp":
		e = &expr.Cmp{}
	case "lookup":
		e = &expr.Lookup{}
	case "dynset":
		e = &expr.Dynset{}
	case "nat":
		e = &expr.NAT{}
	case "masq":
		e = &expr.Masq{}
	case "reject":
		e = &expr.Reject{}
	case "immediate":
		e = &expr.Verdict{}
	case "byteorder":
		// nft swaps the bytes of each part of a key that may be a range. The protocol has one byte,
		// and a swap works on two, so nothing happens.
		if n, size := netlink.BE32(netlink.Attribute(data, unix.NFTA_BYTEORDER_LEN)),
			netlink.BE32(netlink.Attribute(data, unix.NFTA_BYTEORDER_SIZE)); n >= size {
			t.Errorf("a swap of %d bytes by %d", n, size)
		}
		return nil
	default:
		t.Errorf("an expression %s", name)
		return nil
	}
	if err := expr.Unmarshal(p.ip.Proto, data, e); err != nil {
		t.Errorf("expression %s: %v", name, err)
	}
	if ct, ok := e.(*expr.Ct); ok { // the library does not read its source register
		if r := netlink.Attribute(data, unix.NFTA_CT_SREG); r != nil {
			ct.Register, ct.SourceRegister = netlink.BE32(r), true
		}
	}
	return e
}
