//go:build linux

package iptables

import (
	"strings"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// ruleBytes is the kernel memory that a rule takes, including chains. A memory cgroup on 6.18
// measured 6.1 MB for 11,607 rules and chains of 500 Services with 5 endpoints each.
const ruleBytes = 530

// One tenant's objects take heap and kernel memory in proportion to their bytes (TN-91).
func TestMemoryOfTenants(t *testing.T) {
	planetest.Memory(t, 40, 300, 2500, func(t testing.TB) planetest.Kernel {
		inNetns(t)
		return planetest.Kernel{New: newWith(xtables.NFT), Bytes: func(f lb.Family) (int, error) {
			p, err := newWith(xtables.NFT)(f)
			if err != nil {
				return 0, err
			}
			text, err := planetest.Dump(p)
			return ruleBytes * strings.Count(text, "\n"), err
		}}
	})
}
