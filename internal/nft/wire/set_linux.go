package wire

import (
	"fmt"
	"slices"
	"strings"

	nft "github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Field is the type of a part of a key or of data.
type Field struct {
	Type nft.SetDatatype
	// Size is how many bytes it takes in a register, padded.
	Size int
	// Number: it is in a register in the machine's byte order.
	Number bool
	// Expression is one of that type, for sets that nft must know by expressions (see [Set.ByExpression]).
	Expression Expression
	// Text is the text of a value.
	Text func(value []byte) string
}

// Expression is an expression as text, and as the nft program writes it down in the user data of a set: the kind is one of its enum
// expr_types, what belongs to it are numbers of its tables. The kernel keeps them for it, so they stay what they are.
type Expression struct {
	Text       string
	Kind       uint32
	Parameters []uint32
}

// Kinds of expressions.
const (
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23
)

// Fields are a concatenation.
type Fields []Field

// Width is how many bytes it has.
func (fs Fields) Width() int {
	n := 0
	for _, f := range fs {
		n += f.Size
	}
	return n
}

// Join is a text of each field, with dots between.
func (fs Fields) Join(text func(f Field) string) string {
	all := make([]string, len(fs))
	for i, f := range fs {
		all[i] = text(f)
	}
	return strings.Join(all, " . ")
}

// Text is the text of a value.
func (fs Fields) Text(value []byte) string {
	return fs.Join(func(f Field) string {
		text := f.Text(value[:f.Size])
		value = value[f.Size:]
		return text
	})
}

// nftType is the number under which the nft program knows a concatenation of types.
func (fs Fields) nftType() uint32 {
	var t uint32
	for _, f := range fs {
		t = t<<nft.SetConcatTypeBits | f.Type.GetNFTMagic()
	}
	return t
}

// byteOrder is the machine's for what the nft program must print as such an integer.
func (fs Fields) byteOrder() uint32 {
	const host, big = 1, 2
	if len(fs) == 1 && fs[0].Number {
		return host
	}
	return big
}

// typeof is the user data for the expressions.
func (fs Fields) typeof() []byte {
	if len(fs) == 1 {
		return fs[0].userdata()
	}
	var all []byte
	for i, f := range fs {
		all = userdata.Append(all, userdata.Type(i), f.userdata())
	}
	return kindAndData(exprConcat, all)
}

func (f Field) userdata() []byte {
	var data []byte
	for i, p := range f.Expression.Parameters {
		data = userdata.AppendUint32(data, userdata.Type(i), p)
	}
	return kindAndData(f.Expression.Kind, data)
}

func kindAndData(kind uint32, data []byte) []byte {
	const typeofKind, typeofData = 0, 1 // NFTNL_UDATA_SET_TYPEOF_EXPR and _DATA
	return userdata.Append(userdata.AppendUint32(nil, typeofKind, kind), typeofData, data)
}

// Set describes a set, or a map. Its elements are records: the key, then the data, each as wide as in registers.
type Set struct {
	Name    string
	Key     Fields
	Data    Fields // nil for a set or a verdict map
	Verdict bool
	Flags   uint32 // NFT_SET_*, but for NFT_SET_MAP
	Size    uint32 // the most elements; 0 for no limit
	Comment string
}

// KeyLen is how many bytes a key has.
func (d *Set) KeyLen() int { return d.Key.Width() }

// DataLen is how many bytes the data of an element has; 0 where that is a verdict.
func (d *Set) DataLen() int { return d.Data.Width() }

// RecordLen is how many bytes a record has.
func (d *Set) RecordLen() int { return d.KeyLen() + d.DataLen() }

// IsMap reports whether elements have data, or a verdict.
func (d *Set) IsMap() bool { return d.Data != nil || d.Verdict }

// Dynamic reports whether packets fill the set; then its elements are nobody's to compare.
func (d *Set) Dynamic() bool { return d.Flags&unix.NFT_SET_EVAL != 0 }

// ByExpression reports whether the nft program knows the types of the set by expressions, as in
// "typeof meta mark . numgen random mod 1 : ip daddr . th dport". It must where a field has no type with a name.
func (d *Set) ByExpression() bool {
	return slices.ContainsFunc(d.Key, func(f Field) bool { return f.Expression.Kind == exprNumgen })
}

// String says which it is, as in "map services".
func (d *Set) String() string {
	if d.IsMap() {
		return "map " + d.Name
	}
	return "set " + d.Name
}

// ElementText names the element of a key.
func (d *Set) ElementText(key []byte) string {
	return fmt.Sprintf("element { %s } of %s", d.Key.Text(key), d)
}

// DataText says the data of an element, or that it is there; "" for nil, which is that of none.
func (d *Set) DataText(data []byte) string {
	switch {
	case data == nil:
		return ""
	case d.Data == nil:
		return IsThere
	}
	return d.Data.Text(data)
}

// IsThere is the state of what has no other, such as a set.
const IsThere = "there"

// flags is what NFTA_SET_FLAGS holds.
func (d *Set) flags() uint32 {
	if d.IsMap() {
		return d.Flags | unix.NFT_SET_MAP
	}
	return d.Flags
}

// userdata makes the nft program print integers as such, and shows the comment.
func (d *Set) userdata() []byte {
	u := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, d.Key.byteOrder())
	if d.Data != nil {
		u = userdata.AppendUint32(u, userdata.NFTNL_UDATA_SET_DATABYTEORDER, d.Data.byteOrder())
	}
	if d.ByExpression() {
		u = userdata.Append(u, userdata.NFTNL_UDATA_SET_KEY_TYPEOF, d.Key.typeof())
		if d.Data != nil {
			u = userdata.Append(u, userdata.NFTNL_UDATA_SET_DATA_TYPEOF, d.Data.typeof())
		}
	}
	return userdata.AppendString(u, userdata.NFTNL_UDATA_SET_COMMENT, d.Comment)
}

// Matches reports whether the kernel's set, of which that is the body of a message, is as [Transaction.AddSet] makes it.
func (d *Set) Matches(body []byte) bool {
	is := func(attr uint16, want uint32) bool { return netlink.BE32(netlink.Attribute(body, attr)) == want }
	if !is(unix.NFTA_SET_FLAGS, d.flags()) || !is(unix.NFTA_SET_KEY_TYPE, d.Key.nftType()) || !is(unix.NFTA_SET_KEY_LEN, uint32(d.KeyLen())) {
		return false
	}
	if d.Verdict {
		return is(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	}
	return is(unix.NFTA_SET_DATA_TYPE, d.Data.nftType()) && is(unix.NFTA_SET_DATA_LEN, uint32(d.DataLen()))
}

// ElementKey is the key of an element of the kernel's.
func ElementKey(el []byte) []byte {
	return netlink.Attribute(netlink.Attribute(el, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)
}

// Record appends an element of the kernel's to b, as a record.
func (d *Set) Record(b, el []byte) []byte {
	b = append(b, ElementKey(el)...)
	if d.Data != nil {
		b = append(b, netlink.Attribute(netlink.Attribute(el, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VALUE)...)
	}
	return b
}
