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

// TestEndpointIsFrontend: an endpoint whose address another Service claims keeps its share of the
// node's connections, and trace says which path they take. When the claim ends, programs connect
// them again (EB-53).
func TestEndpointIsFrontend(t *testing.T) {
	kerneltest.Later(t)
	const n = 400
	set := "set shop/web:http/tcp/cluster\n"
	two := strings.Replace(shop, set, set+"  pod2:8080 local\n", 1)
	claimed := two + "pod2:8080/tcp evil/aims:p externalip\n  anywhere balance evil/aims:p/tcp/cluster\n" +
		"set evil/aims:p/tcp/cluster\n  pod1:8080 local\n"
	eachFamily(t, func(b *bench) {
		follow := func() (k trace.Kernel) {
			var err error
			p := trace.Packet{From: netip.AddrPortFrom(b.to("NODE:1").Addr(), 0), Host: true, To: b.to("VIP:80"),
				Proto: lb.TCP}
			b.On(netlab.Node1, func() { k, err = b.plane.TracePacket(b.t.Context(), p, nodetrace.Kernel) })
			b.must(err)
			return k
		}
		b.change(claimed)
		servers := map[string]int{}
		for range n {
			servers[b.server(netlab.Node1, "VIP:80")]++
		}
		if got := servers["pod2"]; got < 2*n/5 || got > 3*n/5 || servers["pod1"]+got != n {
			b.t.Errorf("of %d connections to two endpoints, one of them claimed: %v", n, servers)
		}
		if k := follow(); k.Connected || k.Passed != passages[byEndpoint].words || k.Backends[1].Share != 0.5 {
			b.t.Errorf("trace: %+v", k)
		}
		if fixed, err := b.plane.audit(); fixed != 0 || err != nil {
			b.t.Errorf("a comparison repairs %d elements, %v", fixed, err)
		}
		if b.direct("pod3") {
			b.t.Error("programs connect sockets though an endpoint is claimed")
		}
		b.change(two)
		if k := follow(); !b.direct("pod3") || !k.Connected {
			b.t.Errorf("programs do not connect sockets after the claim; trace: %+v", k)
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
