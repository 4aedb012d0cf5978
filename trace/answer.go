package trace

import (
	"net/netip"

	"kube-proxy/lb"
)

// Answer is the treatment of a packet by the table. Its JSON is the interface of "kube-proxy trace
// -o json": fields may be added.
type Answer struct {
	// Service is the service port that has the frontend, "ns/name:port"; "" for no Service.
	Service string  `json:"service"`
	Verdict Verdict `json:"verdict"`
	// Backends are those that may answer, by address; empty unless Verdict is [Balance].
	Backends []Backend `json:"backends"`
	// Masquerade: backends see an address of this node as the source. See also [Backend.Hairpin].
	Masquerade bool `json:"masquerade"`
	// Why explains the verdict, a sentence each. Decides is the one that decides; "" if Verdict is
	// [Balance].
	Why     []string `json:"why"`
	Decides string   `json:"decides,omitempty"`

	// FrontendKey is the key of the frontend that decides ([lb.Key.String]), and Kind that of its
	// address ([lb.Kind.String]); "" for no frontend.
	FrontendKey string `json:"frontend,omitempty"`
	Kind        string `json:"kind,omitempty"`
	// Route has the sources of the deciding route: "pods", "host" or "anywhere"; "" for no route.
	Route string `json:"route,omitempty"`
	// Set is the backend set, as [lb.SetID.String] names it; "" unless Verdict is [Balance].
	Set string `json:"set,omitempty"`
	// AffinitySeconds is how long a client stays with its backend after its last new connection; 0
	// for no affinity.
	AffinitySeconds int `json:"affinitySeconds,omitempty"`
	// SourceRanges are the only sources that may use the frontend; nil for all.
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	// NodePorts are the prefixes of the node's addresses at which the NodePort answers; nil unless
	// Kind is "nodeport".
	NodePorts []netip.Prefix `json:"nodePorts,omitempty"`
	// Conflicts are the first Services that claim the frontend's key without getting it, in the
	// order in which they would get it; Contesting is their number.
	Conflicts  []Conflict `json:"conflicts,omitempty"`
	Contesting int        `json:"contesting,omitempty"`

	// Kernel is the treatment by the kernel; nil if it was not read.
	Kernel *Kernel `json:"kernel,omitempty"`
	// Findings are the differences between table and kernel, a sentence each; see [Compare].
	Findings []string `json:"findings,omitempty"`

	// Frontend is the one that decides; nil for none.
	Frontend *lb.Frontend `json:"-"`
}

// Conflict is a Service that claims a key which another Service has.
type Conflict struct {
	// Service is "ns/name".
	Service string `json:"service"`
	// Kind is the kind of the address for this Service ([lb.Kind.String]).
	Kind string `json:"kind"`
	// Why is the reason why the other Service has the key ([lb.Conflict.Why]).
	Why string `json:"why"`
}

// Add adds the treatment by the kernel, and compares.
func (a *Answer) Add(k Kernel) { a.Kernel, a.Findings = &k, Compare(*a, k) }
