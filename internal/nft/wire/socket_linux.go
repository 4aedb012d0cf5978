package wire

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/plane"
	"kube-proxy/plane/selfwrites"
)

// Socket is a connection to the netfilter subsystem of the network namespace in which it was
// opened.
type Socket struct {
	*netlink.Conn
	port uint32
	// moved gets the port of a replacement socket before that socket writes.
	moved func(port uint32) error
	// Asked counts the requests of Dump, and their answers.
	Asked Traffic

	request []byte // memory of the last one for elements: a large table needs thousands
}

// Traffic counts requests, and the messages and bytes of their answers.
type Traffic struct{ Requests, Messages, Bytes int }

// ReceiveBuffer holds the notifications of a burst of foreign writes, and the errors of a batch.
const ReceiveBuffer = 8 << 20

// Open opens a socket. The error wraps unix.EPROTONOSUPPORT if the kernel lacks netfilter's
// netlink.
func Open() (*Socket, error) {
	conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_NETFILTER, ReceiveBuffer: ReceiveBuffer})
	if err != nil {
		return nil, err
	}
	s := &Socket{Conn: conn}
	s.port, err = conn.Port()
	return s, err
}

// Number returns the port of the socket, which distinguishes its writes from foreign ones in the
// kernel.
func (s *Socket) Number() uint32 { return s.port }

// send sends a batch and returns its outcome; see [netlink.Conn.Batch]. last is the sequence number
// of the message that requests an acknowledgement.
func (s *Socket) send(ctx context.Context, bufs [][]byte, last uint32) error {
	port, err := s.Port()
	if err == nil && port != s.port && s.moved != nil {
		err = s.moved(port)
	}
	if err != nil {
		return err
	}
	s.port = port
	return s.Batch(ctx, bufs, last)
}

// Dump sends a request and calls f with the body of each message of the answer, without struct
// nfgenmsg. f must not keep the body. It returns netlink.ErrInterrupted if the ruleset changed
// meanwhile.
func (s *Socket) Dump(ctx context.Context, request []byte, f func(body []byte) error) error {
	s.Asked.Requests++
	return s.Do(ctx, request, func(m netlink.Message) error {
		s.Asked.Messages, s.Asked.Bytes = s.Asked.Messages+1, s.Asked.Bytes+len(m.Body)
		if len(m.Body) < Header {
			return unix.EBADMSG
		}
		return f(m.Body[Header:])
	})
}

// Ask is Dump with an f that cannot fail.
func (s *Socket) Ask(ctx context.Context, request []byte, f func(body []byte)) error {
	return s.Dump(ctx, request, func(body []byte) error { f(body); return nil })
}

// Generation returns the generation of the namespace's nftables ruleset: each transaction of any
// program increments it.
func (s *Socket) Generation(ctx context.Context) (uint32, error) {
	var e Encoder
	at := e.Message(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, 0)
	e.EndMessage(at)
	var gen uint32
	err := s.Dump(ctx, e.B, func(body []byte) error {
		gen = netlink.BE32(netlink.Attribute(body, unix.NFTA_GEN_ID))
		return nil
	})
	return gen, err
}

// subscribe joins or leaves the group for notifications of changes. Without a member, the kernel
// does not even write them.
func (s *Socket) subscribe(on bool) error {
	set := s.Leave
	if on {
		set = s.Join
	}
	if err := set(unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("subscribe to nftables notifications: %w", err)
	}
	return nil
}

// ignore makes the kernel drop notifications of changes by one socket: a cold start would cause a
// million useless ones.
func (s *Socket) ignore(pid uint32) error {
	const pidAt = 12 // nlmsg_pid in struct nlmsghdr; the filter loads words as big endian
	var b [4]byte
	netlink.Order.PutUint32(b[:], pid)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: pidAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: netlink.BE32(b[:]), Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
	if err := s.Filter(filter); err != nil {
		return fmt.Errorf("filter nftables notifications: %w", err)
	}
	return nil
}

// unnoticedAbove is the transaction size in bytes from which it pays to save the kernel from
// writing notifications (selfwrites.Ledger.WriteUnnoticed), though our monitors may then miss
// foreign changes meanwhile.
const unnoticedAbove = 256 << 10

// Commit sends a transaction, if it has messages, and records the write in the ledger as ours. It
// returns the number of bytes sent. An error names the object. It wraps plane.ErrStateLost if the
// only possible cause is that the kernel's content differs from the expected one.
func (s *Socket) Commit(ctx context.Context, ours *selfwrites.Ledger, t *Transaction) (size int, err error) {
	bufs, last := t.Buffers()
	if bufs == nil {
		return 0, nil
	}
	for _, b := range bufs {
		size += len(b)
	}
	send := func() error { return s.send(ctx, bufs, last) }
	if size > unnoticedAbove {
		err = ours.WriteUnnoticed(func() (uint32, error) { return s.Generation(ctx) }, send)
	} else {
		err = ours.Write(1, send)
	}
	return size, outcome(err, t.whatIs)
}

// outcome explains why a transaction failed; what returns the object of a message, by its number.
func outcome(err error, what func(seq uint32) string) error {
	errno := syscall.Errno(0)
	if ke := (*netlink.Error)(nil); errors.As(err, &ke) {
		errno, err = ke.Errno, fmt.Errorf("%s: %w", what(ke.Seq), err)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, netlink.ErrNoAnswer), // the kernel may hold objects that the state lacks
		errno == unix.ENOENT, errno == unix.EEXIST, errno == unix.EBUSY:
		return fmt.Errorf("%w: %w", err, plane.ErrStateLost)
	}
	return err
}

// Takes returns nil if the kernel would accept a transaction. It ends with a message that the
// kernel refuses, so it has no effect. The error for a missing kernel feature wraps unix.ENOENT.
func (s *Socket) Takes(ctx context.Context, t *Transaction) error {
	t.DeleteChain("no-such-chain")
	bufs, last := t.Buffers()
	err := s.send(ctx, bufs, last)
	var refused *netlink.Error
	switch {
	case err == nil:
		return errors.New("the kernel deleted a chain that is not there")
	case errors.As(err, &refused) && refused.Seq == last && refused.Errno == unix.ENOENT:
		return nil
	case refused != nil:
		return fmt.Errorf("the kernel refuses %s: %w", t.whatIs(refused.Seq), err)
	}
	return err
}
