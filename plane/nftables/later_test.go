//go:build linux

package nftables

import (
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// A Reset on an empty machine leaves no frontend for later: other modes may serve them, and a table
// of ours would refuse their packets. TestVerbs proves what a Reset of a table in force postpones.
func TestColdResetLeavesNothing(t *testing.T) {
	inNetns(t)
	p := newPlane(t, lb.IPv4)
	p.maxBatchWeight = 10
	if res, err := p.Reset(t.Context(), planetest.World{Family: lb.IPv4}.Table(20, 3)); err != nil ||
		len(res.Later) > 0 {
		t.Errorf("%d rows left for later, error %v", len(res.Later), err)
	}
}
