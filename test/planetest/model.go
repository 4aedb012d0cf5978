package planetest

import (
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// Model answers in place of a kernel that the tests do not have: it keeps the writes of planes, and
// predicts the outcome of connections. Its results prove something about the model alone.
type Model interface {
	// New makes a plane that writes to the model, on top of the state of the previous one.
	New() (Plane, error)
	// Meets returns the outcome of a new connection, of TCP, UDP or SCTP.
	Meets(Connection) Meeting
	// Lives reports whether a connection with that meeting, answered by that backend, continues.
	Lives(m Meeting, backend netip.AddrPort) bool
}

// Connection is a query to a model.
type Connection struct {
	// From is the host of the lab that connects.
	From string
	To   netip.AddrPort
	// ToNode: the node holds that address.
	ToNode bool
	Proto  lb.Proto
}

// Meeting is the result of a connection.
type Meeting struct {
	// By is the translating object, in the model's terms; "" if the packet continues unchanged.
	By string
	// Backends are where it may arrive, in equal shares.
	Backends []netip.AddrPort
	// Sticky: all connections of the client arrive at the same one.
	Sticky bool
	// Kept: the backend sees the client's own address.
	Kept bool
}

// Modelled names one permitted difference between a model and a line ([Config.Model]).
type Modelled string

// The permitted differences. Each is accepted only where the model shows exactly that.
const (
	// ModelledSilence: nothing refuses or drops a packet; it continues unchanged.
	ModelledSilence Modelled = "silence"
	// ModelledNode: backends see the node where other modes keep the client's address.
	ModelledNode Modelled = "node"
	// ModelledClient: backends see the client where other modes masquerade.
	ModelledClient Modelled = "client"
	// ModelledAffinity: a client stays with a backend as long as the backends stay the same,
	// without a timeout.
	ModelledAffinity Modelled = "affinity"
	// ModelledSplit: pods and the node are treated like clients from outside.
	ModelledSplit Modelled = "split"
	// ModelledRanges: a frontend with source ranges serves no client.
	ModelledRanges Modelled = "ranges"
	// ModelledSCTP: SCTP is not translated.
	ModelledSCTP Modelled = "sctp"
	// ModelledPorts: of backends with several ports those with one of them serve.
	ModelledPorts Modelled = "ports"
	// ModelledNodePorts: NodePorts answer on all addresses of the node, or on none.
	ModelledNodePorts Modelled = "nodeports"
	// ModelledInside: a client from outside that connects to a cluster IP reaches only the backends
	// of this node, or none.
	ModelledInside Modelled = "inside"
	// ModelledFlows: connections end when their load balancer is deleted, and not before.
	ModelledFlows Modelled = "flows"
)

// modelledNotes are the explanations in docs/conformance.md.
var modelledNotes = map[Modelled]string{
	ModelledSilence: "HNS neither rejects nor drops. Such a packet goes on unchanged.",
	ModelledNode:    "Without DSR backends see the node's address or the source VIP, not the client's.",
	ModelledClient:  "With DSR backends see the client where other modes masquerade.",
	ModelledAffinity: "HNS chooses by the client's address: a client keeps its backend while the backends stay the " +
		"same.",
	ModelledSplit: "HNS has one load balancer for an address and port: the node and its pods are treated as " +
		"outside clients.",
	ModelledRanges:    "HNS has no source ranges: an address with source ranges is not served.",
	ModelledSCTP:      "HNS does not translate SCTP.",
	ModelledPorts:     "A load balancer of HNS has one backend port: only endpoints with the most common port serve.",
	ModelledNodePorts: "A load balancer of HNS answers on all addresses of the node, or NodePorts are off.",
	ModelledInside:    "With DSR an outside client of a cluster IP reaches only this node's backends.",
	ModelledFlows:     "Connections are known to survive only where a load balancer changes in place.",
}

// modelled explains the columns of modes that were tested with a model.
func (p *page) modelled() {
	if !slices.ContainsFunc(p.results, func(r Results) bool { return r.Model }) {
		return
	}
	p.line("A mode with a name in brackets is a model: no packets were sent. The plane wrote each table to a fake in " +
		"memory, and a")
	p.line("resolver looked up each packet as the real system's documentation says ([ADR " +
		"0043](adr/0043-services-in-hns.md)).")
	p.line("It proves what is written, not that Windows executes it.")
	p.line("")
}
