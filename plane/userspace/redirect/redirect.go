// Package redirect has packets to service addresses reach the sockets of the proxy: by rules of nftables, by rules of iptables,
// or on Windows by the addresses themselves, put on an interface of the node (docs/adr/0041).
package redirect

import (
	"context"
	"net/netip"

	"kube-proxy/lb"
	"kube-proxy/plane/ownwrites"
)

// Entry says what meets packets to a key.
type Entry struct {
	Key lb.Key
	// Kind as in [lb.Frontend].
	Kind lb.Kind
	// Sources are the only sources that may come; others are dropped (SV-61). Empty means everybody.
	Sources []netip.Prefix
	// Routes are those of the row: at most one for each From, in the order Pods, Host, Anywhere; the last is for Anywhere. Most
	// rows do the same for everybody and have one. Where listeners are at the service addresses ([Redirector.Own]) there is always one, and
	// the listener itself tells sources apart.
	Routes []Route
}

// Route is what meets packets from one kind of source.
type Route struct {
	From lb.From
	// Port is that of the listener. 0: nothing listens, and Do says what happens instead.
	Port uint16
	// Do is Reject or Drop where Port is 0, else 0.
	Do lb.Action
}

// Shortest returns routes that do the same: who is treated as everybody needs none. It changes routes.
func Shortest(routes []Route) []Route {
	for n := len(routes); n > 1; n-- {
		last, before := routes[n-1], routes[n-2]
		if last.Port != before.Port || last.Do != before.Do {
			break
		}
		routes = append(routes[:n-2], last)
	}
	return routes
}

// Config says what to redirect, and how. It is what [Choose] and the constructors take.
type Config struct {
	// Family is the IP family; required.
	Family lb.Family
	// Mark has the bits of the packet mark, one or more, of all that the proxy itself sends to backends; 0 for none.
	Mark uint32
	// LocalhostNodePorts: NodePorts answer on 127.0.0.1, if one of [lb.Node.NodePorts] covers that (SV-64).
	LocalhostNodePorts bool
	// Writes is shared by the planes of this process in one network namespace. Nil means that there is no other.
	Writes *ownwrites.Ledger
}

// Later is the error of a Reset that holds all but the leads of these keys, which are to be applied again.
type Later struct {
	Keys []lb.Key
	Err  error
}

func (l *Later) Error() string { return l.Err.Error() }

func (l *Later) Unwrap() error { return l.Err }

// Redirector leads packets of one IP family. Its verbs keep the rules of package plane.
//
// What the proxy itself sends to backends carries the mark of the mode (the bit [kube-proxy/mode.Settings.MasqueradeBit]), and is
// led nowhere: an endpoint at a service address must not lead the proxy to itself, for ever.
type Redirector interface {
	// Name is "nftables", "iptables" or "addresses".
	Name() string
	// Own: listeners bind the service addresses themselves, one for each address (Windows). NodePorts are bound at the node's addresses by whoever calls. Sources and routes are the
	// listener's business then, for there is no packet filter. Otherwise one listener, bound to every address, may serve many keys.
	Own() bool
	// Unguarded says why a program of the node without privileges could serve the clients of a listener, if it takes the
	// listener's port while no proxy runs. Nil: the rules refuse its clients, but for SCTP.
	Unguarded() error
	// Known returns the leads that a process before this one left, so that its ports can be listened on again; of them Sources
	// need not be told.
	Known(ctx context.Context) ([]Entry, error)
	// Reset leads exactly these packets. An error that is a *[Later] says that it did so but for those to some keys.
	Reset(ctx context.Context, n lb.Node, want []Entry) error
	// Apply sets and removes leads.
	Apply(ctx context.Context, set []Entry, remove []lb.Key) error
	// SetNode takes a change of the node.
	SetNode(ctx context.Context, n lb.Node) error
	// Probe makes a write that changes nothing.
	Probe(ctx context.Context) error
	// Drift has a value when somebody else may have changed what is redirected.
	Drift() <-chan struct{}
	// Audit mends what differs from what was applied, and counts it.
	Audit(ctx context.Context, full bool) (mended int, err error)
	// Dump tells what the kernel holds that decides about packets, read from it, in an order that does not depend on how it came
	// to be. Of ports, which differ between processes that lead alike, it writes the name.
	Dump(ctx context.Context, name func(port uint16, p lb.Proto) string) (string, error)
	Close() error
}
