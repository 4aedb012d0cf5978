//go:build linux

package ipvs

import (
	"testing"

	"kube-proxy/test/planetest"
)

// Every verb, in both families (HT-04, DP-51).
func TestVerbs(t *testing.T) {
	planetest.Verbs(t, func(t testing.TB) planetest.Kernel { return newLab(t).kernel() })
}
