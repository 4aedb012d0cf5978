//go:build linux

package ebpf

import (
	flags "flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/seedtest"
)

var socketSteps = flags.Int("sockets", 60, "random calls of TestSocketWalk")

// hostile are frontends that a tenant adds to nodePorts, or none of them: external IPs that are
// addresses of a pod, of a network inside a pod, and of the node.
func hostile(rnd *rand.Rand, inner netip.Addr) string {
	text := nodePorts
	for i, at := range []string{"pod2:9090", netip.AddrPortFrom(inner, 9090).String(), "NODE:9090"} {
		if rnd.IntN(2) == 0 {
			continue
		}
		for _, proto := range []string{"tcp", "udp"} {
			text += fmt.Sprintf("%[1]s/%[2]s evil/s%[3]d:%[2]s externalip\n"+
				"  anywhere balance evil/s%[3]d:%[2]s/%[2]s/cluster masquerade\n"+
				"set evil/s%[3]d:%[2]s/%[2]s/cluster\n  pod1:8080 local\n", at, proto, i)
		}
	}
	return text
}

// TestSocketWalk: random calls from pods, the node, a container of the node, a network inside a pod
// and a namespace without one, to frontends, to addresses of a tenant's choice and to the client's
// own, by all kinds of sockets: the programs lead to the server to which mode nftables leads with
// the same table (EB-05, EB-28, EB-50, EB-51).
func TestSocketWalk(t *testing.T) {
	kerneltest.Later(t)
	rnd := rand.New(rand.NewPCG(seedtest.Of(t), 82))
	eachFamily(t, func(b *bench) {
		inner, alone, container := b.nest(), b.nest(), b.nest()
		six := b.f == lb.IPv6
		innerAddr, containerAddr := netip.MustParseAddr("10.1.1.77"), netip.MustParseAddr("10.1.1.78")
		if six {
			innerAddr, containerAddr = netip.MustParseAddr("fd00:10:1:1::77"), netip.MustParseAddr("fd00:10:1:1::78")
		}
		inner.under("pod3", "inner", innerAddr)
		container.under(netlab.Node1, "container", containerAddr)
		b.forward("pod3", innerAddr)
		// Addresses of Services inside pods, and on the node.
		other, vip := b.to("OTHER:53").Addr(), b.to("VIP:80").Addr()
		b.On("pod3", func() { b.must(give("lo", other)) })
		b.On(netlab.Node1, func() { b.must(give("lo", other)) })
		alone.on(func() error { return give("lo", vip) })
		for _, n := range []*nested{inner, alone} {
			for _, port := range []int{53, 80, 9090} {
				n.serve(port, map[bool]string{true: "inner", false: "alone"}[n == inner])
			}
		}
		b.Serve(netlab.UDP, 53, "pod3")
		b.Serve(netlab.TCP, 9090, "pod2")
		b.Serve(netlab.UDP, 9090, "pod2")
		b.Serve(netlab.TCP, 30080, "pod3")

		hosts := []string{"pod1", "pod2", "pod3", netlab.Node1, "inner", "alone", "container"}
		own := map[string]netip.Addr{"inner": innerAddr, "alone": vip, "container": containerAddr}
		for _, h := range hosts[:4] {
			own[h] = netlab.Addr(h, six)
		}
		call := func(from string, c caller, to netip.AddrPort) string {
			if n := map[string]*nested{"inner": inner, "alone": alone, "container": container}[from]; n != nil {
				return n.answer(c, to)
			}
			return b.answer(from, c, to)
		}
		places := []netip.AddrPort{netip.AddrPortFrom(innerAddr, 9090),
			netip.AddrPortFrom(b.f.Everywhere().Addr(), 30080)}
		for _, name := range []string{"VIP:80", "VIP:53", "OTHER:53", "NODE:30080", "NODE:9090", "pod1:8080",
			"pod2:9090", "LOCAL:30080"} {
			places = append(places, b.to(name))
		}
		direct := 0
		for step := range *socketSteps {
			if step%20 == 0 {
				b.change(hostile(rnd, innerAddr))
			}
			from := hosts[rnd.IntN(len(hosts))]
			to := netip.AddrPortFrom(own[from], []uint16{53, 80, 8080, 9090, 30080}[rnd.IntN(5)])
			if rnd.IntN(4) > 0 {
				to = places[rnd.IntN(len(places))]
			}
			at := to.Addr()
			all := append(callers(b.f), caller{name: "udp connected elsewhere", kind: unix.SOCK_DGRAM,
				unconnected: true, again: true})
			c := all[rnd.IntN(len(all))]
			if from == netlab.Node1 && to.Port() == 30080 && (at.IsLoopback() || at.IsUnspecified()) {
				continue // NodePorts answer the node on loopback, unlike in mode nftables
			}
			both := func() (want, got string) {
				b.must(b.plane.balance("off"))
				want = call(from, c, to)
				b.must(b.plane.balance("all"))
				return want, call(from, c, to)
			}
			want, got := both()
			for range 3 { // a server on a busy machine may take more than a second
				if want != got && (want == silent || got == silent) {
					want, got = both()
				}
			}
			if got == "pod1" || got == "pod2" {
				direct++
			}
			if got != want && want != notSupported {
				b.t.Errorf("step %d: %s, %s to %s: %s, and in mode nftables %s\n%s", step, from, c.name, to, got, want,
					b.table)
			}
		}
		if direct == 0 {
			b.t.Error("no call reached an endpoint")
		}
	})
}
