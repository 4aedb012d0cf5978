package ipset

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
)

const (
	// messageLimit is how many bytes a message of members may have. Where one member is refused, the answer has the whole of it.
	messageLimit = 32 << 10
	// messagesAtOnce is how many messages go in one system call: all their answers, were each a refusal, must find room.
	messagesAtOnce = 8
	// receiveBuffer is that room. The kernel makes twice as much of it.
	receiveBuffer = messagesAtOnce * (messageLimit + 16<<10)
)

// batch is a call of Do at work. What it holds is kept for the next.
type batch struct {
	protocol uint8
	ops      []Op
	failures nlconn.Failures

	todo  []int // operations to be sent, of which message i has those from ends[i-1] to ends[i]
	ends  []int
	again []int // operations that came after a refused one in its message, and so were not tried
}

// Do carries out operations, one after the other. It calls failed, which may be nil, with the position and the error of each
// that the kernel refused, that was not sent, or of which nobody knows what came of it (the error wraps [nlconn.ErrNoAnswer]), in no
// order; all others are done. It returns nil if all were done, and else the first such error, with how many there were. Errors say
// what was to be done, and wrap [ErrNoSet] if the set is gone and [ErrFull] if it has no room.
//
// Neighbours of one set and kind share a message. One that is refused for what it is costs another message for those behind it, which
// are tried after the rest. One that is refused for what the set is, full or another, takes those behind it in its message along.
func (c *Conn) Do(ctx context.Context, ops []Op, failed func(i int, err error)) error {
	b := &c.batch
	b.protocol, b.ops, b.failures, b.todo = c.protocol, ops, nlconn.Failures{Failed: failed}, b.todo[:0]
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
	b.ops, b.failures = nil, nlconn.Failures{}
	return err
}

// divide says which operations go in one message: neighbours of one set and kind, as many as there is room for.
func (b *batch) divide() {
	b.ends = b.ends[:0]
	var open *Op // the first of the message
	left := 0
	for at, i := range b.todo {
		op := &b.ops[i]
		if left -= op.Member.room(); open == nil || open.Set.Name != op.Set.Name || open.Delete != op.Delete || left < 0 {
			if open != nil {
				b.ends = append(b.ends, at)
			}
			open, left = op, messageLimit-headLimit-op.Member.room()
		}
	}
	b.ends = append(b.ends, len(b.todo))
}

// headLimit is more than a message has before its members.
const headLimit = 128

// room is how many bytes the member takes in a message, or some more.
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

// Append is part of [nlconn.Operations]: it appends a message of members.
func (b *batch) Append(e *nlconn.Encoder, n int) error {
	ops := b.message(n)
	first, cmd := &b.ops[ops[0]], uint16(cmdAdd)
	if first.Delete {
		cmd = cmdDelete
	}
	at := begin(e, b.protocol, cmd, unix.NLM_F_ACK) // without NLM_F_EXCL: what is there already, or gone, is no error
	e.Str(attrSetName, first.Set.Name)
	e.Native32(attrLine, 0) // where a refusal says the line
	adt := e.Nest(attrADT)
	for line, i := range ops {
		m := &b.ops[i].Member
		if first.Delete {
			key := m.Key()
			m = &key
		}
		appendMember(e, m, uint32(line+1)) // 0 is none
	}
	e.EndNest(adt)
	e.EndMessage(at)
	return nil
}

// Done is part of [nlconn.Operations]: it is told what became of a message.
func (b *batch) Done(n int, err error) {
	if err == nil {
		return
	}
	ops := b.message(n)
	var refused *nlconn.Error
	if errors.As(err, &refused) {
		if line := refusedLine(refused.Request); line > 0 && line <= len(ops) { // those before it are done
			ops = ops[line-1:]
			if ofMember[refused.Errno] { // any other is of the set, and those behind it would be refused as well
				b.again = append(b.again, ops[1:]...)
				ops = ops[:1]
			}
		}
	}
	for _, i := range ops {
		b.fail(i, err)
	}
}

// refusedLine is the line that an error names, in the copy of the request that comes with it; 0 if it names none.
func refusedLine(request []byte) int {
	if len(request) < nfgenmsg {
		return 0
	}
	return int(nlconn.Native32(nlconn.Attribute(request[nfgenmsg:], attrLine)))
}

func (b *batch) fail(i int, err error) {
	b.failures.Add(i, fmt.Errorf("%v: %w", b.ops[i], explain(err)))
}
