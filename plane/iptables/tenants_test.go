//go:build linux

package iptables

import (
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/test/planetest"
)

// Changes of one namespace leave rules of others alone (TN-01).
func TestTenants(t *testing.T) {
	planetest.Tenants(t, 1, func(t testing.TB) planetest.Kernel {
		inNetns(t)
		return planetest.Kernel{New: newWith(xtables.NFT)}
	})
}
