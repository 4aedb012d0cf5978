package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"kube-proxy/failover"
	"kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
)

// Rescuer deletes unanswered flows to endpoints that this node does not reach. With their entry,
// retransmissions of a client's first packet would go to the same endpoint. Its methods are safe
// for concurrent use; one runs at a time.
type Rescuer struct {
	family lb.Family

	mu    sync.Mutex
	table *table
}

// NewRescuer opens the conntrack table of a family, of the calling thread's network namespace.
func NewRescuer(family lb.Family) (*Rescuer, error) {
	t, err := openTable(family)
	if err != nil {
		return nil, fmt.Errorf("open the conntrack table for %v: %w", family, err)
	}
	t.by = conntrack.ByNoReply
	return &Rescuer{family: family, table: t}, nil
}

// Close closes the table.
func (r *Rescuer) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.table.close()
	return nil
}

// Rescue deletes the unanswered flows to the endpoints, and returns their number.
func (r *Rescuer) Rescue(ctx context.Context, endpoints []failover.Endpoint) (deleted int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var failures []error
	for proto, there := range r.byProto(endpoints) {
		did, err := r.table.forget(ctx, proto, func(f flow) (lb.Key, bool) {
			return lb.Key{}, !f.replied && !f.untranslated() && there[f.from]
		}, func(_ lb.Key, err error) { failures = append(failures, err) })
		deleted += did.deleted
		failures = append(failures, err)
	}
	return deleted, errors.Join(failures...)
}

// Connection is a TCP connection of a client to an endpoint.
type Connection struct {
	Client, Frontend, Endpoint netip.AddrPort
}

// Established calls each for the established TCP connections of Services to the endpoints, not for
// those that clients made to an endpoint itself.
func (r *Rescuer) Established(ctx context.Context, endpoints []failover.Endpoint, each func(Connection)) error {
	there := r.byProto(endpoints)[lb.TCP]
	if len(there) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.each(ctx, lb.TCP, 0, func(e *conntrack.Entry) error {
		if e.State == conntrack.TCPEstablished && there[e.Reply.From] && e.Reply.From != e.Orig.To {
			each(Connection{Client: e.Orig.From, Frontend: e.Orig.To, Endpoint: e.Reply.From})
		}
		return nil
	})
}

// byProto returns the endpoints of the family.
func (r *Rescuer) byProto(endpoints []failover.Endpoint) map[lb.Proto]map[netip.AddrPort]bool {
	all := map[lb.Proto]map[netip.AddrPort]bool{}
	for _, e := range endpoints {
		if lb.FamilyOf(e.Addr.Addr()) != r.family {
			continue
		}
		if all[e.Proto] == nil {
			all[e.Proto] = map[netip.AddrPort]bool{}
		}
		all[e.Proto][e.Addr] = true
	}
	return all
}
