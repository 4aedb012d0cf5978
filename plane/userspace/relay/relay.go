// Package relay moves what clients send to backends, and back: connections of TCP and SCTP, and sessions of UDP. It knows
// sockets and nothing of Services: whom a client is led to, a [Balancer] says.
package relay

import (
	"net/netip"

	"kube-proxy/lb"
)

// Client is who opens a connection, or begins a session.
type Client struct {
	// Addr is where it comes from.
	Addr netip.AddrPort
	// Local is the address that it asked for, as far as the socket tells: that of the listener where packets are led to
	// it, unless the kernel remembers the one before (SO_ORIGINAL_DST).
	Local netip.AddrPort
}

// Answer is what becomes of a new connection or session.
type Answer uint8

// The answers.
const (
	// Forward leads it to the backend.
	Forward Answer = iota + 1
	// Refuse resets a connection. A datagram is dropped: a socket cannot refuse one.
	Refuse
	// Drop lets the client wait, as far as that can be done.
	Drop
)

// Balancer says where the clients of a listener go. It is called from many goroutines at a time, and does not block.
type Balancer interface {
	// Pick returns the backend for a new connection or session. tried are those that could not be reached for it, in the
	// order of the attempts; with none left that is worth an attempt the answer is Refuse.
	Pick(c Client, tried []netip.AddrPort) (netip.AddrPort, Answer)
	// Dialled tells how an attempt to reach the backend ended: nil for a connection.
	Dialled(c Client, backend netip.AddrPort, err error)
}

// Listening is one socket that clients reach.
type Listening struct {
	Proto lb.Proto
	// Addr is where it listens. Port 0 asks for any, and is never what a listener answers.
	Addr netip.AddrPort
}
