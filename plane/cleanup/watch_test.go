//go:build linux

package cleanup

import (
	"context"
	"slices"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/mode"
)

// TestKilledWatch removes the rules of a process that was killed while it watched unanswered
// connections (FO-17); twice does no harm.
func TestKilledWatch(t *testing.T) {
	netlab.EnterForTest(t)
	run(t, "", "nft", "table ip kube-proxy-failover { chain c { drop; }; }; table ip6 kube-proxy-failover { }")
	want := []string{"the nftables table of failover of IPv4", "the nftables table of failover of IPv6"}
	for range 2 {
		r, err := Run(context.Background(), nil, mode.Removal{})
		if err != nil || !slices.Equal(r.Removed, want) {
			t.Errorf("removed %q, %v; want %q", r.Removed, err, want)
		}
		want = nil
	}
	if left := run(t, "", "nft", "list", "ruleset"); left != "" {
		t.Errorf("left:\n%s", left)
	}
}
