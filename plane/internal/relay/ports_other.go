//go:build !linux

package relay

// EphemeralPorts is how many ports the host has for sockets that ask for none: those that IANA has set aside (RFC 6335).
func EphemeralPorts() int { return 65535 - 49152 + 1 }
