//go:build !linux

package userspace

import (
	"fmt"
	"net"
	"net/netip"
)

// openOwn returns a function that looks for an address among those of this host.
func openOwn() (own func(netip.Addr) (bool, error), shut func() error, err error) {
	return func(a netip.Addr) (bool, error) {
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return false, fmt.Errorf("list the addresses of this host: %w", err)
		}
		for _, have := range addrs {
			if n, ok := have.(*net.IPNet); ok && n.IP.Equal(net.IP(a.AsSlice())) {
				return true, nil
			}
		}
		return false, nil
	}, func() error { return nil }, nil
}
