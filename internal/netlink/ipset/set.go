package ipset

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// Type is a type of set, by its name in the kernel and in the program ipset.
type Type string

// The types that this package knows.
const (
	HashIP        Type = "hash:ip"
	HashIPPort    Type = "hash:ip,port"
	HashIPPortIP  Type = "hash:ip,port,ip"
	HashIPPortNet Type = "hash:ip,port,net"
	BitmapPort    Type = "bitmap:port" // of the ports 0 to 65535
)

// Family is the family of the addresses in a set, by the kernel's number (AF_INET, AF_INET6).
type Family uint8

// The families. A set of ports has none.
const (
	IPv4 Family = 2
	IPv6 Family = 10
)

func (f Family) String() string {
	switch f {
	case IPv4:
		return "inet"
	case IPv6:
		return "inet6"
	}
	return "no family"
}

func (f Family) has(a netip.Addr) bool {
	return f == IPv4 && a.Is4() || f == IPv6 && a.Is6() && a.Zone() == ""
}

const (
	// MaxName is how long a name may be, in bytes (IPSET_MAXNAMELEN).
	MaxName = 31
	// MaxElem is the default limit of members. The kernel allocates memory for members that exist.
	// The program's default, 65536, is too little for 100,000 Services.
	MaxElem = 1 << 22
)

// Set describes a set.
type Set struct {
	Name string
	Type Type
	// Family is the family of its addresses; a BitmapPort needs none.
	Family Family
	// MaxElem limits its members; 0 is the constant. A BitmapPort has no limit.
	MaxElem uint32
	// SkbInfo: members may carry a mark.
	SkbInfo bool
}

// String describes the set as the program ipset creates it.
func (s Set) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", s.Name, s.Type)
	if s.Type == BitmapPort {
		b.WriteString(" range 0-65535")
	} else {
		fmt.Fprintf(&b, " family %s hashsize %d maxelem %d", s.Family, hashSize, s.maxElem())
	}
	if s.SkbInfo {
		b.WriteString(" skbinfo")
	}
	return b.String()
}

// hashSize is the initial number of buckets, the program's; the kernel doubles it.
const hashSize = 1024

func (s Set) maxElem() uint32 {
	return cmp.Or(s.MaxElem, MaxElem)
}

func (s Set) check() error {
	if err := checkName(s.Name); err != nil {
		return err
	}
	if _, known := kinds[s.Type]; !known {
		return fmt.Errorf("ipset %s: unknown type %q", s.Name, s.Type)
	}
	if s.Type != BitmapPort && s.Family != IPv4 && s.Family != IPv6 {
		return fmt.Errorf("ipset %s: it needs a family", s.Name)
	}
	return nil
}

func checkName(name string) error {
	if name == "" || len(name) > MaxName || strings.ContainsRune(name, 0) {
		return fmt.Errorf("ipset name %q: want 1 to %d bytes", name, MaxName)
	}
	return nil
}

// Header describes a set in the kernel.
type Header struct {
	Set
	Members uint32
	// References counts rules and sets that refer to it. Only a set without references can be
	// destroyed.
	References uint32
	// Other are other options that change its behaviour, in the program's words ("timeout 60");
	// empty for sets of this package.
	Other string
}

// Differs says why the set cannot serve as want; "" if it can.
func (h Header) Differs(want Set) string {
	switch {
	case h.Type != want.Type:
		return "type " + string(h.Type)
	case h.Type != BitmapPort && h.Family != want.Family:
		return "family " + h.Family.String()
	case h.Other != "":
		return h.Other
	case want.SkbInfo && !h.SkbInfo:
		return "no skbinfo"
	case h.Type != BitmapPort && h.MaxElem < want.maxElem():
		return fmt.Sprintf("maxelem %d", h.MaxElem)
	}
	return ""
}

// Member is a member of a set. It is comparable, and serves as a map key.
type Member struct {
	Addr  netip.Addr   // not in a BitmapPort
	Net   netip.Prefix // of HashIPPortNet, from /1 on (see [Nets]); of HashIPPortIP one with all bits
	Port  uint16       // not in a HashIP
	Proto uint8        // beside a port, but not in a BitmapPort: IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP
	// Mark and Mask are the packet mark, in a set with SkbInfo. A mark has no bit outside of its
	// mask.
	Mark, Mask uint32
}

