package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nlconn"
	"kube-proxy/lb"
)

// batch is how many deletes go in one message to the kernel.
const batch = 128

// table is the kernel's conntrack table of one family, in the network namespace that it was opened in.
// Its memory is allocated once. It is for one goroutine.
type table struct {
	family  byte
	dumps   *nlconn.Conn
	deletes *nlconn.Conn // while a dump is being read
	routes  *nlconn.Conn

	entry   entry
	pending []byte   // delete requests not sent yet
	first   uint32   // the sequence number of the first of them
	keys    []lb.Key // their keys
}

// tally is what a pass over the table did.
type tally struct{ seen, deleted int }

func openTable(family lb.Family) (*table, error) {
	t := &table{family: unix.AF_INET, pending: make([]byte, 0, 32<<10), keys: make([]lb.Key, 0, batch)}
	if family == lb.IPv6 {
		t.family = unix.AF_INET6
	}
	var err error
	for _, c := range []struct {
		at       **nlconn.Conn
		protocol int
	}{{&t.dumps, unix.NETLINK_NETFILTER}, {&t.deletes, unix.NETLINK_NETFILTER}, {&t.routes, unix.NETLINK_ROUTE}} {
		if *c.at, err = nlconn.Open(nlconn.Config{Protocol: c.protocol}); err != nil {
			t.close()
			return nil, err
		}
	}
	if err := t.probe(); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// probe asks for the number of entries, to say now what would fail in every pass.
func (t *table) probe() error {
	err := t.dumps.Do(context.Background(), nlconn.Request(subsysCtnetlink<<8|msgGetStats, unix.NLM_F_ACK, []byte{unix.AF_UNSPEC, 0, 0, 0}), nil)
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("this needs root, or the capability NET_ADMIN in this network namespace: %w", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the kernel has no nf_conntrack_netlink (CONFIG_NF_CT_NETLINK): %w", err)
	}
	return err
}

func (t *table) close() {
	for _, c := range []*nlconn.Conn{t.dumps, t.deletes, t.routes} {
		if c != nil {
			c.Close()
		}
	}
}

// forget reads all entries of the protocol and deletes those that stale picks, a batch at a time while it
// reads. An entry that went by itself in between is no error; failed is told of each other that stayed.
func (t *table) forget(ctx context.Context, proto lb.Proto, stale func(flow) (lb.Key, bool), failed func(lb.Key, error)) (tally, error) {
	var n tally
	t.pending, t.keys = t.pending[:0], t.keys[:0]
	err := t.dumps.Do(ctx, dumpRequest(t.family, proto, unix.NLM_F_REQUEST|unix.NLM_F_DUMP), func(m nlconn.Message) error {
		if m.Type != subsysCtnetlink<<8|msgNew || len(m.Body) < 4 {
			return nil
		}
		e := &t.entry
		ok, err := e.parse(m.Body[4:])
		if err != nil {
			return err
		}
		if !ok || e.proto != proto {
			return nil
		}
		n.seen++
		key, old := stale(e.flow)
		if !old {
			return nil
		}
		return t.drop(ctx, key, e, &n, failed)
	})
	if err != nil && !errors.Is(err, nlconn.ErrInterrupted) {
		return n, fmt.Errorf("read the conntrack table: %w", err)
	}
	return n, t.flush(ctx, &n, failed)
}

func (t *table) drop(ctx context.Context, key lb.Key, e *entry, n *tally, failed func(lb.Key, error)) error {
	start := len(t.pending)
	requests, ok := appendDelete(t.pending, t.family, unix.NLM_F_REQUEST|unix.NLM_F_ACK, e)
	if !ok {
		failed(key, errors.New("the kernel's answer does not name the entry"))
		return nil
	}
	seq := t.deletes.Next()
	setSeq(requests, start, seq)
	if start == 0 {
		t.first = seq
	}
	t.pending = requests
	t.keys = append(t.keys, key)
	if len(t.keys) < batch {
		return nil
	}
	return t.flush(ctx, n, failed)
}

// flush sends the pending deletes and waits for an answer to each.
func (t *table) flush(ctx context.Context, n *tally, failed func(lb.Key, error)) error {
	if len(t.keys) == 0 {
		return nil
	}
	if err := t.deletes.Send(ctx, t.pending); err != nil {
		return fmt.Errorf("delete %d conntrack entries: %w", len(t.keys), err)
	}
	var refused *nlconn.Error
	for i, key := range t.keys {
		err := t.deletes.Answer(ctx, t.first+uint32(i), nil)
		switch {
		case err == nil:
			n.deleted++
		case errors.Is(err, unix.ENOENT): // gone by itself
		case errors.As(err, &refused):
			failed(key, fmt.Errorf("delete a conntrack entry: %w", err))
		default:
			return fmt.Errorf("delete %d conntrack entries: %w", len(t.keys), err)
		}
	}
	t.pending, t.keys = t.pending[:0], t.keys[:0]
	return nil
}

// locals returns the addresses of this machine, of the table's family.
func (t *table) locals(ctx context.Context) (map[netip.Addr]struct{}, error) {
	ask := nlconn.Request(unix.RTM_GETADDR, unix.NLM_F_DUMP, []byte{t.family, 0, 0, 0, 0, 0, 0, 0}) // struct ifaddrmsg
	all := map[netip.Addr]struct{}{}
	err := t.routes.Do(ctx, ask, func(m nlconn.Message) error {
		if m.Type == unix.RTM_NEWADDR && len(m.Body) >= unix.SizeofIfAddrmsg {
			if a := localAddr(m.Body[unix.SizeofIfAddrmsg:]); a.IsValid() {
				all[a] = struct{}{}
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, nlconn.ErrInterrupted) {
		return nil, fmt.Errorf("read the addresses of this machine: %w", err)
	}
	return all, nil
}

// localAddr returns the address in the attributes of an RTM_NEWADDR: IFA_LOCAL, or where it is missing
// IFA_ADDRESS, which on a point-to-point link is the other end.
func localAddr(b []byte) netip.Addr {
	var local, address netip.Addr
	for {
		typ, payload, _, rest, ok, _ := attr(b)
		if !ok {
			break
		}
		if a, valid := netip.AddrFromSlice(payload); valid && typ == unix.IFA_LOCAL {
			local = a
		} else if valid && typ == unix.IFA_ADDRESS {
			address = a
		}
		b = rest
	}
	if local.IsValid() {
		return local
	}
	return address
}
