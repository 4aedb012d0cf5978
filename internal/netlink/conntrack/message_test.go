package conntrack

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"reflect"
	"testing"

	"kube-proxy/internal/netlink"
)

const (
	tcp, udp  = 6, 17
	headerLen = 16 // struct nlmsghdr
)

// appendEntry appends the attributes of client's entry with the service at to, with replies from
// from.
func appendEntry(e *netlink.Encoder, client, to, from netip.AddrPort, proto uint8) {
	appendTuple(e, ctaTupleOrig, Tuple{From: client, To: to, Proto: proto}, all)
	appendTuple(e, ctaTupleReply, Tuple{From: from, To: client, Proto: proto}, all)
}

var (
	client = netip.MustParseAddrPort("192.0.2.7:40000")
	dns    = netip.MustParseAddrPort("10.96.0.10:53")
	pod    = netip.MustParseAddrPort("10.1.0.1:5353")
)

func sample() []byte {
	e := netlink.Encoder{B: []byte{2, 0, 0, 0}}
	appendEntry(&e, client, dns, pod, udp)
	e.U32(ctaStatus, 0x1ae)
	e.U32(ctaID, 0x01020304)
	e.U16(ctaZone, 7)
	return e.B
}

func TestParse(t *testing.T) {
	var e Entry
	if !e.Parse(sample()) {
		t.Fatal("no entry")
	}
	e.tuple, e.id, e.zone = nil, nil, nil
	want := Entry{Orig: Tuple{client, dns, udp, true}, Reply: Tuple{pod, client, udp, true}, Status: 0x1ae, Zone: 7}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("%+v, want %+v", e, want)
	}
	six := Entry{Orig: Tuple{netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("[2001:db8::2]:2"),
		tcp, true},
		Reply: Tuple{netip.MustParseAddrPort("[2001:db8::3]:3"), netip.MustParseAddrPort("[2001:db8::1]:1"), tcp,
			true},
		Status: SeenReply | Assured | Confirmed, Timeout: 86400, Mark: 0x4000, State: 3}
	ok := e.Parse(six.AppendNew(nil, 10)[headerLen:])
	e.tuple = nil
	if !ok || !reflect.DeepEqual(e, six) {
		t.Errorf("IPv6: %+v, %v; want %+v", e, ok, six)
	}
	// ICMP has an id instead of ports.
	icmp := bytes.ReplaceAll(sample(), []byte{6, 0, ctaProtoDstPort, 0}, []byte{6, 0, 9, 0})
	if e.Parse(icmp) {
		t.Error("an entry without ports is one")
	}
}

// The request to delete names the entry by its tuple, id and zone as they arrived. Without them no
// request is made, because it would mean all entries.
func TestAppendDelete(t *testing.T) {
	var e Entry
	e.Parse(sample())
	b, ok := e.AppendDelete([]byte("before!!"), 2)
	if !ok {
		t.Fatal("no request")
	}
	b = b[8:]
	if n := binary.NativeEndian.Uint32(b); int(n) != len(b) {
		t.Errorf("length %d, have %d bytes", n, len(b))
	}
	if typ := binary.NativeEndian.Uint16(b[4:]); typ != Delete {
		t.Errorf("type %#x", typ)
	}
	// A request lacks the reply tuple, so Parse rejects it.
	var again Entry
	again.Parse(b[headerLen:])
	if !bytes.Equal(again.tuple, e.tuple) || !bytes.Equal(again.id, e.id) || !bytes.Equal(again.zone, e.zone) {
		t.Errorf("the request names %+v, want %+v", again, e)
	}
	for name, e := range map[string]Entry{"nothing": {}, "no id": {tuple: e.tuple}, "no tuple": {id: e.id},
		"an empty tuple": {tuple: e.tuple[:0], id: e.id}} {
		if b, ok := e.AppendDelete(nil, 2); ok || len(b) > 0 {
			t.Errorf("an entry with %s: request %x", name, b)
		}
	}
}

// Parse returns for any bytes.
func FuzzParse(f *testing.F) {
	f.Add(sample())
	f.Add(sample()[:30])
	f.Add([]byte{2, 0, 0, 0, 4, 0, 1, 0x80, 3, 0, 2, 0})
	f.Add([]byte{2, 0, 0, 0, 12, 0, 4, 0x80, 8, 0, 1, 0x80, 5, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Entry
		if ok := e.Parse(b); ok && (!e.Orig.To.IsValid() || !e.Reply.From.IsValid() || e.tuple == nil) {
			t.Errorf("entry %+v", e)
		}
	})
}

func TestNoAllocs(t *testing.T) {
	msg := sample()
	var e Entry
	requests := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(1000, func() {
		if !e.Parse(msg) {
			t.Fatal("no entry")
		}
		if _, ok := e.AppendDelete(requests, 2); !ok {
			t.Fatal("no request")
		}
	}); n > 0 {
		t.Errorf("%v allocations for an entry", n)
	}
}
