//go:build linux

package ebpf

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/nodetrace"
	"kube-proxy/trace"
)

// nodePorts is shop with a NodePort of UDP.
const nodePorts = shop + `nodeport:30080/udp shop/web:dns nodeport
  anywhere balance shop/web:dns/udp/cluster masquerade
set shop/web:dns/udp/cluster
  pod1:8080 local
`

// TestOwnLoopback: the unspecified address and the loopback addresses are those of the client,
// also at the port of a NodePort (EB-28).
func TestOwnLoopback(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.change(nodePorts)
		b.noRules()
		own := map[lb.Family][]string{lb.IPv4: {"0.0.0.0", "127.0.0.1", "127.9.9.9"}, lb.IPv6: {"::", "::1"}}[b.f]
		for _, served := range []bool{false, true} {
			if served {
				b.Serve(netlab.TCP, 30080, "pod3", netlab.Node1)
				b.Serve(netlab.UDP, 30080, "pod3", netlab.Node1)
			}
			for _, from := range []string{"pod3", netlab.Node1} {
				want := unix.ECONNREFUSED.Error()
				if served {
					want = from
				}
				for _, c := range callers(b.f) {
					for _, address := range own {
						at := netip.MustParseAddr(address)
						if from == netlab.Node1 && at.IsLoopback() {
							continue // NodePorts answer there
						}
						want := want
						if !served && c.unconnected {
							want = silent // no error is reported to an unconnected socket
						}
						got := b.answer(from, c, netip.AddrPortFrom(at, 30080))
						if got != want && got != notSupported {
							b.t.Errorf("%s, %s to %s:30080, with a server %v: %s, want %s", from, c.name,
								address, served, got, want)
						}
					}
				}
			}
		}
	})
}

// passedBy returns how many calls the programs passed for a reason.
func (b *bench) passedBy(reason uint8) uint64 {
	b.t.Helper()
	n, err := total(b.plane.kernel.obj.Passed, uint32(reason))
	b.must(err)
	return n
}

// TestStrays: what would not meet the node stays where it is: a pod's own addresses, those of a
// network inside a pod, and a network namespace without a network. A namespace that leads to the
// node is served, whatever its address (EB-50). Passed calls are counted by reason (EB-52).
func TestStrays(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.change(nodePorts + "pod2:9090/tcp evil/aims:p externalip\n  anywhere balance evil/aims:p/tcp/cluster\n" +
			"set evil/aims:p/tcp/cluster\n  pod1:8080 local\n")
		b.noRules()
		vip := b.to("VIP:80").Addr()
		inner, alone, container := b.nest(), b.nest(), b.nest()
		podLike := map[lb.Family][2]string{lb.IPv4: {"10.1.1.77", "10.1.1.78"}, lb.IPv6: {"fd00:10:1:1::77",
			"fd00:10:1:1::78"}}[b.f]
		inner.under("pod3", "inner", netip.MustParseAddr(podLike[0]))
		container.under(netlab.Node1, "container", netip.MustParseAddr(podLike[1]))
		calls := func(to string, c caller) map[string]string {
			at := b.to(to)
			return map[string]string{"pod3": b.answer("pod3", c, at), "inner": inner.answer(c, at),
				"alone": alone.answer(c, at), "container": container.answer(c, at)}
		}
		tcp, udp := callers(b.f)[0], callers(b.f)[2]
		for who, got := range calls("VIP:80", tcp) {
			want := map[string]string{"pod3": "pod1", "container": "pod1"}[who]
			if want != "" && got != want || want == "" && got == "pod1" {
				b.t.Errorf("%s reaches %s", who, got)
			}
		}
		if n := b.passedBy(byUnknown); n < 2 {
			b.t.Errorf("%d calls of unknown namespaces are counted", n)
		}

		b.Serve(netlab.TCP, 80, "pod3")
		b.Serve(netlab.UDP, 53, "pod3")
		b.Serve(netlab.TCP, 9090, "pod2")
		b.On("pod3", func() { b.must(give("lo", vip)) })
		alone.on(func() error { return give("lo", vip) })
		alone.serve(80, "alone")
		alone.serve(53, "alone")
		// What was known of pod3 counts for a second.
		if !eventually(func() bool { return b.answer("pod3", tcp, b.to("VIP:80")) == "pod3" }) {
			b.t.Error("pod3 does not reach its own address")
		}
		for to, c := range map[string]caller{"VIP:80": tcp, "VIP:53": udp} {
			for who, got := range calls(to, c) {
				want := map[string]string{"pod3": "pod3", "inner": "pod3", "alone": "alone", "container": "pod1"}[who]
				for range 3 { // a server on a busy machine may take more than a second
					if got == silent {
						got = calls(to, c)[who]
					}
				}
				if got != want {
					b.t.Errorf("%s of %s, which an address inside a pod hides, reaches %s, want %s", to, who, got, want)
				}
			}
		}
		if got := b.answer("pod2", tcp, b.to("pod2:9090")); got != "pod2" {
			b.t.Errorf("an external IP that is pod2's address: pod2 reaches %s there", got)
		}
		if got := b.answer("pod3", tcp, b.to("pod2:9090")); got != "pod2" {
			b.t.Errorf("an external IP that is pod2's address: pod3 reaches %s there without rules", got)
		}
		for reason, least := range map[uint8]uint64{byOwn: 2, byExternalIP: 2, byUnknown: 4} {
			if n := b.passedBy(reason); n < least {
				b.t.Errorf("%d calls are counted as %s, want at least %d", n, passages[reason].label, least)
			}
			if b.plane.Sockets().Passed[passages[reason].label] < least {
				b.t.Errorf("the status lacks %s: %+v", passages[reason].label, b.plane.Sockets())
			}
		}
	})
}

// TestNodeAddress: a frontend whose address the node has belongs to its holder there, as that of
// NodeLocal DNSCache. The log says so once, and so does trace (EB-51).
func TestNodeAddress(t *testing.T) {
	eachFamily(t, func(b *bench) {
		vip := b.to("VIP:53").Addr()
		b.noRules()
		b.reaches("pod3", netlab.UDP, "VIP:53", "pod1")
		b.Serve(netlab.UDP, 53, netlab.Node1)
		b.On(netlab.Node1, func() { b.must(give("lo", vip)) })
		udp := callers(b.f)[2]
		for _, from := range []string{"pod3", netlab.Node1} {
			if !eventually(func() bool { return b.answer(from, udp, b.to("VIP:53")) == netlab.Node1 }) {
				b.t.Errorf("%s does not reach the node's own address", from)
			}
		}
		if b.passedBy(byNode) < 2 {
			b.t.Error("the calls are not counted")
		}
		b.plane.Notices()
		said := ""
		for range 2 {
			b.On(netlab.Node1, func() { _, err := b.plane.audit(); b.must(err) })
			for _, n := range b.plane.Notices() {
				said += fmt.Sprintln(n.Text, n.Args)
			}
		}
		if strings.Count(said, "This node has the addresses of frontends") != 1 ||
			!strings.Contains(said, b.to("VIP:53").String()+"/udp") {
			b.t.Errorf("the log has %q, want the frontends with an address of the node once", said)
		}
		p := trace.Packet{From: b.to("pod2:1"), To: b.to("VIP:53"), Proto: lb.UDP}
		b.On(netlab.Node1, func() {
			k, err := b.plane.TracePacket(b.t.Context(), p, nodetrace.Kernel)
			if b.must(err); k.Connected || k.Passed != passages[byNode].words || !strings.Contains(k.Way[0], k.Passed) {
				b.t.Errorf("trace says %q", k.Way)
			}
		})
	})
}
