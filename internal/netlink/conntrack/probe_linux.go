package conntrack

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Probe requests the number of entries. It fails early if every request would fail.
func Probe(ctx context.Context, conn *netlink.Conn) error {
	err := conn.Do(ctx, netlink.Request(GetStats, unix.NLM_F_ACK, []byte{unix.AF_UNSPEC, 0, 0, 0}), nil)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("the kernel has no nf_conntrack_netlink (CONFIG_NF_CT_NETLINK): %w", err)
	}
	return err
}
