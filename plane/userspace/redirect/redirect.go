// Package redirect redirects packets for service addresses to the sockets of the proxy: by rules of
// nftables or iptables, or on Windows by the addresses themselves, added to an interface of the
// node (docs/adr/0041).
package redirect

import (
	"context"
	"iter"
	"net/netip"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/selfwrites"
	"kube-proxy/trace"
)

// Entry determines what happens to packets to a key.
type Entry struct {
	Key lb.Key
	// Kind as in [lb.Frontend].
	Kind lb.Kind
	// Sources are the only allowed sources; others are dropped (SV-61). Empty allows all, as always
	// for NodePorts.
	Sources []netip.Prefix
	// Routes has at most one route for each From, in the order Pods, Host, Anywhere; the last is
	// for Anywhere. With [AtAddresses] there is one route, and the listener distinguishes sources.
	Routes []Route
}

// Route determines what happens to packets from one kind of source.
type Route struct {
	From lb.From
	// Port is the listener's. If it is 0, there is no listener, and Do determines what happens.
	Port uint16
	// Do is Reject or Drop if Port is 0, else 0.
	Do lb.Action
}

// Shortest removes routes that do the same as the route for Anywhere. It changes routes.
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

// Config configures a Redirector, for [Choose] and the constructors.
type Config struct {
	// Family is the IP family; required.
	Family lb.Family
	// Mark has the bits of the packet mark of the proxy's own packets to backends; 0 for none.
	Mark uint32
	// LocalhostNodePorts: NodePorts answer on 127.0.0.1, if one of [lb.Node.NodePorts] covers that
	// (SV-64).
	LocalhostNodePorts bool
	// Writes is shared by the planes of this process in one network namespace; nil if this is the
	// only one.
	Writes *selfwrites.Ledger
}

// Redirector redirects packets of one IP family. Its verbs keep the rules of package plane; Reset
// comes before the other writes. The caller adds the Redirector's name and family to errors.
//
// Packets of the proxy itself to backends carry the mark of the mode (the bit
// [kube-proxy/mode.Settings.MasqueradeBit]) and are not redirected. Otherwise an endpoint at a
// service address would redirect the proxy to itself forever.
type Redirector interface {
	// Name is "nftables", "iptables" or "addresses".
	Name() string
	// Unguarded returns why an unprivileged program of the node could serve the clients of a
	// listener by taking its port while no proxy runs. If it is nil, the rules refuse such clients,
	// except those of SCTP.
	Unguarded() error
	// Known returns the entries of the previous process, so that its ports can be reused. Sources
	// may be missing.
	Known(ctx context.Context) ([]Entry, error)
	// Reset redirects exactly these packets, except those of the returned keys, which the kernel
	// refused. Apply can try them again.
	Reset(ctx context.Context, n lb.Node, want []Entry) (later []lb.Key, err error)
	// Apply sets and removes entries.
	Apply(ctx context.Context, set []Entry, remove []lb.Key) error
	// SetNode applies a change of the node.
	SetNode(ctx context.Context, n lb.Node) error
	// Probe makes a write without a change.
	Probe(ctx context.Context) error
	// Drift has a value when another program may have changed the rules or addresses.
	Drift() <-chan struct{}
	// Audit repairs differences from the applied state, and counts them.
	Audit(ctx context.Context, full bool) (repaired int, err error)
	Close() error
}

// wake gives a channel its value.
func wake(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// AtAddresses is a Redirector without packet filter (Windows). Each service address has a listener
// of its own, which applies sources and routes. The caller binds NodePorts at the addresses of the
// node.
type AtAddresses interface {
	Redirector
	// NodeAddresses returns the addresses of the node, without the Redirector's.
	NodeAddresses() ([]netip.Addr, error)
	// Prepare adds an address to the node, so that a socket can be bound to it, after NodeAddresses
	// or Reset. The next audit removes an address without an entry.
	Prepare(a netip.Addr) error
}

// Tracer is a redirector whose state in the kernel can be read. As those of mode.Tracer, its
// methods may be called at any time from any goroutine in the network namespace of the redirector.
type Tracer interface {
	// TracePacket follows a packet through the kernel. The listener is its only backend if it
	// balances.
	TracePacket(ctx context.Context, p trace.Packet, walk mode.Walk) (trace.Kernel, error)
	// Differences reports every difference from these entries.
	Differences(ctx context.Context, n lb.Node, leads iter.Seq[Entry], d *mode.Reporter) error
}
