package netlink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Message is a netlink message. One from the kernel is only valid while it is handled.
type Message struct {
	Type, Flags uint16
	Seq         uint32 // of the request that it answers
	Body        []byte
}

// Error is an error that the kernel returned.
type Error struct {
	Errno  unix.Errno
	Seq    uint32 // of the message that it refused
	Text   string // the kernel's explanation, or ""
	Offset uint32 // offset in the message of the attribute that caused it, or 0
	// Request is the body of the refused message, if the kernel returns it: ipsets write the faulty
	// line into it.
	Request []byte
}

func (e *Error) Error() string {
	s := e.Errno.Error()
	if e.Errno == unix.EPERM {
		s += ": run as root, or with CAP_NET_ADMIN"
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	if e.Offset != 0 {
		s += fmt.Sprintf(" (at byte %d of the message)", e.Offset)
	}
	return s
}

func (e *Error) Unwrap() error { return e.Errno }

// Do sends one request, which it numbers, and calls f, if not nil, with each message of the answer.
// The answer ends with the end of a dump or the acknowledgement that the request asks for
// (NLM_F_ACK, NLM_F_DUMP), and otherwise with a message that the kernel does not mark as one of
// many.
//
// If f returns an error, Do ignores the rest and returns the error. It returns an [*Error] if the
// kernel refuses, [ErrInterrupted], or an error that wraps [ErrNoAnswer].
func (c *Conn) Do(ctx context.Context, request []byte, f func(Message) error) error {
	Order.PutUint32(request[8:], c.Next())
	seq := c.seq
	if err := c.transmit(ctx, false, request); err != nil {
		return err
	}
	return c.answer(ctx, seq, Order.Uint16(request[6:])&unix.NLM_F_ACK != 0, f)
}

// answer reads until the end; with acked only an acknowledgement, a refusal or the end of a dump
// ends it.
func (c *Conn) answer(ctx context.Context, seq uint32, acked bool, f func(Message) error) error {
	var failed error
	interrupted := false
	for {
		m, err := c.next(ctx)
		if err != nil {
			c.broken = true
			return fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		if m.Seq != seq { // the rest of an earlier answer
			continue
		}
		interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
		end := m.Type == unix.NLMSG_ERROR || m.Type == unix.NLMSG_DONE
		switch {
		case end:
			if err := m.outcome(); err != nil {
				return err
			}
		case failed == nil && f != nil:
			failed = f(m)
		}
		if end || !acked && m.Flags&unix.NLM_F_MULTI == 0 {
			if failed == nil && interrupted {
				return ErrInterrupted
			}
			return failed
		}
	}
}

// Each numbers messages, which each request only an acknowledgement (NLM_F_ACK), and sends them in
// one system call. It calls outcome for each, by position and in no order: nil, the kernel's
// [*Error], or an error that wraps [ErrNoAnswer] if the outcome is unknown. An error of Each itself
// means that the kernel has no message, and outcome was not called.
//
// Nothing interrupts sent messages. Each answer takes up to 2 KiB of twice the receive buffer
// ([Config].ReceiveBuffer); the caller sends no more at once.
func (c *Conn) Each(ctx context.Context, messages []byte, outcome func(i int, err error)) error {
	if len(messages) == 0 {
		return nil
	}
	first := c.seq + 1
	for b := messages; len(b) > 0; b = b[min(int(Order.Uint32(b)+3)&^3, len(b)):] {
		Order.PutUint32(b[8:], c.Next())
	}
	n := int(c.seq - first + 1)
	if err := c.transmit(ctx, true, messages); err != nil {
		return err
	}
	c.answered = append(c.answered[:0], make([]bool, n)...)
	left := n
	lost := c.outcomes(func(seq uint32, err error) bool {
		if i := int(seq - first); i >= 0 && i < n && !c.answered[i] {
			c.answered[i] = true
			left--
			outcome(i, err)
		}
		return left > 0
	})
	if left == 0 {
		return nil
	}
	c.broken = true
	for i, answered := range c.answered {
		if !answered {
			outcome(i, lost)
		}
	}
	return nil
}

// Batch sends a transaction of nftables, in which message number last requests an acknowledgement.
// The error is the [*Error] of the first refused message, or wraps [ErrNoAnswer] if the outcome is
// unknown. With any other error the kernel has not received it. Nothing interrupts a sent batch.
func (c *Conn) Batch(ctx context.Context, bufs [][]byte, last uint32) error {
	if err := c.transmit(ctx, true, bufs...); err != nil {
		return err
	}
	var failed error
	acked := false
	lost := c.outcomes(func(seq uint32, err error) bool {
		acked = acked || err == nil && seq == last
		if failed == nil { // the first error is the cause; later ones often follow from it
			failed = err
		}
		return true
	})
	if failed != nil || acked {
		return failed
	}
	c.broken = true
	return fmt.Errorf("a batch: %w", lost)
}

// outcomes calls f with each outcome until f returns false. The kernel writes all answers before
// the system call that sent the messages returns, so missing ones are lost: the error wraps
// [ErrNoAnswer].
func (c *Conn) outcomes(f func(seq uint32, err error) bool) error {
	lost := ErrNoAnswer
	miss := func(err error) { lost = fmt.Errorf("%w: %w", ErrNoAnswer, os.NewSyscallError("receive", err)) }
	for {
		if len(c.unread) == 0 {
			switch err := c.receive(false); {
			case err == unix.ENOBUFS: // an answer did not fit; others may still be there
				miss(err)
				continue
			case err != nil:
				if err != unix.EAGAIN {
					miss(err)
				}
				return lost
			}
		}
		m, err := c.cut()
		if err != nil {
			miss(err)
			continue
		}
		if m.Type == unix.NLMSG_ERROR && !f(m.Seq, m.outcome()) {
			return nil
		}
	}
}

// Dump lists what parse reads from the answers. It repeats an interrupted dump, ten times at most;
// then the error wraps [ErrInterrupted].
func Dump[T any](ctx context.Context, kernel Asker, request []byte, parse func(Message) (T, bool)) (all []T,
	err error) {
	for range 10 {
		all = nil
		err = kernel.Do(ctx, request, func(m Message) error {
			if x, ok := parse(m); ok {
				all = append(all, x)
			}
			return nil
		})
		if !errors.Is(err, ErrInterrupted) {
			break
		}
	}
	return all, err
}

// Listen calls f with each message of the joined groups, until the socket is closed. It calls lost
// when the kernel dropped messages.
func (c *Conn) Listen(f func(Message), lost func()) {
	for {
		if err := c.receive(true); err != nil {
			if _, errno := err.(unix.Errno); !errno {
				return // it is closed
			}
			lost()
			continue
		}
		for len(c.unread) > 0 {
			m, err := c.cut()
			if err != nil {
				lost()
				break
			}
			f(m)
		}
	}
}

// next returns the next message from the kernel. It waits until Timeout has passed or the context
// ends.
func (c *Conn) next(ctx context.Context) (Message, error) {
	if len(c.unread) == 0 {
		if err := ctx.Err(); err != nil {
			return Message{}, err
		}
		err := c.receive(false)
		if err == unix.EAGAIN {
			err = c.await(ctx)
		}
		if err != nil {
			return Message{}, os.NewSyscallError("receive", err)
		}
	}
	return c.cut()
}

// await waits for an answer. Most answers are there at once, so only await sets a deadline.
func (c *Conn) await(ctx context.Context) error {
	if err := c.sock.SetReadDeadline(time.Now().Add(c.Timeout)); err != nil {
		return err
	}
	called := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(called)
		c.sock.SetReadDeadline(time.Unix(1, 0))
	})
	err := c.receive(true)
	if !stop() {
		<-called
	}
	if err := c.sock.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if err := ctx.Err(); err != nil {
			return err
		}
		return fmt.Errorf("nothing for %v: %w", c.Timeout, err)
	}
	return err
}

