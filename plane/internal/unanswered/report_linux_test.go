package unanswered

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"kube-proxy/internal/netlink/conntrack"
)

const (
	// 10.0.0.1:40000 to 10.96.0.10:80, TCP, with a header of 24 bytes.
	syn4 = "460000300000000040060000" + "0a000001" + "0a60000a" + "00000000" + "9c400050" + "00000000"
	// fd00::1, port 40000, to fd00::a, port 80, TCP.
	syn6 = "6000000000140640" + "fd000000000000000000000000000001" + "fd00000000000000000000000000000a" +
		"9c400050" + "00000000"
	// ICMP of 10.0.0.9 to 10.0.0.1, and ICMPv6 of fd00::9 to fd00::1: 8 bytes before the packet.
	icmp4 = "450000400000000040010000" + "0a000009" + "0a000001" + "0301000000000000"
	icmp6 = "6000000000403a40" + "fd000000000000000000000000000009" + "fd000000000000000000000000000001" +
		"0103000000000000"
)

func TestTuples(t *testing.T) {
	for name, c := range map[string]struct {
		packet   string
		find     func([]byte) (conntrack.Tuple, bool)
		from, to string
	}{
		"IPv4":    {syn4, tupleOf, "10.0.0.1:40000", "10.96.0.10:80"},
		"IPv6":    {syn6, tupleOf, "[fd00::1]:40000", "[fd00::a]:80"},
		"ICMP":    {icmp4 + syn4, refusedTuple, "10.96.0.10:80", "10.0.0.1:40000"},
		"ICMPv6":  {icmp6 + syn6, refusedTuple, "[fd00::a]:80", "[fd00::1]:40000"},
		"short":   {syn4[:48], tupleOf, "", ""},
		"version": {"5" + syn4[1:], tupleOf, "", ""},
		"header":  {"41" + syn4[2:], tupleOf, "", ""},
		"error":   {icmp4, refusedTuple, "", ""},
	} {
		packet, err := hex.DecodeString(c.packet)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := c.find(packet)
		if ok != (c.from != "") {
			t.Errorf("%s: found %v", name, ok)
			continue
		}
		if !ok {
			continue
		}
		want := conntrack.Tuple{Proto: 6, From: netip.MustParseAddrPort(c.from), To: netip.MustParseAddrPort(c.to)}
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// FuzzTuples: no packet makes the parser fail.
func FuzzTuples(f *testing.F) {
	for _, packet := range []string{syn4, syn6, icmp4 + syn4, icmp6 + syn6} {
		b, _ := hex.DecodeString(packet)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, find := range []func([]byte) (conntrack.Tuple, bool){tupleOf, refusedTuple} {
			if got, ok := find(b); ok && !(got.From.IsValid() && got.To.IsValid()) {
				t.Errorf("tuple %+v", got)
			}
		}
	})
}
