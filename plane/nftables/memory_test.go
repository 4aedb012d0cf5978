//go:build linux

package nftables

import (
	"context"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// elementBytes is the kernel memory that an element takes. A memory cgroup on 6.18 measured 18.9 MB
// for a set of 262,144 backends, and 7.4 MB for 20,000 Services of five elements each.
const elementBytes = 74

// One tenant's objects take heap and kernel memory in proportion to their bytes (TN-91).
func TestMemoryOfTenants(t *testing.T) {
	kerneltest.Later(t)
	planetest.Memory(t, 4, 400, 500, func(t testing.TB) planetest.Kernel {
		inNetns(t)
		return planetest.Kernel{New: newConformant, Bytes: func(f lb.Family) (bytes int, err error) {
			p, err := New(Config{Family: f})
			if err != nil {
				return 0, err
			}
			defer p.Close()
			snap, _, err := p.readTable(context.Background(), allSets)
			if err != nil {
				return 0, err
			}
			for i := range snap.records {
				bytes += elementBytes * snap.records[i].Len()
			}
			return bytes, nil
		}}
	})
}
