package netlink_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	peer "github.com/mdlayher/netlink"

	"kube-proxy/internal/netlink"
)

// The attributes are those that another implementation encodes.
func TestAttributesAreEncoded(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")
	for name, c := range map[string]struct {
		ours   func(*netlink.Encoder)
		theirs func(*peer.AttributeEncoder)
	}{
		"bytes": {func(e *netlink.Encoder) { e.Bytes(1, []byte{1, 2, 3, 4, 5}) },
			func(e *peer.AttributeEncoder) { e.Bytes(1, []byte{1, 2, 3, 4, 5}) }},
		"an IPv4 address": {func(e *netlink.Encoder) { e.Addr(2, v4) },
			func(e *peer.AttributeEncoder) { e.Bytes(2, v4.AsSlice()) }},
		"an IPv6 address": {func(e *netlink.Encoder) { e.Addr(2, v6) },
			func(e *peer.AttributeEncoder) { e.Bytes(2, v6.AsSlice()) }},
		"strings": {func(e *netlink.Encoder) { e.Str(3, "eth0"); e.Str(4, "abc") },
			func(e *peer.AttributeEncoder) { e.String(3, "eth0"); e.String(4, "abc") }},
		"numbers": {func(e *netlink.Encoder) {
			e.U8(5, 200)
			e.U16(6, 0x1234)
			e.U32(7, 0x12345678)
			e.U64(8, 1<<40+1)
		},
			func(e *peer.AttributeEncoder) {
				e.Uint8(5, 200)
				e.Uint16(6, 0x1234)
				e.Uint32(7, 0x12345678)
				e.Uint64(8, 1<<40+1)
			}},
		"native numbers": {func(e *netlink.Encoder) { e.Native16(6, 0x1234); e.Native32(7, 0x12345678) },
			func(e *peer.AttributeEncoder) {
				e.ByteOrder = binary.NativeEndian
				e.Uint16(6, 0x1234)
				e.Uint32(7, 0x12345678)
			}},
		"nested": {func(e *netlink.Encoder) {
			at := e.Nest(9)
			e.U16(1, 7)
			e.EndNest(at)
			e.U8(2, 1)
		}, func(e *peer.AttributeEncoder) {
			e.Nested(9, func(n *peer.AttributeEncoder) error {
				n.ByteOrder = binary.BigEndian
				n.Uint16(1, 7)
				return nil
			})
			e.Uint8(2, 1)
		}},
	} {
		other := peer.NewAttributeEncoder()
		other.ByteOrder = binary.BigEndian
		c.theirs(other)
		want, err := other.Encode()
		if err != nil {
			t.Fatal(err)
		}
		var e netlink.Encoder
		c.ours(&e)
		if !bytes.Equal(e.B, want) {
			t.Errorf("%s: % x, want % x", name, e.B, want)
		}
	}
}

// A message has its length, type, flags and number; one of netfilter its family and resource too.
func TestMessagesAreEncoded(t *testing.T) {
	e := netlink.Encoder{B: make([]byte, 8)} // behind another message
	at := e.Netfilter(0x0a01, 0x400, 10, 77, 0x0102)
	e.U32(1, 5)
	e.EndMessage(at)
	var got peer.Message
	if err := got.UnmarshalBinary(e.B[at:]); err != nil {
		t.Fatal(err)
	}
	want := peer.Header{Length: 28, Type: 0x0a01, Flags: 0x401, Sequence: 77}
	if got.Header != want || !bytes.Equal(got.Data[:4], []byte{10, 0, 1, 2}) {
		t.Errorf("got %+v with % x, want %+v", got.Header, got.Data, want)
	}
}

// Values are read back, also from the last attribute, which may lack its padding. A missing value
// is zero, and anything behind a malformed attribute is ignored.
func TestAttributesAreRead(t *testing.T) {
	var e netlink.Encoder
	e.U8(1, 200)
	e.U16(2, 0x1234)
	e.U32(3, 0x12345678)
	e.U64(4, 1<<40+1)
	e.Native16(5, 0x1234)
	e.Native32(6, 0x12345678)
	nest := e.Nest(7)
	e.EndNest(nest)
	e.Bytes(8, nil)
	e.Str(9, "abcd")
	e.U8(9, 1) // only the first counts
	of := func(typ uint16) []byte { return netlink.Attribute(e.B, typ) }
	if netlink.U8(of(1)) != 200 || netlink.BE16(of(2)) != 0x1234 || netlink.BE32(of(3)) != 0x12345678 ||
		netlink.BE64(of(4)) != 1<<40+1 || netlink.Native16(of(5)) != 0x1234 ||
		netlink.Native32(of(6)) != 0x12345678 || netlink.CStr(of(9)) != "abcd" {
		t.Errorf("% x", e.B)
	}
	if of(10) != nil || netlink.U8(nil) != 0 || netlink.BE16(of(1)) != 0 || netlink.BE32(of(2)) != 0 ||
		netlink.BE64(of(3)) != 0 || netlink.CStr(nil) != "" || netlink.CStr([]byte("no end")) != "no end" {
		t.Error("a missing or short value is not zero")
	}
	types := func(b []byte) (all []uint16) {
		netlink.Attributes(b, func(typ uint16, _ []byte) bool {
			all = append(all, typ)
			return len(all) < 3
		})
		return all
	}
	var two netlink.Encoder
	two.Bytes(1, []byte{1})
	whole := len(two.B)
	two.Bytes(2, []byte{1})
	for name, c := range map[string]struct {
		b    []byte
		want []uint16
	}{
		"nothing":               {nil, nil},
		"at most three":         {e.B, []uint16{1, 2, 3}},
		"without the padding":   {two.B[:len(two.B)-3], []uint16{1, 2}},
		"an empty last one":     {append(two.B[:whole:whole], 4, 0, 3, 0), []uint16{1, 3}},
		"longer than the rest":  {append(two.B[:whole:whole], 9, 0, 3, 0), []uint16{1}},
		"shorter than its head": {append(two.B[:whole:whole], 3, 0, 3, 0, 0, 0), []uint16{1}},
		"less than a head":      {append(two.B[:whole:whole], 4, 0, 3), []uint16{1}},
		"zeros":                 {make([]byte, 8), nil},
	} {
		if got := types(c.b); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
