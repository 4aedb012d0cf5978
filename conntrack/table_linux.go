package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

const (
	// batch is how many deletes go in one message to the kernel.
	batch = 128
	// patience is how long the kernel may take for the next part of an answer.
	patience = 10 * time.Second
)

// table is the kernel's conntrack table of one family, in the network namespace that it was opened in.
// Its memory is allocated once. It is for one goroutine.
type table struct {
	family  byte
	dumps   socket
	deletes socket
	routes  socket

	entry   entry
	pending []byte   // delete requests not sent yet
	keys    []lb.Key // their keys
}

// tally is what a pass over the table did.
type tally struct{ seen, deleted int }

func openTable(family lb.Family) (*table, error) {
	t := &table{family: unix.AF_INET, pending: make([]byte, 0, 32<<10), keys: make([]lb.Key, 0, batch)}
	if family == lb.IPv6 {
		t.family = unix.AF_INET6
	}
	for _, s := range []struct {
		at       *socket
		protocol int
		buffer   int
	}{
		// A part of a dump has at most 32 KiB, or as much as the last buffer offered.
		{&t.dumps, unix.NETLINK_NETFILTER, 64 << 10},
		{&t.deletes, unix.NETLINK_NETFILTER, 16 << 10},
		{&t.routes, unix.NETLINK_ROUTE, 64 << 10},
	} {
		if err := s.at.open(s.protocol, s.buffer); err != nil {
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
	seq := t.dumps.next()
	ask := appendHeader(nil, msgGetStats, unix.NLM_F_REQUEST|unix.NLM_F_ACK, seq, unix.AF_UNSPEC)
	setLength(ask, 0)
	if err := t.dumps.send(ask); err != nil {
		return err
	}
	err := t.dumps.answers(seq, func(uint16, []byte) error { return nil })
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("this needs root, or the capability NET_ADMIN in this network namespace: %w", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the kernel has no nf_conntrack_netlink (CONFIG_NF_CT_NETLINK): %w", err)
	}
	return err
}

func (t *table) close() {
	for _, s := range []*socket{&t.dumps, &t.deletes, &t.routes} {
		s.close()
	}
}

// forget reads all entries of the protocol and deletes those that stale picks, a batch at a time while it
// reads. An entry that went by itself in between is no error; failed is told of each other that stayed.
func (t *table) forget(proto lb.Proto, stale func(flow) (lb.Key, bool), failed func(lb.Key, error)) (tally, error) {
	var n tally
	t.pending, t.keys = t.pending[:0], t.keys[:0]
	seq := t.dumps.next()
	if err := t.dumps.send(dumpRequest(seq, t.family, proto, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)); err != nil {
		return n, fmt.Errorf("ask for the conntrack table: %w", err)
	}
	err := t.dumps.answers(seq, func(typ uint16, body []byte) error {
		if typ != subsysCtnetlink<<8|msgNew || len(body) < 4 {
			return nil
		}
		e := &t.entry
		ok, err := e.parse(body[4:])
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
		return t.drop(key, e, &n, failed)
	})
	if err != nil {
		return n, fmt.Errorf("read the conntrack table: %w", err)
	}
	return n, t.flush(&n, failed)
}

func (t *table) drop(key lb.Key, e *entry, n *tally, failed func(lb.Key, error)) error {
	seq := t.deletes.seq + 1
	requests, ok := appendDelete(t.pending, seq, t.family, unix.NLM_F_REQUEST|unix.NLM_F_ACK, e)
	if !ok {
		failed(key, errors.New("the kernel's answer does not name the entry"))
		return nil
	}
	t.pending, t.deletes.seq = requests, seq
	t.keys = append(t.keys, key)
	if len(t.keys) < batch {
		return nil
	}
	return t.flush(n, failed)
}

// flush sends the pending deletes and waits for an answer to each.
func (t *table) flush(n *tally, failed func(lb.Key, error)) error {
	if len(t.keys) == 0 {
		return nil
	}
	first := t.deletes.seq - uint32(len(t.keys)) + 1
	if err := t.deletes.send(t.pending); err != nil {
		return fmt.Errorf("delete %d conntrack entries: %w", len(t.keys), err)
	}
	var answer unix.Errno
	for i, key := range t.keys {
		err := t.deletes.answers(first+uint32(i), func(uint16, []byte) error { return nil })
		switch {
		case err == nil:
			n.deleted++
		case errors.Is(err, unix.ENOENT): // gone by itself
		case errors.As(err, &answer) && !errors.Is(err, errSocket):
			failed(key, fmt.Errorf("delete a conntrack entry: %w", err))
		default:
			return fmt.Errorf("delete %d conntrack entries: %w", len(t.keys), err)
		}
	}
	t.pending, t.keys = t.pending[:0], t.keys[:0]
	return nil
}

// locals returns the addresses of this machine, of the table's family.
func (t *table) locals() (map[netip.Addr]struct{}, error) {
	seq := t.routes.next()
	ask := binary.NativeEndian.AppendUint32(nil, 24)
	ask = binary.NativeEndian.AppendUint16(ask, unix.RTM_GETADDR)
	ask = binary.NativeEndian.AppendUint16(ask, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	ask = binary.NativeEndian.AppendUint32(ask, seq)
	ask = append(ask, 0, 0, 0, 0, t.family, 0, 0, 0, 0, 0, 0, 0) // port id, struct ifaddrmsg
	if err := t.routes.send(ask); err != nil {
		return nil, fmt.Errorf("ask for the addresses of this machine: %w", err)
	}
	all := map[netip.Addr]struct{}{}
	err := t.routes.answers(seq, func(typ uint16, body []byte) error {
		if typ == unix.RTM_NEWADDR && len(body) >= unix.SizeofIfAddrmsg {
			if a := localAddr(body[unix.SizeofIfAddrmsg:]); a.IsValid() {
				all[a] = struct{}{}
			}
		}
		return nil
	})
	if err != nil {
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
