//go:build linux

package ipvs

import (
	"runtime"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// What objects take of the kernel's memory: 58 MB were measured for 100,000 real servers; the others are their structs of 6.12.
const (
	serverBytes, destinationBytes = 640, 580
	memberBytes, addressBytes     = 96, 256
)

// What one tenant writes takes heap and kernel memory in proportion to its bytes (TN-91).
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
