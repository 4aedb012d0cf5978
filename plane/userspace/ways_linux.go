package userspace

import (
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/plane/userspace/balance"
)

// openWays returns what asks the kernel how the network namespace of the calling thread reaches an address.
func openWays() (way func(netip.Addr) (balance.Way, error), shut func() error, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, fmt.Errorf("open a netlink socket for routes: %w", err)
	}
	w := &ways{handle: h}
	return w.way, func() error { h.Close(); return nil }, nil
}

// ways asks by one socket, one question at a time.
type ways struct {
	mu     sync.Mutex
	handle *netlink.Handle
}

func (w *ways) way(a netip.Addr) (balance.Way, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	routes, err := w.handle.RouteGet(net.IP(a.AsSlice()))
	if err != nil || len(routes) == 0 {
		return balance.Way{}, fmt.Errorf("look up the route to %s: %w", a, err)
	}
	link, err := w.handle.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return balance.Way{}, fmt.Errorf("look up interface %d: %w", routes[0].LinkIndex, err)
	}
	return balance.Way{Local: routes[0].Type == unix.RTN_LOCAL, Interface: link.Attrs().Name}, nil
}
