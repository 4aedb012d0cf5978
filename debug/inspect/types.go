package inspect

import (
	"net/netip"
	"time"

	"kube-proxy/policy"
)

// Service is one Service in a list.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Type is ClusterIP, NodePort, LoadBalancer or ExternalName.
	Type      string         `json:"type"`
	Addresses []Address      `json:"addresses,omitempty"`
	Ports     []Port         `json:"ports,omitempty"`
	Internal  string         `json:"internalTrafficPolicy"` // Cluster or Local
	External  string         `json:"externalTrafficPolicy"` // Cluster or Local
	Affinity  int            `json:"affinitySeconds,omitempty"`
	Endpoints EndpointCounts `json:"endpoints"`
	// Frontends are in force; Lost are frontends that it requests and another Service has.
	Frontends int   `json:"frontends"`
	Lost      int   `json:"lost,omitempty"`
	State     State `json:"state"`
	// Severity is the urgency of the state for the operator, the same in every output.
	Severity Severity `json:"severity"`
	// Why explains a state other than ok in a few words.
	Why string `json:"why,omitempty"`
}

// Address is one address at which a Service answers.
type Address struct {
	Address netip.Addr `json:"address"`
	// Kind is clusterip, externalip or loadbalancer.
	Kind string `json:"kind"`
}

// EndpointCounts counts the endpoints of a Service in its first family, as its slices name them.
type EndpointCounts struct {
	All   int `json:"all"`
	Ready int `json:"ready"`
	// Local are ready and on this node.
	Local int `json:"local"`
	// Terminating serve still, though their pods end.
	Terminating int `json:"terminating,omitempty"`
}

// Frontend is one frontend of the desired table.
type Frontend struct {
	Key    string `json:"key"`
	Family string `json:"family"`
	// Service is the service port, "ns/name:port".
	Service string `json:"service"`
	Kind    string `json:"kind"`
	// State is "in force", "conflict" (another Service has the key), "malformed" (it is not offered
	// to the kernel) or "failing" (the kernel refuses it).
	State string `json:"state"`
	// Why is the reason why the frontend is not in force.
	Why             string         `json:"why,omitempty"`
	Routes          []Route        `json:"routes"`
	AffinitySeconds int            `json:"affinitySeconds,omitempty"`
	SourceRanges    []netip.Prefix `json:"sourceRanges,omitempty"`
	// LocalEndpoints is the number that a health check port reports; nil in other frontends.
	LocalEndpoints *int `json:"localEndpoints,omitempty"`
}

// Route is the treatment of a new connection from one kind of source.
type Route struct {
	From       string `json:"from"` // pods, host, anywhere
	Do         string `json:"do"`   // balance, reject, drop, accept
	Masquerade bool   `json:"masquerade,omitempty"`
	// Set is the backend set, and Backends how many it has.
	Set      string `json:"set,omitempty"`
	Backends int    `json:"backends,omitempty"`
}

// Detail has all inputs and results of one Service.
type Detail struct {
	Service
	// Node is the node of this answer.
	Node         string         `json:"node"`
	Created      *time.Time     `json:"created,omitempty"`
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	HealthCheck  uint16         `json:"healthCheckNodePort,omitempty"`
	Families     []DetailFamily `json:"families"`
	// Reasons are sentences, the most serious first: why it has no backends, why this node is
	// skipped, and other remarks.
	Reasons []string `json:"reasons,omitempty"`
	// Paths are those of three kinds of clients, see [Inspector.Why]; nil if none was followed.
	Paths []Path `json:"paths,omitempty"`
}

// DetailFamily is the Service in one IP family.
type DetailFamily struct {
	Family    string     `json:"family"`
	Frontends []Frontend `json:"frontends"`
	// Ports has the needs and results of each port of the Service.
	Ports []DetailPort `json:"ports"`
	// Endpoints are the first ones named by slices, by port and address; MoreEndpoints is the
	// number of the rest.
	Endpoints     []Endpoint `json:"endpoints"`
	MoreEndpoints int        `json:"moreEndpoints,omitempty"`
	// Refused are addresses and endpoints that are not served, and why.
	Refused []string `json:"refused,omitempty"`
	// Why has sentences about the whole Service.
	Why []string `json:"why,omitempty"`
}

