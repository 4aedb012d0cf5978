package userspace

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/route"
)

// openOwn returns a function that queries the kernel whether an address is the node's, in the
// network namespace of the calling thread.
func openOwn() (own func(netip.Addr) (bool, error), shut func() error, err error) {
	conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		return nil, nil, fmt.Errorf("open a netlink socket for routes: %w", err)
	}
	var mu sync.Mutex
	return func(a netip.Addr) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		return route.LeadsHere(context.Background(), conn, a)
	}, conn.Close, nil
}
