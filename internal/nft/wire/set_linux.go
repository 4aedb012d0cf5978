package wire

import (
	"fmt"
	"slices"
	"strings"
	"time"

	nft "github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Field is the type of a part of a key or of data.
type Field struct {
	Type nft.SetDatatype
	// Size is the number of bytes in a register, padded.
	Size int
	// Number: the register has the machine's byte order.
	Number bool
	// Expression is an expression of that type, for sets that nft must describe by expressions (see
	// [Set.ByExpression]).
	Expression Expression
	// Text formats a value.
	Text func(value []byte) string
}

// Expression is an expression as text, and in the format that the nft program stores in a set's
// user data: a kind of its enum expr_types, with numbers of its tables. The kernel stores them for
// nft, so they are stable.
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

// Fields is a concatenation.
type Fields []Field

// Width returns the number of bytes.
func (fs Fields) Width() int {
	n := 0
	for _, f := range fs {
		n += f.Size
	}
	return n
}

// Join joins the texts of the fields with dots.
func (fs Fields) Join(text func(f Field) string) string {
	all := make([]string, len(fs))
	for i, f := range fs {
		all[i] = text(f)
	}
	return strings.Join(all, " . ")
}

// Text formats a value.
func (fs Fields) Text(value []byte) string {
	return fs.Join(func(f Field) string {
		text := f.Text(value[:f.Size])
		value = value[f.Size:]
		return text
	})
}

// nftType returns the number by which the nft program identifies a concatenation of types.
func (fs Fields) nftType() uint32 {
	var t uint32
	for _, f := range fs {
		t = t<<nft.SetConcatTypeBits | f.Type.GetNFTMagic()
	}
	return t
}

// byteOrder returns the machine's byte order for values that the nft program must print as integers
// of that order.
func (fs Fields) byteOrder() uint32 {
	const host, big = 1, 2
	if len(fs) == 1 && fs[0].Number {
		return host
	}
	return big
}

// typeof returns the user data for the expressions.
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

// Set describes a set, or a map. Its elements are records: the key, then the data, each as wide as
// in registers.
type Set struct {
	Name    string
	Key     Fields
	Data    Fields // nil for a set or a verdict map
	Verdict bool
	Flags   uint32 // NFT_SET_*, but for NFT_SET_MAP
	Size    uint32 // maximum number of elements; 0 for no limit
	// Timeout is how long an element without its own timeout lives, in a set of such elements; 0 is
	// for ever.
	Timeout time.Duration
	Comment string
}

// KeyLen returns the number of bytes of a key.
func (d *Set) KeyLen() int { return d.Key.Width() }

// DataLen returns the number of bytes of an element's data; 0 for a verdict.
func (d *Set) DataLen() int { return d.Data.Width() }

// RecordLen returns the number of bytes of a record.
func (d *Set) RecordLen() int { return d.KeyLen() + d.DataLen() }

// IsMap reports whether elements have data, or a verdict.
func (d *Set) IsMap() bool { return d.Data != nil || d.Verdict }

// Dynamic reports whether packets fill the set; its elements are not compared.
func (d *Set) Dynamic() bool { return d.Flags&unix.NFT_SET_EVAL != 0 }

// ByExpression reports whether the nft program describes the types of the set by expressions, as in
// "typeof meta mark . numgen random mod 1 : ip daddr . th dport". It must if a field's type has no
// name.
func (d *Set) ByExpression() bool {
	return slices.ContainsFunc(d.Key, func(f Field) bool { return f.Expression.Kind == exprNumgen })
}

// String names the set, as in "map services".
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

// DataText formats the data of an element, or reports that it exists; nil means no element, and
// gives "".
func (d *Set) DataText(data []byte) string {
	switch {
	case data == nil:
		return ""
	case d.Data == nil:
		return IsThere
	}
	return d.Data.Text(data)
}

// IsThere is the state of an existing object without other state, such as a set.
const IsThere = "there"

// flags returns the value of NFTA_SET_FLAGS.
func (d *Set) flags() uint32 {
	if d.IsMap() {
		return d.Flags | unix.NFT_SET_MAP
	}
	return d.Flags
}

// userdata returns user data that makes the nft program print integers as such, and show the
// comment.
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

// Matches reports whether the kernel's set, given by the body of a message about it, equals the one
// that [Transaction.AddSet] creates.
func (d *Set) Matches(body []byte) bool {
	is := func(attr uint16, want uint32) bool { return netlink.BE32(netlink.Attribute(body, attr)) == want }
	if !is(unix.NFTA_SET_FLAGS, d.flags()) || !is(unix.NFTA_SET_KEY_TYPE, d.Key.nftType()) ||
		!is(unix.NFTA_SET_KEY_LEN, uint32(d.KeyLen())) {
		return false
	}
	if d.Verdict {
		return is(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	}
	return is(unix.NFTA_SET_DATA_TYPE, d.Data.nftType()) && is(unix.NFTA_SET_DATA_LEN, uint32(d.DataLen()))
}

// ElementKey returns the key of an element in the kernel's format.
func ElementKey(el []byte) []byte {
	return netlink.Attribute(netlink.Attribute(el, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)
}

// Record appends an element in the kernel's format to b, as a record.
func (d *Set) Record(b, el []byte) []byte {
	b = append(b, ElementKey(el)...)
	if d.Data != nil {
		b = append(b, netlink.Attribute(netlink.Attribute(el, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VALUE)...)
	}
	return b
}
