//go:build !windows

package wiring

import "os"

// hasIPv6 reports whether this machine has IPv6.
func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}
