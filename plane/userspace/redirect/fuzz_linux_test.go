package redirect

import (
	"net/netip"
	"testing"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// FuzzParseLead: no rule makes the parser panic, and a parsed redirect is a valid one.
func FuzzParseLead(f *testing.F) {
	f.Add("-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 172.18.0.2:40001")
	f.Add(
		"-s fd00:10:1::/48 -d fd00:10:96::10/128 -p udp -m udp --dport 53 -j DNAT --to-destination [fd00:18::2]:40001")
	f.Add("-p tcp -m tcp --dport 30080 -m addrtype --src-type LOCAL -j DNAT --to-destination :40001")
	f.Add("! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j KUBE-NODEPORT-CONTAINER")
	f.Fuzz(func(t *testing.T, rule string) {
		k, port, from, ok := parseLead(rule)
		if !ok {
			return
		}
		if port == 0 || k.Port == 0 || from < lb.Pods || from > lb.Anywhere {
			t.Errorf("%q: %v to port %d from %v", rule, k, port, from)
		}
	})
}

// TestParseLead: the parser reads the rules that the renderer writes.
func TestParseLead(t *testing.T) {
	for _, w := range worlds() {
		for _, k := range []lb.Key{w.key(w.vip, 80, lb.TCP), w.key(netip.Addr{}, 30080, lb.UDP)} {
			c := &IPTables{cfg: Config{Family: w.Family}, node: w.n(), address: w.node}
			nat, _ := c.lead(Entry{Key: k, Routes: []Route{{From: lb.Pods, Port: 1}, {From: lb.Host, Port: 2},
				{From: lb.Anywhere, Port: 3}}})
			for i, rule := range nat {
				got, port, from, ok := parseLead(rule)
				if !ok || got != k || int(port) != i+1 || int(from) != i+1 {
					t.Errorf("%q: %v, port %d, from %v, %t", rule, got, port, from, ok)
				}
			}
		}
	}
}

// FuzzElements: no element of a set makes the reader panic, and a key is read as it was written.
func FuzzElements(f *testing.F) {
	f.Add([]byte{10, 96, 0, 10}, uint16(80), uint8(6))
	f.Fuzz(func(t *testing.T, addr []byte, port uint16, proto uint8) {
		defs := schema(rule.IPOf(lb.IPv4))
		for i := range defs {
			defs[i].Record(nil, addr)
		}
		a, ok := netip.AddrFromSlice(addr)
		if !ok {
			return
		}
		k := lb.Key{Addr: a, Port: port, Proto: lb.Proto(proto)}
		if got := wire.ParseKey(wire.AppendKey(nil, k), len(addr)); got != k {
			t.Errorf("%v is read as %v", k, got)
		}
	})
}
