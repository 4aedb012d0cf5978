package ipset

import (
	"context"
	"errors"
	"fmt"

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
	// memberLimit is more than a member takes in a message.
	memberLimit = 128
)

// batch is a call of Do at work. What it holds is kept for the next.
type batch struct {
	ops      []Op
	failures nlconn.Failures

	next  int   // the first operation that was not sent
	again []int // operations that came after a refused one in its message, and so were not tried
	sent  []int // operations in the messages under way
	ends  []int // of each message: where in sent it ends

	settle func(i int, err error)
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
	b.ops, b.failures, b.next, b.again = ops, nlconn.Failures{Failed: failed}, 0, b.again[:0]
	for {
		c.fill()
		if len(b.sent) == 0 {
			break
		}
		if err := c.kernel.Each(ctx, c.out.B, b.settle); err != nil {
			for _, i := range b.sent {
				b.fail(i, err)
			}
			for i, ok := b.peek(); ok; i, ok = b.peek() {
				b.advance()
				b.fail(i, err)
			}
			break
		}
		c.counters.Sends++
		c.counters.Messages += uint64(len(b.ends))
		c.counters.Bytes += uint64(len(c.out.B))
	}
	err := b.failures.Err(len(ops))
	b.ops, b.failures = nil, nlconn.Failures{}
	return err
}

// peek returns the operation that is next.
func (b *batch) peek() (i int, ok bool) {
	switch {
	case b.next < len(b.ops):
		return b.next, true
	case len(b.again) > 0:
		return b.again[0], true
	}
	return 0, false
}

// advance leaves that behind.
func (b *batch) advance() {
	if b.next < len(b.ops) {
		b.next++
	} else {
		b.again = b.again[1:]
	}
}

// fill writes as many messages as go at once.
func (c *Conn) fill() {
	b := &c.batch
	c.out.B, b.sent, b.ends = c.out.B[:0], b.sent[:0], b.ends[:0]
	var open *Op // the first of the message under way
	var at, adt int
	end := func() {
		if open != nil {
			c.out.EndNest(adt)
			c.out.EndMessage(at)
			b.ends = append(b.ends, len(b.sent))
			open = nil
		}
	}
	for i, ok := b.peek(); ok; i, ok = b.peek() {
		op := &b.ops[i]
		if err := op.Member.check(op.Set); err != nil {
			b.advance()
			b.fail(i, err)
			continue
		}
		if open != nil && (open.Set.Name != op.Set.Name || open.Delete != op.Delete || len(c.out.B)-at > messageLimit-memberLimit) {
			end()
		}
		if len(b.ends) == messagesAtOnce {
			return
		}
		b.advance()
		if open == nil {
			open = op
			cmd := uint16(cmdAdd)
			if op.Delete {
				cmd = cmdDelete
			}
			at = c.begin(cmd, unix.NLM_F_ACK) // without NLM_F_EXCL: what is there already, or gone, is no error
			c.out.Str(attrSetName, op.Set.Name)
			c.out.Native32(attrLine, 0) // where a refusal says the line
			adt = c.out.Nest(attrADT)
		}
		m := &op.Member
		if op.Delete {
			key := m.Key()
			m = &key
		}
		b.sent = append(b.sent, i)
		first := 0
		if len(b.ends) > 0 {
			first = b.ends[len(b.ends)-1]
		}
		appendMember(&c.out, m, uint32(len(b.sent)-first)) // lines are numbered from 1: 0 is none
	}
	end()
}

// settled is told what became of a message.
func (c *Conn) settled(message int, err error) {
	if err == nil {
		return
	}
	b := &c.batch
	first := 0
	if message > 0 {
		first = b.ends[message-1]
	}
	ops := b.sent[first:b.ends[message]]
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
	line := nlconn.Attribute(request[nfgenmsg:], attrLine)
	if len(line) != 4 {
		return 0
	}
	return int(nlconn.Order.Uint32(line))
}

func (b *batch) fail(i int, err error) {
	b.failures.Add(i, fmt.Errorf("%v: %w", b.ops[i], explain(err)))
}
