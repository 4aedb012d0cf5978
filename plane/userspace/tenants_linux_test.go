package userspace

import (
	"net/netip"
	"os/exec"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// Writes of one namespace do not change listeners and redirects of others (TN-01).
func TestTenants(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			planetest.Tenants(t, 1, func(t testing.TB) planetest.Kernel {
				netlab.EnterForTest(t)
				for _, f := range []lb.Family{lb.IPv4, lb.IPv6} { // else a claim of the node's address would include it
					a := planetest.World{Family: f}.Addr(192, 1)
					if out, err := exec.Command("ip", "address", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev",
						"lo").CombinedOutput(); err != nil {
						t.Fatalf("%s: %v", out, err)
					}
				}
				return planetest.Kernel{New: k.plane, Balances: true}
			})
		})
	}
}
