package netlink

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Counters count sent messages.
type Counters struct {
	Messages uint64 // single requests
	Sends    uint64 // system calls that sent them
	Bytes    uint64 // of requests
}

// Sent counts a system call with that many messages.
func (n *Counters) Sent(messages, bytes int) {
	n.Messages += uint64(messages)
	n.Sends++
	n.Bytes += uint64(bytes)
}

// Operations are the operations of a [Bulk], each of one message.
type Operations interface {
	// Append appends the message of an operation. After an error it is not sent.
	Append(e *Encoder, i int) error
	// Done is called with the outcome of an operation: nil, the error of Append, or an error of
	// [Conn.Each].
	Done(i int, err error)
}

// Bulk sends many requests with acknowledgement, in pieces of one system call. Only one goroutine
// may use it at a time.
type Bulk struct {
	// Piece is the number of messages in a system call. It shrinks when their answers do not fit.
	Piece int
	Out   Encoder // the present piece
	Counters

	ops      Operations
	sent     []int // operations of the present piece
	overflow bool  // an answer did not fit
	settle   func(message int, err error)
}

// Do sends a message for each of n operations, and calls Done for each, in no order. The error of a
// system call also fails all operations after it. An ended context stops before the next piece.
func (b *Bulk) Do(ctx context.Context, kernel Transport, n int, ops Operations) {
	if b.settle == nil { // made once: a closure for each call would be garbage
		b.settle = b.settled
	}
	b.ops = ops
	for next := 0; next < n; {
		b.Out.B, b.sent, b.overflow = b.Out.B[:0], b.sent[:0], false
		for ; next < n && len(b.sent) < b.Piece; next++ {
			if err := ops.Append(&b.Out, next); err != nil {
				ops.Done(next, err)
				continue
			}
			b.sent = append(b.sent, next)
		}
		if len(b.sent) == 0 {
			continue
		}
		if err := kernel.Each(ctx, b.Out.B, b.settle); err != nil {
			for _, i := range b.sent {
				ops.Done(i, err)
			}
			for ; next < n; next++ {
				ops.Done(next, err)
			}
			break
		}
		b.Sent(len(b.sent), len(b.Out.B))
		if b.overflow {
			b.Piece = max(1, b.Piece/2)
		}
	}
	b.ops = nil
}

func (b *Bulk) settled(message int, err error) {
	b.overflow = b.overflow || err != nil && errors.Is(err, unix.ENOBUFS) && errors.Is(err, ErrNoAnswer)
	b.ops.Done(b.sent[message], err)
}

// Failures are the failed operations of one call.
type Failures struct {
	// Failed, if not nil, is called for each with its position.
	Failed func(i int, err error)

	number int
	first  error
}

// Add records a failed operation.
func (f *Failures) Add(i int, err error) {
	f.number++
	if f.first == nil {
		f.first = err
	}
	if f.Failed != nil {
		f.Failed(i, err)
	}
}

// Err returns the first recorded error, with the number of other failures among all; nil without a
// failure.
func (f *Failures) Err(all int) error {
	if f.number > 1 {
		return fmt.Errorf("%w; and %d more of %d failed", f.first, f.number-1, all)
	}
	return f.first
}
