//go:build linux

package ipvs

import (
	"runtime"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// The kernel memory of objects: 58 MB were measured for 100,000 real servers; the others are the
// sizes of their structs in 6.12.
const (
	serverBytes, destinationBytes = 640, 580
	memberBytes, addressBytes     = 96, 256
)

// One tenant's objects take heap and kernel memory in proportion to their bytes (TN-91).
func TestMemoryOfTenants(t *testing.T) {
	planetest.Memory(t, 8, 900, 3500, func(t testing.TB) planetest.Kernel {
		lab := newLab(t)
		t.Cleanup(func() { runtime.KeepAlive(lab) }) // else its memory would count as the plane's
		k := lab.kernel()
		k.Bytes = func(f lb.Family) (bytes int, err error) {
			for _, v := range lab.ipvs.State() {
				bytes += serverBytes + destinationBytes*len(v.Destinations)
			}
			for _, s := range lab.sets {
				bytes += memberBytes * len(s.members)
			}
			return bytes + addressBytes*len(lab.devs[f].addrs), nil
		}
		return k
	})
}
