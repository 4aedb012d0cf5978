//go:build linux

package ebpf

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
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
							want = "silence" // no error is reported to an unconnected socket
						}
						got := b.answer(from, c, netip.AddrPortFrom(at, 30080))
						if got != want && got != notSupported {
							b.t.Error(fmt.Sprintf("%s, %s to %s:30080, with a server %v: %s, want %s", from, c.name,
								address, served, got, want))
						}
					}
				}
			}
		}
	})
}
