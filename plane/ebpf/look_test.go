//go:build linux

package ebpf

import (
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/nodetrace"
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
			if k = follow(from, "VIP:81"); k.Connected || k.Verdict != trace.Reject ||
				!strings.Contains(k.Way[0], "the rules decide") {
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
