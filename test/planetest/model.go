package planetest

import (
	"net/netip"
	"slices"

	"kube-proxy/lb"
)

// Model answers in place of a kernel that nobody has here: it holds what planes write, and says what would become of a connection.
// What is proven with it is proven of the model.
type Model interface {
	// New makes a plane that writes to the model, on top of what the one before left.
	New() (Plane, error)
	// Meets says what becomes of a new connection, of TCP, UDP or SCTP.
	Meets(Connection) Meeting
	// Lives reports whether a connection that met with that, and was answered by that backend, goes on.
	Lives(m Meeting, backend netip.AddrPort) bool
}

// Connection is what a model is asked about.
type Connection struct {
	// From is the host of the lab that connects.
	From string
	To   netip.AddrPort
	// ToNode: the node holds that address.
	ToNode bool
	Proto  lb.Proto
}

// Meeting is what becomes of a connection.
type Meeting struct {
	// By is who translates it, in words of the model; "" if it goes on as it came.
	By string
	// Backends are where it may arrive, in equal shares.
	Backends []netip.AddrPort
	// Sticky: all connections of the client arrive at the same one.
	Sticky bool
	// Kept: the backend sees the client's own address.
	Kept bool
}

// Modelled names one thing that a model may show otherwise than a line says, and be right ([Config.Model]).
type Modelled string

// What may be otherwise. Each is accepted only where the model shows just that.
const (
	// ModelledSilence: nothing refuses or drops a packet; it goes on as it came.
	ModelledSilence Modelled = "silence"
	// ModelledNode: backends see the node where other modes keep the client's address.
	ModelledNode Modelled = "node"
	// ModelledClient: backends see the client where other modes masquerade.
	ModelledClient Modelled = "client"
	// ModelledAffinity: a client stays with a backend as long as the backends stay the same, and for no time of its own.
	ModelledAffinity Modelled = "affinity"
	// ModelledSplit: pods and the node are treated as who comes from outside.
	ModelledSplit Modelled = "split"
	// ModelledRanges: a row with source ranges lets nobody in.
	ModelledRanges Modelled = "ranges"
	// ModelledSCTP: SCTP is not translated.
	ModelledSCTP Modelled = "sctp"
	// ModelledPorts: of backends with several ports those with one of them serve.
	ModelledPorts Modelled = "ports"
	// ModelledNodePorts: NodePorts answer on all addresses of the node, or on none.
	ModelledNodePorts Modelled = "nodeports"
	// ModelledInside: who comes from outside to a cluster IP meets only the backends of this node, or none.
	ModelledInside Modelled = "inside"
	// ModelledFlows: connections end when their load balancer goes, and not before.
	ModelledFlows Modelled = "flows"
)

// modelledNotes are what docs/conformance.md says of each.
var modelledNotes = map[Modelled]string{
	ModelledSilence:   "Differs by intent: HNS refuses and drops nothing. Where others do, no load balancer takes the packet, which goes on as it came: to an address that nobody has, or to the node itself.",
	ModelledNode:      "Differs by intent: without DSR backends see the node, or the source VIP, where others keep the client's address.",
	ModelledClient:    "Differs by intent: with DSR backends see the client where others masquerade; whether an answer needs that is HNS's own affair.",
	ModelledAffinity:  "Differs by intent: HNS chooses by the client's address, so a client stays with its backend while the backends stay the same.",
	ModelledSplit:     "Differs by intent: HNS has one load balancer for an address and port, whoever sends: this node and its pods are treated as who comes from outside.",
	ModelledRanges:    "Differs by intent: HNS knows no source ranges. An address with some is not served at all, so that nobody gets in who may not.",
	ModelledSCTP:      "Differs by intent: HNS does not translate SCTP.",
	ModelledPorts:     "Differs by intent: a load balancer of HNS leads to one port. Of endpoints with several those serve which have the most common one.",
	ModelledNodePorts: "Differs by intent: a load balancer of HNS answers on all addresses of the node. Where the primary one is not asked for NodePorts, there are none.",
	ModelledInside:    "Differs by intent: with DSR who comes from outside to a cluster IP meets the backends of this node alone.",
	ModelledFlows:     "Differs by intent: which connections go on is HNS's own affair. Taken for sure is only that those of a load balancer do which is changed in place.",
}

// modelled explains the columns of modes that were asked of a model.
func (p *page) modelled() {
	if !slices.ContainsFunc(p.results, func(r Results) bool { return r.Model }) {
		return
	}
	p.line("A column with \"fake\" in brackets had no packets sent, for nobody here has what it stands for. The tables of each scenario went to")
	p.line("the plane, which wrote them to a fake in memory, step by step; and each line of packets was put to a resolver that walks what the")
	p.line("fake holds, as the documents say that the real one would ([ADR 0043](adr/0043-services-in-hns.md)). It proves what is written,")
	p.line("not that Windows carries it out. There ≈ means that some lines met with something else, which is what the notes say, by intent, and")
	p.line("nothing but that; such a scenario counts as one that differs. The resolver knows no time, and no packets under way.")
	p.line("")
}
