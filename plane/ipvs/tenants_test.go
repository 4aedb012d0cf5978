//go:build linux

package ipvs

import (
	"testing"

	"kube-proxy/test/planetest"
)

// Changes of one namespace leave virtual servers, members and addresses of others alone (TN-01).
func TestTenants(t *testing.T) {
	planetest.Tenants(t, 2, func(t testing.TB) planetest.Kernel { return newLab(t).kernel() })
}
