//go:build linux

package nftables

import (
	"testing"

	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// Changes of one namespace leave the elements of others alone (TN-01).
func TestTenants(t *testing.T) {
	kerneltest.Later(t)
	planetest.Tenants(t, 2, func(t testing.TB) planetest.Kernel {
		inNetns(t)
		return planetest.Kernel{New: newConformant}
	})
}
