package conntrack

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Fill makes n entries of IPv4 in the network namespace of the calling thread, without packets, for
// tests and measurements. It ends at the first entry that the kernel refuses.
func Fill(ctx context.Context, n int, entry func(i int) Entry) error {
	c, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_NETFILTER, ReceiveBuffer: 1 << 20})
	if err != nil {
		return err
	}
	defer c.Close()
	const batch = 100
	var requests []byte
	for first := 0; first < n; first += batch {
		requests = requests[:0]
		for i := first; i < min(first+batch, n); i++ {
			e := entry(i)
			requests = e.AppendNew(requests, unix.AF_INET)
		}
		var refused error
		err := c.Each(ctx, requests, func(i int, err error) {
			if err != nil && refused == nil {
				refused = fmt.Errorf("make conntrack entry %d of %d: %w", first+i, n, err)
			}
		})
		if err != nil {
			return fmt.Errorf("make %d conntrack entries: %w", n, err)
		}
		if refused != nil {
			return refused
		}
	}
	return nil
}