// Key returns the member without its mark: a set has one member for each key.
func (m Member) Key() Member {
	m.Mark, m.Mask = 0, 0
	return m
}

// Nets returns the prefixes of members for a prefix: itself, or the halves of /0, which sets do not
// take.
func Nets(p netip.Prefix) []netip.Prefix {
	if p.Bits() > 0 {
		return []netip.Prefix{p.Masked()}
	}
	half := p.Masked().Addr().AsSlice()
	half[0] = 0x80
	upper, _ := netip.AddrFromSlice(half)
	return []netip.Prefix{netip.PrefixFrom(p.Masked().Addr(), 1), netip.PrefixFrom(upper, 1)}
}

// String returns the member as the program ipset writes it.
func (m Member) String() string {
	var b strings.Builder
	switch {
	case !m.Addr.IsValid():
		fmt.Fprint(&b, m.Port)
	case m.Proto == 0:
		b.WriteString(m.Addr.String())
	default:
		fmt.Fprintf(&b, "%s,%s:%d", m.Addr, cmp.Or(protocols[m.Proto], fmt.Sprint(m.Proto)), m.Port)
	}
	if m.Net.IsValid() {
		b.WriteByte(',')
		if m.Net.IsSingleIP() {
			b.WriteString(m.Net.Addr().String())
		} else {
			b.WriteString(m.Net.String())
		}
	}
	switch {
	case m.Mark == 0 && m.Mask == 0:
	case m.Mask == 1<<32-1:
		fmt.Fprintf(&b, " skbmark 0x%x", m.Mark)
	default:
		fmt.Fprintf(&b, " skbmark 0x%x/0x%x", m.Mark, m.Mask)
	}
	return b.String()
}

const (
	tcp  = 6 // IPPROTO_*
	udp  = 17
	sctp = 132
)

var protocols = map[uint8]string{tcp: "tcp", udp: "udp", sctp: "sctp"}

// check returns an error if a set cannot have the member. The kernel accepts members that pass.
func (m Member) check(s *Set) error {
	wants, has := kinds[s.Type].shape, shape{m.Addr.IsValid(), m.Proto != 0, m.Net.IsValid()}
	switch {
	case has != wants, !has.proto && m.Port != 0 && s.Type != BitmapPort:
		return fmt.Errorf("a %s has no such members", s.Type)
	case has.addr && !s.Family.has(m.Addr), has.net && !s.Family.has(m.Net.Addr()):
		return fmt.Errorf("it holds addresses of family %s", s.Family)
	case has.proto && m.Proto != tcp && m.Proto != udp && m.Proto != sctp:
		return fmt.Errorf("protocol %d has no ports", m.Proto)
	case s.Type == HashIPPortIP && !m.Net.IsSingleIP():
		return fmt.Errorf("a %s has no prefixes", s.Type)
	case has.net && m.Net.Bits() < 1:
		return fmt.Errorf("the prefix of all addresses must be split into halves")
	case has.net && m.Net != m.Net.Masked():
		return fmt.Errorf("the prefix has bits beyond its length")
	case (m.Mark != 0 || m.Mask != 0) && !s.SkbInfo:
		return fmt.Errorf("it holds no marks")
	case m.Mark&^m.Mask != 0:
		return fmt.Errorf("the mark has bits outside its mask")
	case has.addr && m.Addr.IsUnspecified():
		return fmt.Errorf("the address is unspecified")
	}
	return nil
}

// shape says which parts members have.
type shape struct{ addr, proto, net bool }

// kinds are the types: the shape of their members, and the first format with marks. Old programs
// cannot list later ones.
var kinds = map[Type]struct {
	shape
	revision uint8
}{
	HashIP:        {shape{addr: true}, 4},
	HashIPPort:    {shape{addr: true, proto: true}, 5},
	HashIPPortIP:  {shape{true, true, true}, 5},
	HashIPPortNet: {shape{true, true, true}, 7},
	BitmapPort:    {shape{}, 3},
}

// Op adds or deletes a member. Adding an existing one sets its mark; deleting a missing one does
// nothing.
type Op struct {
	Set    *Set
	Delete bool
	Member Member // for a deletion only the key counts
}

func (o Op) String() string {
	if o.Delete {
		return fmt.Sprintf("delete %s from ipset %s", o.Member.Key(), o.Set.Name)
	}
	return fmt.Sprintf("add %s to ipset %s", o.Member, o.Set.Name)
}
