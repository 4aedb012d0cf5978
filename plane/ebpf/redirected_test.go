//go:build linux

package ebpf

import (
	"net/netip"
	"testing"

	"kube-proxy/internal/netlab"
)

// TestRedirected: sockets show without any right whether programs connect them elsewhere, in both
// families (EB-31).
func TestRedirected(t *testing.T) {
	eachFamily(t, func(b *bench) {
		look := func() (to, is netip.AddrPort) {
			b.On(netlab.Node1, func() {
				var err error
				to, is, err = redirected([]netip.AddrPort{b.to("pod2:8080"), b.to("VIP:53")})
				b.must(err)
			})
			return to, is
		}
		if to, is := look(); to != b.to("VIP:53") || is != b.to("pod1:8080") {
			b.t.Errorf("with programs %s is connected to %s", to, is)
		}
		b.must(b.plane.Close())
		b.removeOn(netlab.Node1)
		if to, _ := look(); to.IsValid() {
			b.t.Errorf("without programs %s is connected elsewhere", to)
		}
		b.On(netlab.Node1, func() { b.plane = b.newPlane() })
	})
}
