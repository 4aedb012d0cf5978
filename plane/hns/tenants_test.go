//go:build linux

package hns_test

import (
	"testing"

	"kube-proxy/plane/hns"
	"kube-proxy/test/hnsfake"
	"kube-proxy/test/planetest"
)

// Changes of one namespace leave load balancers of others alone (TN-01).
func TestTenants(t *testing.T) {
	planetest.Tenants(t, 5, func(testing.TB) planetest.Kernel {
		return kernel(newNode(hns.L2Bridge, hnsfake.Everything))
	})
}
