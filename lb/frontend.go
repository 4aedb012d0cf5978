package lb

import (
	"cmp"
	"net/netip"
	"strconv"
	"time"
)

// Kind says why a frontend exists. Planes need it for two things only: an address of kind ClusterIP
// belongs to the service network (SV-62), and people want to read it.
type Kind uint8

// The kinds of frontends.
const (
	ClusterIP Kind = iota + 1
	ExternalIP
	LoadBalancer
	NodePort
	// HealthCheck is a port on which this node itself tells load balancers whether it has endpoints of the
	// Service (HT-10). Its key is that of a NodePort, its protocol TCP and its only route [Accept].
	HealthCheck
)

var kindNames = [...]string{ClusterIP: "clusterip", ExternalIP: "externalip", LoadBalancer: "loadbalancer",
	NodePort: "nodeport", HealthCheck: "healthcheck"}

// String returns the kind's name in lower case.
func (k Kind) String() string { return name(kindNames[:], int(k), "Kind") }

// From says which sources a route is for. A packet may match more than one; the first route wins.
type From uint8

// The three kinds of sources, in the order in which routes name them.
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

// Action is what a route does with a new connection.
type Action uint8

// The actions.
const (
	// Balance sends the connection to one backend of the route's set.
	Balance Action = iota + 1
	// Reject answers with ICMP port unreachable (SV-50).
	Reject
	// Drop answers nothing (SV-51, SV-52, SV-61).
	Drop
	// Accept lets the packet through to a server of this node. Planes that punch holes into the host's
	// firewall do so (DP-08); for the others such a row means that nothing is translated, as if there were none.
	Accept
)

var actionNames = [...]string{Balance: "balance", Reject: "reject", Drop: "drop", Accept: "accept"}

// String returns the action's name in lower case.
func (a Action) String() string { return name(actionNames[:], int(a), "Action") }

// Scope tells the backend sets of a service port apart.
type Scope uint8

// The scopes. Routes balance over all of the cluster's backends, or only over those on this node (SV-20);
// flows that exist may stay with all that serves (see [Frontend.Serving]).
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

// Frontend is one row of the table. It is immutable once it has been given to a [Table].
type Frontend struct {
	Key Key
	// Service is the service port that the row serves, "ns/name:port"; without ":" where the port has no
	// name (SV-12), and for a HealthCheck, which serves the whole Service.
	Service string
	Kind    Kind
	// PreserveDestination asks that backends see the row's own address as the destination, which they have too (the
	// annotation preserve-destination, kubernetes/kubernetes#74825). Only in rows of external and load-balancer addresses
	// that balance; only the plane of HNS can do it, the others ignore it.
	PreserveDestination bool
	// Routes are tried in order: at most one for each From, in the order Pods, Host, Anywhere, and the
	// last is for Anywhere.
	Routes []Route
	// Affinity is how long a client sticks to its backend after its last new connection, in whole seconds
	// from 1 s to 24 h; 0 means no affinity (SV-18).
	Affinity time.Duration
	// Sources are the only sources that may use the row, sorted and without overlaps; others are dropped
	// whatever the routes say (SV-61). Empty means everybody, as always in rows of NodePorts.
	Sources []netip.Prefix
	// Serving is all that serves the service port now, whatever traffic policy and topology say and whoever
	// drains beside whom: flows that exist may stay there (DP-50). It is nil where the routes reach all of
	// that, and in rows of TCP, whose flows nobody forgets (DP-53). Its backends say nothing of Local, Unplaced and
	// Draining. Planes that leave flows to the kernel ignore it.
	Serving *BackendSet
	// LocalEndpoints, in rows of kind HealthCheck, is how many endpoints of the Service are ready on this node:
	// distinct addresses of the family, over all ports, without those that terminate (HT-13). Else 0. Planes
	// ignore it.
	LocalEndpoints int
}

// Accepts reports whether the row lets packets through to a server of this node and translates nothing, see
// [Accept]. A nil row does not.
func (f *Frontend) Accepts() bool {
	return f != nil && len(f.Routes) == 1 && f.Routes[0].Do == Accept
}

// Route is what happens to a new connection from one kind of source.
type Route struct {
	From From
	Do   Action
	// Masq asks that the backend sees the node as the source. Only with Balance.
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

// Serves reports whether the backend at a serves the row's service port, so that a flow which a route once
// sent there may stay (DP-50). It says nothing of where a new one may go.
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

// Last returns the route for sources that no other route is for. The row has one.
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

// Change is one step from one table to another: the row of Key becomes New, or goes when New is nil.
// Applying a change twice is the same as applying it once. Old is a hint of what was there; Key and New
// are the truth.
type Change struct {
	Key      Key
	Old, New *Frontend
}
