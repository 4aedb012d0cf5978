//go:build linux

package nftables

import (
	"context"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// elementBytes is what an element takes of the kernel's memory, as measured by a memory cgroup on 6.18: 18.9 MB for a set of 262,144
// backends, 7.4 MB for 20,000 Services of five elements each.
const elementBytes = 74

// What one tenant writes takes heap and kernel memory in proportion to its bytes (TN-91).
func TestMemoryOfTenants(t *testing.T) {
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