// Parts of answers that package policy gives.
type (
	Port       = policy.Port
	DetailPort = policy.ExplainedPort
	Endpoint   = policy.ExplainedEndpoint
)

// Change is an event, and when it was in force. Unknown times are absent.
type Change struct {
	// Seq increases with the time of arrival; pass the last one to request later changes.
	Seq uint64 `json:"seq"`
	// Kind is service, node, reset, loaded, repaired or failed.
	Kind string `json:"kind"`
	// Object is the changed object, as in "shop/web", and What the event, in words.
	Object string `json:"object"`
	What   string `json:"what"`
	Family string `json:"family,omitempty"`
	// Service is "ns/name"; "" for changes of no single Service.
	Service string `json:"service,omitempty"`
	// API is when the API had it, Learned when this process received it, and Done when it was in
	// force, or failed.
	API     *time.Time `json:"api,omitempty"`
	Learned *time.Time `json:"learned,omitempty"`
	Done    *time.Time `json:"done,omitempty"`
	// SinceAPI and SinceLearned are the milliseconds until it was in force; nil if unknown.
	SinceAPI     *float64 `json:"sinceAPIMilliseconds,omitempty"`
	SinceLearned *float64 `json:"sinceLearnedMilliseconds,omitempty"`
	// Frontends is the number of frontends written for it.
	Frontends int `json:"frontends"`
	// Times is the number of equal consecutive entries.
	Times int `json:"times,omitempty"`
	// Error is the failure; "" without one.
	Error string `json:"error,omitempty"`
}

// Changes are the last changes, the oldest first.
type Changes struct {
	// Node is the node of this answer.
	Node string `json:"node"`
	// Service is the requested one, "ns/name"; "" for all.
	Service string   `json:"service,omitempty"`
	Changes []Change `json:"changes"`
	// Newest is the Seq for the next query.
	Newest uint64 `json:"newest"`
	// Gone is the number of older ones that are no longer recorded.
	Gone uint64 `json:"gone,omitempty"`
}

// Since identifies the state of a list of Services, and its difference from the previous list.
type Since struct {
	// Newest is the Seq for the next query.
	Newest uint64 `json:"newest"`
	// Again: the changed Services are unknown, or too many; query all.
	Again bool `json:"again,omitempty"`
	// Gone lists the deleted Services, "ns/name".
	Gone []string `json:"gone,omitempty"`
}

// Difference is an object that has another state in the kernel than in the table.
type Difference struct {
	Family string `json:"family"`
	// Key is the key of its frontend, and Service the owner; "" for objects without a frontend.
	Key     string `json:"key,omitempty"`
	Service string `json:"service,omitempty"`
	Object  string `json:"object"`
	Desired string `json:"desired,omitempty"`
	Actual  string `json:"actual,omitempty"`
}

// Diff is how the kernel differs from the table.
type Diff struct {
	// Node is the node of this answer.
	Node        string       `json:"node"`
	Differences []Difference `json:"differences"`
	// More is how many there are beyond those.
	More int `json:"more,omitempty"`
	// Frontends is the number of compared frontends.
	Frontends int `json:"frontends"`
	// Others are findings about rules of other programs, at the last look.
	Others []Finding `json:"others,omitempty"`
	// Notes explain what could not be compared, and why.
	Notes []string `json:"notes,omitempty"`
}

// Status is the state of the proxy.
type Status struct {
	Version    string     `json:"version"`
	Node       string     `json:"node"`
	Mode       string     `json:"mode"`
	Configured string     `json:"configuredMode,omitempty"`
	Reason     string     `json:"reason,omitempty"`
	Started    *time.Time `json:"started,omitempty"`
	Offline    bool       `json:"offline,omitempty"`
	// Manifests is the folder of the Services; "" if they come from an API server.
	Manifests string `json:"manifests,omitempty"`
	// Newest is the Seq of the newest change.
	Newest uint64 `json:"newest"`
	// Synced: the sources have listed all.
	Synced bool `json:"synced"`
	// Severity is that of the worst finding; ok without any.
	Severity Severity `json:"severity"`
	// Findings are the problems, the worst first.
	Findings []Finding `json:"findings"`
	// Conntrack is the fill level of the connection table; nil without a readable table.
	Conntrack *Conntrack `json:"conntrack,omitempty"`
	// LastChange is the newest change that is in force.
	LastChange *Change `json:"lastChange,omitempty"`
	// Snapshot is the time of the facts in force, while they come from a snapshot.
	Snapshot *time.Time     `json:"snapshot,omitempty"`
	Services int            `json:"services"`
	Facts    NodeFacts      `json:"nodeFacts"`
	Families []FamilyStatus `json:"families"`
}