// datagram is struct mmsghdr.
type datagram struct {
	unix.Msghdr
	n uint32 // bytes received
}

// receive takes one datagram; without wait it returns unix.EAGAIN if none has arrived.
func (c *Conn) receive(wait bool) error {
	if len(c.held) == 0 {
		c.wait = wait
		if err := c.raw.Read(c.receiving); err != nil {
			return err
		}
		if c.err != nil {
			return c.err
		}
	}
	d := &c.held[0]
	c.held = c.held[1:]
	if d.n == bufferSize {
		c.unread = nil
		return unix.EMSGSIZE // the rest is lost
	}
	c.unread = unsafe.Slice(d.Iov.Base, d.n)
	return nil
}

// receiveOnce is the system call.
func (c *Conn) receiveOnce(fd uintptr) bool {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&c.slots[0])), uintptr(len(c.slots)),
			0, 0, 0)
		switch errno {
		case 0:
			c.held, c.err = c.slots[:n], nil
			return true
		case unix.EINTR:
		default:
			c.err = errno
			return !c.wait || errno != unix.EAGAIN
		}
	}
}

// cut takes the first message from the datagram.
func (c *Conn) cut() (m Message, err error) {
	m, c.unread, err = Cut(c.unread)
	return m, err
}

// Cut splits b into its first message and the rest. The error wraps unix.EBADMSG.
func Cut(b []byte) (m Message, rest []byte, err error) {
	n := 0
	if len(b) >= unix.SizeofNlMsghdr {
		n = int(Order.Uint32(b))
	}
	if n < unix.SizeofNlMsghdr || n > len(b) {
		return Message{}, nil, fmt.Errorf("netlink message of %d bytes in %d: %w", n, len(b), unix.EBADMSG)
	}
	m = Message{Order.Uint16(b[4:]), Order.Uint16(b[6:]), Order.Uint32(b[8:]), b[unix.SizeofNlMsghdr:n]}
	return m, b[min((n+3)&^3, len(b)):], nil
}

// outcome returns the error in the last message of an answer. The end of a dump may have one too.
func (m Message) outcome() error {
	if len(m.Body) < 4 {
		if m.Type == unix.NLMSG_DONE {
			return nil
		}
		return unix.EBADMSG
	}
	errno := int32(Order.Uint32(m.Body))
	if errno >= 0 {
		return nil
	}
	e := &Error{Errno: unix.Errno(-errno), Seq: m.Seq}
	attrs := 4
	if m.Type == unix.NLMSG_ERROR {
		attrs += unix.SizeofNlMsghdr // of the request
	}
	if len(m.Body) < attrs {
		return e
	}
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 {
		if m.Type == unix.NLMSG_ERROR {
			e.Request = bytes.Clone(m.Body[attrs:])
		}
		return e
	}
	e.Text = CStr(Attribute(m.Body[attrs:], unix.NLMSGERR_ATTR_MSG))
	e.Offset = Native32(Attribute(m.Body[attrs:], unix.NLMSGERR_ATTR_OFFS))
	return e
}
