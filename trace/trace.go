package trace

import (
	"net/netip"

	"kube-proxy/lb"
)

// Packet opens a connection, or a flow, that meets this node.
type Packet struct {
	// From is the source address. Port 0 stands for any port.
	From netip.AddrPort
	// In is the interface that the packet comes in through; "" if that is not known, or if the
	// packet is the node's own.
	In string
	// Host: the source is an address of this node itself, as for routes from [lb.Host].
	Host bool
	// Unbound: a program of this node sends it, and lets the kernel choose the source.
	Unbound bool
	// To is where the client sends it.
	To netip.AddrPort
	// Here: To is an address of this node, at which NodePorts may answer ([lb.Node.NodePorts]); of
	// no service alone, which the mode has the node hold ([Mode.Holds]).
	Here bool
	// Proto may also be [ICMPv4] or [ICMPv6].
	Proto lb.Proto
}

// Verdict is what becomes of a packet.
type Verdict string

// The verdicts; their texts are part of the interface of "kube-proxy trace -o json".
const (
	// Balance: one of the backends answers.
	Balance Verdict = "balance"
	// Reject: the client gets an error at once.
	Reject Verdict = "reject"
	// Drop: the client gets no answer.
	Drop Verdict = "drop"
	// Pass: the proxy leaves the packet as it is; it goes on to the owner of the address.
	Pass Verdict = "pass"
)

// Backend is who may answer.
type Backend struct {
	Address netip.AddrPort `json:"address"`
	// Share is the part of new connections that it gets, 0 to 1, of clients that no session
	// affinity holds elsewhere.
	Share float64 `json:"share"`
	// Hairpin: it is the client itself, and so sees this node as the source though others see the
	// client (SV-60). Only in answers of the table.
	Hairpin bool `json:"hairpin,omitempty"`
	// Here: it is at an address of this node, and so sees clients elsewhere as they are, though
	// others see this node. Only in answers of the table that masquerade.
	Here bool `json:"here,omitempty"`
}

// Kernel is what the state that the kernel holds, or what stands for it in a mode whose connections
// end at the proxy, says of a packet, read from there and not from what was written.
type Kernel struct {
	Verdict    Verdict   `json:"verdict"`
	Backends   []Backend `json:"backends,omitempty"`
	Masquerade bool      `json:"masquerade,omitempty"`
	// Connected: programs decide about the client's socket. They connect it to a backend, so that
	// its packets are not translated, whatever the table says of masquerading; or its call fails,
	// if Verdict is Reject.
	Connected bool `json:"connected,omitempty"`
	// Way is what the packet meets on its way, a line each, in the words of the program that lists
	// such state: map elements, chains with their rules, virtual servers.
	Way []string `json:"way"`
	// Affine is the backend that the kernel remembers for this client, if it does.
	Affine netip.AddrPort `json:"affine,omitzero"`
	// Programs are those of the mode that sockets of this node meet first; nil for none. The answer
	// is also theirs.
	Programs *Programs `json:"-"`
	// Perhaps: the client may have a socket of this node, which programs then connect: without a
	// cluster CIDR, addresses of pods are not known; or the route to the pod leads elsewhere.
	Perhaps bool `json:"-"`
	// Passed is why such programs pass the client's connection to the rules; "" if they do not.
	Passed string `json:"passed,omitempty"`
	// Drains: what rejects the packet is on the way out, and stays until connections that it has
	// have ended.
	Drains bool `json:"drains,omitempty"`
}

// Programs are BPF programs at a cgroup, by the kernel's numbers.
type Programs struct {
	Cgroup string
	IDs    []uint32
}

// Difference is an object whose state in the kernel differs from the table.
type Difference struct {
	// Key is that of its frontend; the zero Key for an object without a frontend, such as a base
	// chain.
	Key lb.Key `json:"-"`
	// Object names it, as in "element { 192.0.2.7 . tcp . 80 } of map services".
	Object string `json:"object"`
	// Desired and Actual are the two states; "" for nothing there.
	Desired string `json:"desired,omitempty"`
	Actual  string `json:"actual,omitempty"`
}
