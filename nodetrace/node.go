package nodetrace

import (
	"net/netip"

	"kube-proxy/trace"
)

// Question says what to follow.
type Question struct {
	Packet trace.Packet
	// Table is the answer of the table: modes that open connections of their own go to its
	// backends.
	Table trace.Answer
	Mode  trace.Mode
	// Kernel is the answer of the mode's state in the kernel; nil if it was not read.
	Kernel *trace.Kernel
	// OnNode reports whether the endpoint runs on this node; nil if that is not known.
	OnNode func(netip.AddrPort) bool
	// ClientHere: the client is an endpoint on this node, or has an address of the node's pod
	// CIDRs.
	ClientHere bool
	// Backend and Sees are the reply's source and destination if conntrack has the connection; else
	// not valid.
	Backend, Sees netip.AddrPort
	// Mark is that connection's mark.
	Mark uint32
	// Offloaded: a flowtable has that connection.
	Offloaded bool
}
