package trace

import "kube-proxy/lb"

// Mode describes how a proxy mode treats the table, where modes differ. The zero Mode is that of
// nftables. [kube-proxy/mode] gives the value of a mode that runs.
type Mode struct {
	// Name is the mode's name, for people; "" where none runs.
	Name string
	// PassesUnknown: a packet to an address or port of the service network that no Service has
	// passes untouched (SV-62, SV-63), and so does a ping (SV-66).
	PassesUnknown bool
	// Holds: the node has every service address itself. It answers pings there, and refuses ports
	// without a frontend, unless the address is also its own ([Packet.Here]) or an API server's.
	Holds bool
	// Unfiltered: there is no packet filter, so if a frontend has no backends for a client, the
	// packets that other modes drop are refused.
	Unfiltered bool
	// Terminates: connections end at the proxy, which opens others to the backends: they see an
	// address of the node.
	Terminates bool
	// Mark is the packet mark of connections that the proxy itself opens to backends.
	Mark uint32
	// Loopback: NodePorts answer on 127.0.0.1 too, where one of [kube-proxy/lb.Node.NodePorts]
	// covers it (SV-64).
	Loopback bool
	// LocalhostProxy: TCP NodePorts answer at [kube-proxy/lb.Node.Localhost] by connections of the
	// proxy, which lead where those from anywhere go. Other packets to NodePorts at 127.0.0.1 and
	// ::1 are rejected.
	LocalhostProxy bool
	// LocalhostSockets: sockets of the node's own programs are connected to NodePorts at loopback
	// addresses too, where one of [kube-proxy/lb.Node.NodePorts] covers them (SV-64).
	LocalhostSockets bool
	// HairpinsByNode: a backend that is its own client is not masqueraded where the API says that
	// it runs on another node (SV-60).
	HairpinsByNode bool
	// Served is for modes that cannot serve all frontends as they are. It returns the frontend that
	// the mode serves for a packet, nil if it serves none and packets pass; and why, as sentences,
	// "" for an unchanged frontend. Served NodePorts answer at every address of the node. Nil: all
	// frontends are served unchanged.
	Served func(lb.Node, *lb.Frontend, Packet) (kept *lb.Frontend, why string)
}
