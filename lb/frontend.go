package lb

import (
	"cmp"
	"net/netip"
	"strconv"
	"time"
)

// Kind is the origin of a frontend. Planes use it for one purpose: an address of kind ClusterIP
// belongs to the service network (SV-62). All else is for display.
type Kind uint8

// The kinds of frontends.
const (
	ClusterIP Kind = iota + 1
	ExternalIP
	LoadBalancer
	NodePort
	// HealthCheck is a port at which this node itself reports to load balancers whether it has
	// endpoints of the Service (HT-10). Its key is that of a NodePort, its protocol TCP and its
	// only route [Accept].
	HealthCheck
)

var kindNames = [...]string{ClusterIP: "clusterip", ExternalIP: "externalip", LoadBalancer: "loadbalancer",
	NodePort: "nodeport", HealthCheck: "healthcheck"}

// String returns the kind's name in lower case.
func (k Kind) String() string { return name(kindNames[:], int(k), "Kind") }

// From is the set of sources of a route. A packet may match more than one; the first route wins.
type From uint8

// The three kinds of sources, in the order of routes.
const (
	// Pods are sources that the node's local-traffic detector ([Node.Pods]) recognises.
	Pods From = iota + 1
	// Host is any address of this node itself: the source address has type LOCAL.
	Host
	// Anywhere is every source.
	Anywhere
)

var fromNames = [...]string{Pods: "pods", Host: "host", Anywhere: "anywhere"}

// String returns the source's name in lower case.
func (f From) String() string { return name(fromNames[:], int(f), "From") }

// Action is the treatment of a new connection by a route.
type Action uint8

// The actions.
const (
	// Balance sends the connection to one backend of the route's set.
	Balance Action = iota + 1
	// Reject answers with ICMP port unreachable (SV-50).
	Reject
	// Drop discards packets without an answer (SV-51, SV-52, SV-61).
	Drop
	// Accept lets the packet through to a server of this node. Planes that open ports in the host's
	// firewall do so (DP-08); for the others such a frontend means that nothing is translated, as
	// if it did not exist.
	Accept
)

var actionNames = [...]string{Balance: "balance", Reject: "reject", Drop: "drop", Accept: "accept"}

// String returns the action's name in lower case.
func (a Action) String() string { return name(actionNames[:], int(a), "Action") }

// Scope distinguishes the backend sets of a service port.
type Scope uint8

// The scopes. Routes balance over all of the cluster's backends, or only over those on this node
// (SV-20); flows that exist may stay with all that serves (see [Frontend.Serving]).
const (
	Cluster Scope = iota + 1
	Local
	Serving
)

var scopeNames = [...]string{Cluster: "cluster", Local: "local", Serving: "serving"}

// String returns the scope's name in lower case.
func (s Scope) String() string { return name(scopeNames[:], int(s), "Scope") }

func name(names []string, i int, typ string) string {
	if i > 0 && i < len(names) {
		return names[i]
	}
	return typ + "(" + strconv.Itoa(i) + ")"
}

// Frontend is one entry of the table. It is immutable after it was passed to a [Table].
type Frontend struct {
	Key Key
	// Service is the service port of the frontend, "ns/name:port"; without ":" if the port has no
	// name (SV-12), and for a HealthCheck, which is for the whole Service.
	Service string
	Kind    Kind
	// PreserveDestination lets backends see the frontend's own address, which they have too, as the
	// destination (the annotation preserve-destination, kubernetes/kubernetes#74825). It occurs
	// only in balancing frontends of external and load-balancer addresses; only the HNS plane
	// supports it, the others ignore it.
	PreserveDestination bool
	// Routes are tried in order: at most one for each From, in the order Pods, Host, Anywhere, and
	// the last is for Anywhere.
	Routes []Route
	// Affinity is how long a client sticks to its backend after its last new connection, in whole
	// seconds from 1 s to 24 h; 0 means no affinity (SV-18).
	Affinity time.Duration
	// Sources are the only sources that may use the frontend, sorted and without overlaps; packets
	// of others are dropped whatever the routes are (SV-61). Empty means all sources, as always in
	// frontends of NodePorts.
	Sources []netip.Prefix
	// Serving holds all endpoints that serve the service port now, whatever traffic policy and
	// topology select and whichever of them drain: existing flows may stay there (DP-50). It is nil
	// where the routes reach all of them, and in frontends of TCP, whose flows are never deleted
	// (DP-53). Its backends have no Local, Unplaced and Draining. Planes that leave flows to the
	// kernel ignore it.
	Serving *BackendSet
	// LocalEndpoints, in frontends of kind HealthCheck, is the number of ready endpoints of the
	// Service on this node: distinct addresses of the family, over all ports, without terminating
	// ones (HT-13). Else 0. Planes ignore it.
	LocalEndpoints int
}

// Accepts reports whether the frontend lets packets through to a server of this node and translates
// nothing, see [Accept]. A nil frontend does not.
func (f *Frontend) Accepts() bool { return f != nil && len(f.Routes) == 1 && f.Routes[0].Do == Accept }

// Route is the treatment of a new connection from one kind of source.
type Route struct {
	From From
	Do   Action
	// Masq makes the node the source that the backend sees. Only with Balance.
	Masq bool
	// To is the set to balance over, never empty; nil unless Do is Balance.
	To *BackendSet
}

// BackendSet is a list of backends that all frontends of one service port and protocol share.
type BackendSet struct {
	ID       SetID
	Backends Backends
}

// SetID names a backend set: one service port (name and protocol, SV-12), one scope.
type SetID struct {
	Service string // as in [Frontend.Service]
	Proto   Proto
	Scope   Scope
}

// String returns "ns/name:port/tcp/cluster".
func (id SetID) String() string {
	return id.Service + "/" + id.Proto.String() + "/" + id.Scope.String()
}

// Compare orders IDs by service, protocol and scope.
func (id SetID) Compare(o SetID) int {
	return cmp.Or(cmp.Compare(id.Service, o.Service), cmp.Compare(id.Proto, o.Proto), cmp.Compare(id.Scope, o.Scope))
}

// Serves reports whether the backend at a serves the frontend's service port, so that an existing
// flow to it may stay (DP-50). The result does not apply to new flows.
func (f *Frontend) Serves(a netip.AddrPort) bool {
	if f.Serving != nil {
		return f.Serving.Backends.Has(a)
	}
	for _, r := range f.Routes {
		if r.To != nil && r.To.Backends.Has(a) {
			return true
		}
	}
	return false
}

// Last returns the route for all other sources. The frontend must have routes.
func (f *Frontend) Last() Route { return f.Routes[len(f.Routes)-1] }

// Set returns the set of the given scope, Cluster or Local, that f balances over, or nil.
func (f *Frontend) Set(scope Scope) *BackendSet {
	for _, r := range f.Routes {
		if r.To != nil && r.To.ID.Scope == scope {
			return r.To
		}
	}
	return nil
}

// Change is one step from one table to another: the frontend of Key becomes New, or is removed when
// New is nil. Applying a change twice is the same as applying it once. Old is a hint of the former
// frontend; Key and New are authoritative.
type Change struct {
	Key      Key
	Old, New *Frontend
}
