package trace

import "net/netip"

// Node is what the rest of the node does with a packet and its reply, after the table and the
// kernel state of kube-proxy: other tables of the packet filter, conntrack, routes, neighbours,
// devices and sysctls. Its JSON is part of "kube-proxy trace -o json": fields may be added.
type Node struct {
	Verdict NodeVerdict `json:"verdict"`
	// By is the culprit: `table inet firewall, chain forward, rule 3 "drop"`,
	// "net.ipv4.ip_forward=0"; "" if Verdict is [Delivered].
	By string `json:"by,omitempty"`
	// Own: By is part of kube-proxy, and does what the table says.
	Own bool `json:"own,omitempty"`
	// Stage is where By decides: "conntrack", "prerouting", "route", "forward", and so on, with
	// "reply: " before it for the reply, and "next packets: " for what follows.
	Stage string `json:"stage,omitempty"`
	// Share is the part of new connections that meet By or another obstacle, 0 to 1.
	Share float64 `json:"share,omitempty"`
	// Backends are those whose connections fail, if not all do; the first few of them.
	Backends []netip.AddrPort `json:"backends,omitempty"`
	// Do is the command or the setting that helps; "" if the text of By suffices.
	Do string `json:"do,omitempty"`
	// Sees is what backends see as the source, where that is not what the table says; "" else.
	Sees Sees `json:"sees,omitempty"`
	// Elsewhere says that the packet is another node's, and where to ask; "" if it is this node's.
	Elsewhere string `json:"elsewhere,omitempty"`
	// Pinned are existing connections that lead to an address which is no backend any more.
	Pinned []Pinned `json:"pinned,omitempty"`
	// Warnings are settings and states that may harm some packets, a sentence each.
	Warnings []string `json:"warnings,omitempty"`
	// NotEvaluated names what may decide otherwise and cannot be judged: rules with unknown
	// matches, programs on tc, XDP and cgroups.
	NotEvaluated []string `json:"notEvaluated,omitempty"`
	// Steps is the path, in order. The steps of one backend are shown if all backends share them.
	Steps []Step `json:"steps,omitempty"`
	// Rules are the rules that the packet and its reply matched, on all ways, a line each.
	Rules []string `json:"rules,omitempty"`
}

// NodeVerdict is what becomes of a connection on the node.
type NodeVerdict string

// The verdicts; their texts are part of the interface of "kube-proxy trace -o json".
const (
	// Delivered: the packet leaves the node towards its destination, or reaches a socket, and its
	// reply returns.
	Delivered NodeVerdict = "delivered"
	// Dropped: the packet or its reply disappears.
	Dropped NodeVerdict = "dropped"
	// Rejected: the sender receives an error.
	Rejected NodeVerdict = "rejected"
	// Translated: another program leads the packet to an address that is no backend.
	Translated NodeVerdict = "translated"
	// Undecided: nothing that could be evaluated stops the packet, but NotEvaluated may.
	Undecided NodeVerdict = "unknown"
)

// Sees is what backends see as the source of a packet.
type Sees string

// The kinds of sources; their texts are part of the interface of "kube-proxy trace -o json".
const (
	// SeesClient: a packet that the table has masqueraded keeps the client's address.
	SeesClient Sees = "client"
	// SeesAnother: a rule of another program gives the packet a source.
	SeesAnother Sees = "translated"
)

// Step is one thing on the path of a packet or its reply.
type Step struct {
	// Backend is the destination after translation; not valid before.
	Backend netip.AddrPort `json:"backend,omitzero"`
	Reply   bool           `json:"reply,omitempty"`
	// Stage is as in [Node].
	Stage string `json:"stage"`
	Text  string `json:"text"`
}

// Pinned is a connection that conntrack keeps with a former backend.
type Pinned struct {
	From    netip.AddrPort `json:"from"`
	To      netip.AddrPort `json:"to"`
	Backend netip.AddrPort `json:"backend"`
	Proto   string         `json:"proto"`
	// Do is the command that deletes it.
	Do string `json:"do"`
}
