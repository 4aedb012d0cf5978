package trace

import (
	"net/netip"

	"kube-proxy/lb"
)

// Answer is what the table says of a packet. Its JSON is the interface of "kube-proxy trace -o
// json": fields may be added.
type Answer struct {
	// Service is the service port that has the row, "ns/name:port"; "" where no Service has to do
	// with the packet.
	Service string  `json:"service"`
	Verdict Verdict `json:"verdict"`
	// Backends are who may answer, in the order of their addresses; empty unless Verdict is
	// [Balance].
	Backends []Backend `json:"backends"`
	// Masquerade: backends see an address of this node as the source. See also [Backend.Hairpin].
	Masquerade bool `json:"masquerade"`
	// Why says how the verdict comes about, a sentence each.
	Why []string `json:"why"`

	// Row is the key of the row that decides, as [lb.Key.String] writes it, and Kind what the
	// address is to the Service, as [lb.Kind.String] does; "" for no row.
	Row  string `json:"row,omitempty"`
	Kind string `json:"kind,omitempty"`
	// Route says for whom the deciding route is: "pods", "host" or "anywhere"; "" where no route
	// was asked.
	Route string `json:"route,omitempty"`
	// Set is the backend set, as [lb.SetID.String] names it; "" unless Verdict is [Balance].
	Set string `json:"set,omitempty"`
	// AffinitySeconds is how long a client stays with its backend after its last new connection; 0
	// for no affinity.
	AffinitySeconds int `json:"affinitySeconds,omitempty"`
	// SourceRanges are the only sources that may use the row; nil for everybody.
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	// NodePorts are the prefixes of the node's addresses at which the NodePort answers; nil unless
	// Kind is "nodeport".
	NodePorts []netip.Prefix `json:"nodePorts,omitempty"`
	// Conflicts are the first few of those who want the row's key too and have it not, in the order
	// in which they get it, and Contesting is how many there are.
	Conflicts  []Conflict `json:"conflicts,omitempty"`
	Contesting int        `json:"contesting,omitempty"`

	// Kernel is what the kernel says; nil if it was not read.
	Kernel *Kernel `json:"kernel,omitempty"`
	// Findings are how the two differ, a sentence each; see [Compare].
	Findings []string `json:"findings,omitempty"`

	// Frontend is the row; nil for none.
	Frontend *lb.Frontend `json:"-"`
}

// Conflict is a Service that wants a key which another has.
type Conflict struct {
	// Service is "ns/name".
	Service string `json:"service"`
	// Kind is as what it wants the address: [lb.Kind.String].
	Kind string `json:"kind"`
	// Why says what the Service that has the key is or does that this one does not:
	// [lb.Conflict.Why].
	Why string `json:"why"`
}

// Add takes in what the kernel says, and compares.
func (a *Answer) Add(k Kernel) { a.Kernel, a.Findings = &k, Compare(*a, k) }