// Conntrack is how many entries the connection table of the node has, of all programs, and can
// have.
type Conntrack struct {
	Entries uint64 `json:"entries"`
	Limit   uint64 `json:"limit"`
}

// NodeFacts are the facts of this node.
type NodeFacts struct {
	// Known: a Node object existed; Gone: it was deleted.
	Known        bool           `json:"known"`
	Gone         bool           `json:"gone,omitempty"`
	Zone         string         `json:"zone,omitempty"`
	Addresses    []netip.Addr   `json:"addresses,omitempty"`
	PodCIDRs     []netip.Prefix `json:"podCIDRs,omitempty"`
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	Leaving      bool           `json:"leaving,omitempty"`
}

// FamilyStatus is the state of one IP family.
type FamilyStatus struct {
	Family    string `json:"family"`
	Frontends int    `json:"frontends"`
	// NodePorts are the prefixes of addresses of this node that answer NodePorts.
	NodePorts []netip.Prefix `json:"nodePorts,omitempty"`
	// Begun: the first full write is done; Settled: nothing is pending; Lost: all frontends will be
	// written again.
	Begun   bool `json:"begun"`
	Settled bool `json:"settled"`
	Lost    bool `json:"lost,omitempty"`
	// Pending are keys that the kernel has not taken yet; Contested keys are claimed by more than
	// one Service.
	Pending    int `json:"pending"`
	Contested  int `json:"conflicts"`
	Unresolved int `json:"unresolved,omitempty"`
	// NoLocalInternal and NoLocalExternal are service ports that are dropped here for a traffic
	// policy of Local.
	NoLocalInternal int               `json:"noLocalInternal,omitempty"`
	NoLocalExternal int               `json:"noLocalExternal,omitempty"`
	Changes         uint64            `json:"changes"`
	Applies         uint64            `json:"applies"`
	Resets          uint64            `json:"resets"`
	Failures        uint64            `json:"failures"`
	Audits          uint64            `json:"audits"`
	Repaired        uint64            `json:"repaired"`
	LastError       string            `json:"lastError,omitempty"`
	LastFailure     *time.Time        `json:"lastFailure,omitempty"`
	LastSuccess     *time.Time        `json:"lastSuccess,omitempty"`
	LastQueued      *time.Time        `json:"lastQueued,omitempty"`
	LastSynced      *time.Time        `json:"lastSynced,omitempty"`
	QueuedSince     *time.Time        `json:"queuedSince,omitempty"`
	Failing         []FailingFrontend `json:"failing,omitempty"`
	// Sockets is the state of programs that connect sockets; nil in modes without.
	Sockets *Sockets `json:"sockets,omitempty"`
}

// Sockets is the state of programs that connect sockets to endpoints.
type Sockets struct {
	Serving bool `json:"serving"`
	// Off is why they do not serve; Configured: because of the configuration.
	Off        string `json:"off,omitempty"`
	Configured bool   `json:"configured,omitempty"`
	// HeartbeatSeconds is the age of the proxy's last sign of life. At TimeoutSeconds the programs
	// stop; 0 for never.
	HeartbeatSeconds float64 `json:"heartbeatSeconds"`
	TimeoutSeconds   float64 `json:"timeoutSeconds"`
	// Known is how many sockets the programs keep a destination of; further ones than Limit take
	// the rules. Ended is how many ended with their endpoint since the start.
	Known int    `json:"known"`
	Limit int    `json:"limit"`
	Ended uint64 `json:"ended"`
	// Passed is the number of calls to frontends that the programs passed to the rules, by reason.
	Passed map[string]uint64 `json:"passed,omitempty"`
}

// FailingFrontend is a frontend that the kernel refuses.
type FailingFrontend struct {
	Key     string     `json:"key"`
	Service string     `json:"service"`
	Error   string     `json:"error"`
	Since   *time.Time `json:"since,omitempty"`
	Tries   int        `json:"tries"`
}
