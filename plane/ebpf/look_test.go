//go:build linux

package ebpf

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/nodetrace"
	"kube-proxy/plane/ebpf/bpf"
	"kube-proxy/test/kerneltest"
	"kube-proxy/trace"
)

// TestFollow: trace runs the loaded program for sockets of this node, and then the rules where that
// passes (EB-18).
func TestFollow(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		b.change(refusing)
		follow := func(from string, to string) (k trace.Kernel) {
			b.t.Helper()
			at := b.to(to)
			p := trace.Packet{From: netip.AddrPortFrom(b.to(from+":1").Addr(), 0), Host: from == "NODE", To: at,
				Here: from == "NODE" && to != "VIP:80", Proto: lb.TCP}
			var err error
			b.On(netlab.Node1, func() { k, err = b.plane.TracePacket(b.t.Context(), p, nodetrace.Kernel) })
			b.must(err)
			return k
		}
		for _, from := range []string{"pod2", "NODE"} {
			k := follow(from, "VIP:80")
			if !k.Connected || k.Verdict != trace.Balance || len(k.Backends) != 1 ||
				k.Backends[0].Address != b.to("pod1:8080") {
				b.t.Errorf("%s → VIP:80: %+v", from, k)
			}
			words := map[bool]string{true: "connect() fail with ECONNREFUSED", false: "the rules decide"}
			fails := setsErrors() == nil
			if k = follow(from, "VIP:81"); k.Connected != fails || k.Verdict != trace.Reject ||
				!strings.Contains(k.Way[0], words[fails]) {
				b.t.Errorf("%s → VIP:81: %+v", from, k)
			}
		}
		b.must(b.plane.balance("host"))
		if k := follow("pod2", "VIP:80"); k.Connected || k.Verdict != trace.Balance ||
			!strings.Contains(k.Way[0], "sockets of the node alone") {
			b.t.Errorf("with scope host, pod2 → VIP:80: %+v", k)
		}
	})
}

// Where a backend is drawn that is a frontend too, the rules draw again: the answer has the shares
// of both, and those of sockets alone (EB-18).
func TestSharesOfBoth(t *testing.T) {
	at := func(n byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 1, n}), 80) }
	ruled := []trace.Backend{{Address: at(1), Share: 0.25}, {Address: at(2), Share: 0.25}, {Address: at(3), Share: 0.5}}
	k := kernelAnswer(trace.Packet{Proto: lb.TCP}, bpf.LBQuestion{}, 4, []netip.AddrPort{at(1), at(2)}, ruled)
	want := []trace.Backend{{Address: at(1), Share: 0.375}, {Address: at(2), Share: 0.375},
		{Address: at(3), Share: 0.25}}
	if !slices.Equal(k.Backends, want) || !slices.Equal(k.Connects, []trace.Backend{ruled[0], ruled[1]}) {
		t.Errorf("%+v", k)
	}
	table := trace.Answer{Verdict: trace.Balance, Backends: ruled}
	if found := trace.Compare(table, k); len(found) > 0 {
		t.Errorf("shares that programs cause are reported: %q", found)
	}
}

// TestDifferences: diff names what another program changed in the tables, and a detached program
// (EB-18).
func TestDifferences(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		look := func() string {
			var all []string
			b.On(netlab.Node1, func() {
				if err := b.plane.Differences(b.t.Context(), b.table, func(d trace.Difference) bool {
					all = append(all, d.Key.String()+" "+d.Object+": "+d.Desired+", not "+d.Actual)
					return true
				}); err != nil {
					b.t.Error(err)
				}
			})
			return strings.Join(all, "\n")
		}
		if got := look(); got != "" {
			b.t.Errorf("differences without any damage:\n%s", got)
		}
		for what, want := range map[string]string{"slots": "[" + b.to("pod1:8080").String() + "], not []",
			"frontends": "not the packet path"} {
			b.must(b.plane.damage(what))
			if got := look(); !strings.Contains(got, want) {
				b.t.Errorf("damaged %s, and diff lacks %q:\n%s", what, want, got)
			}
			if _, err := b.plane.audit(); err != nil {
				b.t.Fatal(err)
			}
		}
		b.must(b.plane.detach("connect6"))
		if got := look(); !strings.Contains(got, "program of connect6: attached to") {
			b.t.Errorf("a detached program: %s", got)
		}
	})
}
