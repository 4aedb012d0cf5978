package userspace

import (
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// Kernel memory of objects: a listener with its socket and its entry in epoll, and a redirect of
// the packet filter, which has a few elements of 74 bytes.
const listenerBytes, redirectBytes = 4096, 400

// One tenant's objects take heap and kernel memory in proportion to their bytes (TN-91).
func TestMemoryOfTenants(t *testing.T) {
	planetest.Memory(t, 8, 900, 400, func(t testing.TB) planetest.Kernel {
		netlab.EnterForTest(t)
		var last *Plane
		return planetest.Kernel{
			New: func(f lb.Family) (planetest.Plane, error) {
				p, err := kinds[0].plane(f)
				last, _ = p.(*Plane)
				return p, err
			},
			Bytes: func(lb.Family) (bytes int, err error) {
				for _, s := range last.services {
					bytes += listenerBytes * len(s.sets)
				}
				return bytes + redirectBytes*len(last.rows), nil
			},
		}
	})
}
