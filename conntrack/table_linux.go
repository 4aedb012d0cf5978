package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/conntrack"
	"kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
)

// batch is how many deletes go in one message to the kernel.
const batch = 128

// table is the kernel's conntrack table of one family and network namespace. It allocates its
// memory once. It is for one goroutine.
type table struct {
	family  byte
	dumps   *netlink.Conn
	deletes *netlink.Conn // while a dump is being read
	routes  netlink.Transport

	conns []*netlink.Conn // all of them

	// by are further conditions of each list.
	by      conntrack.By
	entry   conntrack.Entry
	pending []byte   // delete requests not sent yet
	keys    []lb.Key // their keys
}

// tally counts the entries of a pass.
type tally struct{ seen, deleted int }

func openTable(family lb.Family) (*table, error) {
	t := &table{family: unix.AF_INET, pending: make([]byte, 0, 32<<10), keys: make([]lb.Key, 0, batch)}
	if family == lb.IPv6 {
		t.family = unix.AF_INET6
	}
	var all [3]*netlink.Conn
	for i, protocol := range []int{unix.NETLINK_NETFILTER, unix.NETLINK_NETFILTER, unix.NETLINK_ROUTE} {
		c, err := netlink.Open(netlink.Config{Protocol: protocol})
		if err != nil {
			t.close()
			return nil, err
		}
		all[i], t.conns = c, append(t.conns, c)
	}
	t.dumps, t.deletes, t.routes = all[0], all[1], all[2]
	if err := conntrack.Probe(context.Background(), t.dumps); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *table) close() {
	for _, c := range t.conns {
		c.Close()
	}
}

// forget reads all entries of the protocol, and deletes those that stale selects, in batches. An
// entry that no longer exists is no error; failed is called for others that could not be deleted.
func (t *table) forget(ctx context.Context, proto lb.Proto, stale func(flow) (lb.Key, bool),
	failed func(lb.Key, error)) (tally, error) {
	var n tally
	t.pending, t.keys = t.pending[:0], t.keys[:0]
	by := t.by
	if proto == lb.TCP {
		by |= conntrack.ByNoReply
	}
	err := t.each(ctx, proto, by, func(e *conntrack.Entry) error {
		n.seen++
		key, old := stale(flow{proto: proto, to: e.Orig.To, from: e.Reply.From,
			replied: e.Status&conntrack.SeenReply != 0})
		if !old {
			return nil
		}
		return t.drop(ctx, key, e, &n, failed)
	})
	if err == nil || errors.Is(err, netlink.ErrInterrupted) { // entries found count, but there may be more
		err = errors.Join(t.flush(ctx, &n, failed), err)
	}
	return n, err
}

// each calls f for the entries of the protocol that meet the conditions, those of by which the
// kernel knows. f must not keep the entry.
func (t *table) each(ctx context.Context, proto lb.Proto, by conntrack.By, f func(*conntrack.Entry) error) error {
	request := conntrack.DumpRequest(t.family, conntrack.Tuple{Proto: uint8(proto)}, by|conntrack.ByProto)
	err := t.dumps.Do(ctx, request, func(m netlink.Message) error {
		if m.Type != conntrack.New || !t.entry.Parse(m.Body) || t.entry.Orig.Proto != uint8(proto) {
			return nil
		}
		return f(&t.entry)
	})
	if err != nil {
		return fmt.Errorf("read the conntrack table: %w", err)
	}
	return nil
}

func (t *table) drop(ctx context.Context, key lb.Key, e *conntrack.Entry, n *tally, failed func(lb.Key, error)) error {
	requests, ok := e.AppendDelete(t.pending, t.family)
	if !ok {
		failed(key, errors.New("the kernel's answer does not name the entry"))
		return nil
	}
	t.pending, t.keys = requests, append(t.keys, key)
	if len(t.keys) < batch {
		return nil
	}
	return t.flush(ctx, n, failed)
}

// flush sends the pending deletes.
func (t *table) flush(ctx context.Context, n *tally, failed func(lb.Key, error)) error {
	var unknown error
	err := t.deletes.Each(ctx, t.pending, func(i int, err error) {
		var refused *netlink.Error
		switch {
		case err == nil:
			n.deleted++
		case errors.Is(err, unix.ENOENT): // expired in the meantime
		case errors.As(err, &refused):
			failed(t.keys[i], fmt.Errorf("delete a conntrack entry: %w", err))
		default:
			unknown = err
		}
	})
	err = cmp.Or(err, unknown)
	if err != nil {
		return fmt.Errorf("delete %d conntrack entries: %w", len(t.keys), err)
	}
	t.pending, t.keys = t.pending[:0], t.keys[:0]
	return nil
}

// locals returns the addresses of this machine, of the table's family.
func (t *table) locals(ctx context.Context) (map[netip.Addr]struct{}, error) {
	list, err := route.Addresses(ctx, t.routes, t.family)
	if err != nil { // an incomplete list would leave flows at the other addresses
		return nil, err
	}
	all := make(map[netip.Addr]struct{}, len(list))
	for _, a := range list {
		all[a.Addr] = struct{}{}
	}
	return all, nil
}
