//go:build linux

package hns_test

import (
	"runtime"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

// objectBytes and referenceBytes are assumed sizes of an object and of a reference to an endpoint
// in HNS.
const objectBytes, referenceBytes = 1024, 36

// One tenant's objects take heap and memory of HNS in proportion to their bytes (TN-91).
func TestMemoryOfTenants(t *testing.T) {
	planetest.Memory(t, 8, 500, 700, func(t testing.TB) planetest.Kernel {
		n := newNode(hns.L2Bridge, hnsfake.Everything)
		t.Cleanup(func() { runtime.KeepAlive(n) }) // else its memory would count as the plane's
		k := kernel(n)
		k.Bytes = func(lb.Family) (bytes int, err error) {
			state := n.State()
			for _, l := range state.LoadBalancers {
				bytes += objectBytes + referenceBytes*len(l.HostComputeEndpoints)
			}
			return bytes + objectBytes*len(state.Endpoints), nil
		}
		return k
	})
}
