package ipset

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

const (
	// messageLimit limits a message of members, in bytes. The answer to a refused member contains
	// the whole message.
	messageLimit = 32 << 10
	// messagesAtOnce is the number of messages in one system call: all answers must fit, even
	// refusals.
	messagesAtOnce = 8
	// receiveBuffer holds these answers. The kernel doubles it.
	receiveBuffer = messagesAtOnce * (messageLimit + 16<<10)
)

// batch is a call of Do in progress. Its memory is reused.
type batch struct {
	ops      []Op
	failures netlink.Failures

	todo  []int // operations to send; message i has those from ends[i-1] to ends[i]
	ends  []int
	again []int // operations behind a refused one in its message, which the kernel has not tried
}

// Do carries out operations in order. It calls failed, if not nil, for each that the kernel
// refused, that was not sent, or whose outcome is unknown (the error wraps [netlink.ErrNoAnswer]),
// in no order; all others are done. It returns the first such error with their number, or nil.
// Errors name the operation, and wrap [ErrNoSet] without the set and [ErrFull] without room in it.
//
// Neighbours of one set and kind share a message. After a refused member, those behind it are sent
// again. A refusal because of the set, such as a full one, fails those behind it too.
func (c *Conn) Do(ctx context.Context, ops []Op, failed func(i int, err error)) error {
	b := &c.batch
	b.ops, b.failures, b.todo = ops, netlink.Failures{Failed: failed}, b.todo[:0]
	for i := range ops {
		if err := ops[i].Member.check(ops[i].Set); err != nil {
			b.fail(i, err)
		} else {
			b.todo = append(b.todo, i)
		}
	}
	for len(b.todo) > 0 {
		b.divide()
		b.again = b.again[:0]
		c.bulk.Do(ctx, c.kernel, len(b.ends), b)
		b.todo, b.again = b.again, b.todo
	}
	err := b.failures.Err(len(ops))
	b.ops, b.failures = nil, netlink.Failures{}
	return err
}

// divide groups operations into messages: as many neighbours of one set and kind as fit.
func (b *batch) divide() {
	b.ends = b.ends[:0]
	var open *Op // the first of the message
	left := 0
	for at, i := range b.todo {
		op := &b.ops[i]
		left -= op.Member.room()
		if open == nil || open.Set.Name != op.Set.Name || open.Delete != op.Delete ||
			left < 0 {
			if open != nil {
				b.ends = append(b.ends, at)
			}
			open, left = op, messageLimit-headLimit-op.Member.room()
		}
	}
	b.ends = append(b.ends, len(b.todo))
}

// headLimit is more than the size of a message before its members.
const headLimit = 128

// room returns at least the number of bytes that the member takes in a message.
func (m *Member) room() int {
	n := 4 + 8 + 8 + 8 // the nest, line, port and protocol
	for _, a := range [...]netip.Addr{m.Addr, m.Net.Addr()} {
		if a.IsValid() {
			n += 8 + a.BitLen()/8
		}
	}
	if m.Net.IsValid() {
		n += 8
	}
	if m.Mask != 0 {
		n += 12
	}
	return n
}

// message returns the operations of a message.
func (b *batch) message(n int) []int {
	first := 0
	if n > 0 {
		first = b.ends[n-1]
	}
	return b.todo[first:b.ends[n]]
}

// Append implements [netlink.Operations]: it appends a message of members.
func (b *batch) Append(e *netlink.Encoder, n int) error {
	ops := b.message(n)
	first, cmd := &b.ops[ops[0]], uint16(cmdAdd)
	if first.Delete {
		cmd = cmdDelete
	}
	// Without NLM_F_EXCL: adding an existing member, or deleting a missing one, is no error.
	at := begin(e, cmd, unix.NLM_F_ACK)
	e.Str(attrSetName, first.Set.Name)
	e.Native32(attrLine, 0) // the kernel's refusal names the line here
	adt := e.Nest(attrADT)
	for line, i := range ops {
		m := &b.ops[i].Member
		if first.Delete {
			key := m.Key()
			m = &key
		}
		appendMember(e, m, uint32(line+1)) // 0 means none
	}
	e.EndNest(adt)
	e.EndMessage(at)
	return nil
}

// Done implements [netlink.Operations].
func (b *batch) Done(n int, err error) {
	if err == nil {
		return
	}
	ops := b.message(n)
	var refused *netlink.Error
	if errors.As(err, &refused) {
		if line := refusedLine(refused.Request); line > 0 && line <= len(ops) { // those before it are done
			ops = ops[line-1:]
			// Any other refers to the set, and would refuse the following ones as well.
			if ofMember[refused.Errno] {
				b.again = append(b.again, ops[1:]...)
				ops = ops[:1]
			}
		}
	}
	for _, i := range ops {
		b.fail(i, err)
	}
}

// refusedLine returns the line that an error names, in its copy of the request, or 0.
func refusedLine(request []byte) int {
	if len(request) < nfgenmsg {
		return 0
	}
	return int(netlink.Native32(netlink.Attribute(request[nfgenmsg:], attrLine)))
}

func (b *batch) fail(i int, err error) {
	b.failures.Add(i, fmt.Errorf("%v: %w", b.ops[i], explain(err)))
}
