//go:build !linux && !windows

package api

import "net"

// peer returns the process at the other end; other systems report it in different ways.
func peer(net.Conn) string { return "another process" }
