//go:build !linux

package userspace

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// openOwn returns a function that looks for an address among those of this host, which it lists
// once a second.
func openOwn() (own func(netip.Addr) (bool, error), shut func() error, err error) {
	var mu sync.Mutex
	var addrs []net.Addr
	var listed time.Time
	return func(a netip.Addr) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(listed) > time.Second {
			all, err := net.InterfaceAddrs()
			if err != nil {
				return false, fmt.Errorf("list the addresses of this host: %w", err)
			}
			addrs, listed = all, time.Now()
		}
		for _, have := range addrs {
			if n, ok := have.(*net.IPNet); ok && n.IP.Equal(net.IP(a.AsSlice())) {
				return true, nil
			}
		}
		return false, nil
	}, func() error { return nil }, nil
}
