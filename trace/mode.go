package trace

import "kube-proxy/lb"

// Mode is what a proxy mode makes of the table, where modes differ. The zero Mode is that of
// nftables. [kube-proxy/mode] gives the value of a mode that runs.
type Mode struct {
	// Name is the mode's name, for people; "" where none runs.
	Name string
	// PassesUnknown: a packet to an address or port of the service network that no Service has
	// passes untouched (SV-62, SV-63), and so does a ping (SV-66).
	PassesUnknown bool
	// Holds: the node has every service address itself. It answers pings there, and refuses ports
	// that no row has, but where the address is its own besides ([Packet.Here]), or an API
	// server's.
	Holds bool
	// Unfiltered: there is no packet filter, so if a row has no backends for a client, what
	// others drop is refused.
	Unfiltered bool
	// Terminates: connections end at the proxy, which opens others to the backends: they see an
	// address of the node.
	Terminates bool
	// Loopback: NodePorts answer on 127.0.0.1 too, where one of [kube-proxy/lb.Node.NodePorts]
	// covers it (SV-64).
	Loopback bool
	// LocalhostProxy: TCP NodePorts answer at [kube-proxy/lb.Node.Localhost] by connections of the
	// proxy, which lead where those from anywhere go; those of other protocols are rejected there.
	LocalhostProxy bool
	// HairpinsByNode: a backend that is its own client is not masqueraded where the API says that
	// it runs on another node (SV-60).
	HairpinsByNode bool
	// Served is what the mode makes of a row for a packet, where it cannot keep rows as they are: a
	// row that it keeps, nil for one that it does not serve so that packets pass; and why, as
	// sentences, "" where it keeps the row as it is. NodePorts that it keeps answer at every
	// address of the node. Nil: all rows are kept.
	Served func(lb.Node, *lb.Frontend, Packet) (kept *lb.Frontend, why string)
}
