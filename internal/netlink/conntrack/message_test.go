package conntrack

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"reflect"
	"testing"
)

const tcp, udp = 6, 17

// appendEntry appends the attributes of an entry that client has with the service at to, answered by from.
func appendEntry(b []byte, client, to, from netip.AddrPort, proto uint8) []byte {
	b = appendTuple(b, ctaTupleOrig, Tuple{From: client, To: to, Proto: proto}, all)
	return appendTuple(b, ctaTupleReply, Tuple{From: from, To: client, Proto: proto}, all)
}

var (
	client = netip.MustParseAddrPort("192.0.2.7:40000")
	dns    = netip.MustParseAddrPort("10.96.0.10:53")
	pod    = netip.MustParseAddrPort("10.1.0.1:5353")
)

func sample() []byte {
	b := appendEntry([]byte{2, 0, 0, 0}, client, dns, pod, udp)
	b = appendAttr(b, 3, 0, 0, 1, 0xae) // CTA_STATUS
	b = appendAttr(b, ctaID, 1, 2, 3, 4)
	return appendAttr(b, ctaZone, 0, 7)
}

func TestParse(t *testing.T) {
	var e Entry
	ok, err := e.Parse(sample())
	if !ok || err != nil {
		t.Fatalf("parse: %v, %v", ok, err)
	}
	e.tuple, e.id, e.zone = nil, nil, nil
	want := Entry{Orig: Tuple{client, dns, udp, true}, Reply: Tuple{pod, client, udp, true}, Status: 0x1ae, Zone: 7}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("%+v, want %+v", e, want)
	}
	six := Entry{Orig: Tuple{netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("[2001:db8::2]:2"), tcp, true},
		Reply:  Tuple{netip.MustParseAddrPort("[2001:db8::3]:3"), netip.MustParseAddrPort("[2001:db8::1]:1"), tcp, true},
		Status: SeenReply | Assured | Confirmed, Timeout: 86400, Mark: 0x4000, State: 3}
	ok, err = e.Parse(six.AppendNew(nil, 10)[headerLen-4:])
	e.tuple = nil
	if !ok || err != nil || !reflect.DeepEqual(e, six) {
		t.Errorf("IPv6: %+v, %v, %v; want %+v", e, ok, err, six)
	}
	// ICMP has an id instead of ports.
	icmp := appendTuple([]byte{2, 0, 0, 0}, ctaTupleOrig, Tuple{From: client, To: dns, Proto: 1}, all)
	icmp = bytes.ReplaceAll(icmp, []byte{6, 0, ctaProtoDstPort, 0}, []byte{6, 0, 9, 0})
	if ok, err := e.Parse(icmp); ok || err != nil {
		t.Errorf("an entry without ports: %v, %v", ok, err)
	}
}

// The request to delete names the entry by its tuple, id and zone as they came; without them there is none,
// for it would mean all entries.
func TestAppendDelete(t *testing.T) {
	var e Entry
	if _, err := e.Parse(sample()); err != nil {
		t.Fatal(err)
	}
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
	// A request lacks the reply tuple, so it is no whole entry to parse.
	var again Entry
	if _, err := again.Parse(b[headerLen-4:]); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(again.tuple, e.tuple) || !bytes.Equal(again.id, e.id) || !bytes.Equal(again.zone, e.zone) {
		t.Errorf("the request names %+v, want %+v", again, e)
	}
	for name, e := range map[string]Entry{"nothing": {}, "no id": {tuple: e.tuple}, "no tuple": {id: e.id}, "an empty tuple": {tuple: e.tuple[:4], id: e.id}} {
		if b, ok := e.AppendDelete(nil, 2); ok || len(b) > 0 {
			t.Errorf("an entry with %s: request %x", name, b)
		}
	}
}

// Whatever the bytes are, parse returns.
func FuzzParse(f *testing.F) {
	f.Add(sample())
	f.Add(sample()[:30])
	f.Add([]byte{2, 0, 0, 0, 4, 0, 1, 0x80, 3, 0, 2, 0})
	f.Add([]byte{2, 0, 0, 0, 12, 0, 4, 0x80, 8, 0, 1, 0x80, 5, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Entry
		ok, err := e.Parse(b)
		if ok && (err != nil || !e.Orig.To.IsValid() || !e.Reply.From.IsValid() || e.tuple == nil) {
			t.Errorf("entry %+v with %v", e, err)
		}
	})
}

func TestNoAllocs(t *testing.T) {
	msg := sample()
	var e Entry
	requests := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(1000, func() {
		if ok, err := e.Parse(msg); !ok || err != nil {
			t.Fatal(err)
		}
		if _, ok := e.AppendDelete(requests, 2); !ok {
			t.Fatal("no request")
		}
	}); n > 0 {
		t.Errorf("%v allocations for an entry", n)
	}
}
