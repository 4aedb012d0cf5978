//go:build !linux && !windows

package api

import "net"

// peer returns the process at the other end, which other systems do not say in the same way.
func peer(net.Conn) string { return "another process" }
