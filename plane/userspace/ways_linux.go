package userspace

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/plane/internal/balance"
)

// openWays returns what asks the kernel how the network namespace of the calling thread reaches an address.
func openWays() (way func(netip.Addr) (balance.Way, error), shut func() error, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, fmt.Errorf("open a netlink socket for routes: %w", err)
	}
	w := &ways{kernel: h}
	return w.way, func() error { h.Close(); return nil }, nil
}

// ways asks by one socket, one question at a time: the route to each address, and what an interface is called once for all that it
// leads to.
type ways struct {
	mu     sync.Mutex
	kernel interface {
		RouteGet(net.IP) ([]netlink.Route, error)
		LinkByIndex(int) (netlink.Link, error)
	}
	names map[int]linkName
}

// linkName is what an interface was called a moment ago: it may be renamed.
type linkName struct {
	name  string
	until time.Time
}

const (
	mostNames = 4096
	nameLasts = time.Second
)

func (w *ways) way(a netip.Addr) (balance.Way, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	routes, err := w.kernel.RouteGet(net.IP(a.AsSlice()))
	if err == nil && len(routes) == 0 {
		err = unix.ESRCH
	}
	if err != nil {
		return balance.Way{}, fmt.Errorf("look up the route to %s: %w", a, err)
	}
	name, err := w.name(routes[0].LinkIndex)
	if err != nil {
		return balance.Way{}, err
	}
	return balance.Way{Local: routes[0].Type == unix.RTN_LOCAL, Interface: name}, nil
}

// name returns what an interface is called. The lock is held.
func (w *ways) name(index int) (string, error) {
	now := time.Now()
	if known, ok := w.names[index]; ok && now.Before(known.until) {
		return known.name, nil
	}
	link, err := w.kernel.LinkByIndex(index)
	if err != nil {
		return "", fmt.Errorf("look up interface %d: %w", index, err)
	}
	if w.names == nil || len(w.names) >= mostNames {
		w.names = map[int]linkName{}
	}
	w.names[index] = linkName{link.Attrs().Name, now.Add(nameLasts)}
	return link.Attrs().Name, nil
}
