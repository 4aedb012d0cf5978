package conntrack

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"kube-proxy/lb"
)

// appendTuple appends one direction of an entry.
func appendTuple(b []byte, typ uint16, src, dst netip.AddrPort, proto lb.Proto) []byte {
	return appendNested(b, typ, func(b []byte) []byte {
		b = appendNested(b, ctaTupleIP, func(b []byte) []byte {
			if src.Addr().Is4() {
				return appendAttr(appendAttr(b, ctaIPv4Src, src.Addr().AsSlice()...), ctaIPv4Dst, dst.Addr().AsSlice()...)
			}
			return appendAttr(appendAttr(b, ctaIPv6Src, src.Addr().AsSlice()...), ctaIPv6Dst, dst.Addr().AsSlice()...)
		})
		return appendNested(b, ctaTupleProto, func(b []byte) []byte {
			b = appendAttr(b, ctaProtoNum, byte(proto))
			b = appendAttr(b, ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, src.Port())...)
			return appendAttr(b, ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, dst.Port())...)
		})
	})
}

// appendEntry appends the attributes of an entry that client has with the service at to, answered by from.
func appendEntry(b []byte, client, to, from netip.AddrPort, proto lb.Proto) []byte {
	return appendTuple(appendTuple(b, ctaTupleOrig, client, to, proto), ctaTupleReply, from, client, proto)
}

var (
	client = netip.MustParseAddrPort("192.0.2.7:40000")
	dns    = netip.MustParseAddrPort("10.96.0.10:53")
	podAP  = netip.MustParseAddrPort(podA)
)

func sample() []byte {
	b := appendEntry(nil, client, dns, podAP, lb.UDP)
	b = appendAttr(b, 3, 0, 0, 1, 0xae) // CTA_STATUS
	b = appendAttr(b, ctaID, 1, 2, 3, 4)
	return appendAttr(b, ctaZone, 0, 7)
}

func TestParse(t *testing.T) {
	var e entry
	ok, err := e.parse(sample())
	if !ok || err != nil {
		t.Fatalf("parse: %v, %v", ok, err)
	}
	if want := (flow{lb.UDP, dns, podAP}); e.flow != want {
		t.Errorf("flow %v, want %v", e.flow, want)
	}
	six := appendEntry(nil, netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("[2001:db8::2]:2"),
		netip.MustParseAddrPort("[2001:db8::3]:3"), lb.SCTP)
	want := flow{lb.SCTP, netip.MustParseAddrPort("[2001:db8::2]:2"), netip.MustParseAddrPort("[2001:db8::3]:3")}
	if ok, err := e.parse(six); !ok || err != nil || e.flow != want {
		t.Errorf("IPv6: %v, %v, %v; want %v", e.flow, ok, err, want)
	}
	// ICMP has an id instead of ports.
	icmp := appendTuple(nil, ctaTupleOrig, client, dns, 1)
	icmp = bytes.ReplaceAll(icmp, []byte{6, 0, ctaProtoDstPort, 0}, []byte{6, 0, 9, 0})
	if ok, err := e.parse(icmp); ok || err != nil {
		t.Errorf("an entry without ports: %v, %v", ok, err)
	}
}

// The request to delete names the entry by its tuple, id and zone as they came; without them there is none,
// for it would mean all entries.
func TestAppendDelete(t *testing.T) {
	var e entry
	if _, err := e.parse(sample()); err != nil {
		t.Fatal(err)
	}
	b, ok := appendDelete([]byte("before!!"), 2, 5, &e)
	if !ok {
		t.Fatal("no request")
	}
	b = b[8:]
	if n := binary.NativeEndian.Uint32(b); int(n) != len(b) {
		t.Errorf("length %d, have %d bytes", n, len(b))
	}
	if typ := binary.NativeEndian.Uint16(b[4:]); typ != subsysCtnetlink<<8|msgDelete {
		t.Errorf("type %#x", typ)
	}
	// A request lacks the reply tuple, so it is no whole entry to parse.
	var again entry
	if _, err := again.parse(b[headerLen:]); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(again.orig, e.orig) || !bytes.Equal(again.id, e.id) || !bytes.Equal(again.zone, e.zone) {
		t.Errorf("the request names %+v, want %+v", again, e)
	}
	for name, e := range map[string]entry{"nothing": {}, "no id": {orig: e.orig}, "no tuple": {id: e.id}, "an empty tuple": {orig: e.orig[:4], id: e.id}} {
		if b, ok := appendDelete(nil, 2, 5, &e); ok || len(b) > 0 {
			t.Errorf("an entry with %s: request %x", name, b)
		}
	}
}

// Whatever the bytes are, parse returns.
func FuzzParse(f *testing.F) {
	f.Add(sample())
	f.Add(sample()[:30])
	f.Add([]byte{4, 0, 1, 0x80, 3, 0, 2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var e entry
		ok, err := e.parse(b)
		if ok && (err != nil || !e.to.IsValid() || !e.from.IsValid() || e.orig == nil) {
			t.Errorf("entry %+v with %v", e, err)
		}
	})
}

// DP-52 PN-06: an entry costs no memory, whether it is stale or not.
func TestNoAllocs(t *testing.T) {
	x := newIndex(nil)
	x.apply(set(row(vip, service, lb.Cluster, podB)))
	x.apply(set(row("nodeport:30053/udp", service, lb.Cluster, podB)))
	p := x.take(map[netip.Addr]struct{}{client.Addr(): {}})
	msg := sample()
	var e entry
	requests := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(1000, func() {
		if ok, err := e.parse(msg); !ok || err != nil {
			t.Fatal(err)
		}
		if _, stale := p.stale(e.flow); !stale {
			t.Fatal("not stale")
		}
		if _, ok := appendDelete(requests, 2, 5, &e); !ok {
			t.Fatal("no request")
		}
	}); n > 0 {
		t.Errorf("%v allocations for an entry", n)
	}
}
