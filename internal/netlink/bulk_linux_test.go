package netlink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	. "kube-proxy/internal/netlink"
)

// kernel is a Transport that records how many messages it gets at once, and answers as each says.
type kernel struct {
	Transport
	sends []int
	each  func(send, message int) error
	fails error // of the second system call
	dumps int   // that are interrupted
}

func (k *kernel) Each(_ context.Context, messages []byte, outcome func(int, error)) error {
	if k.fails != nil && len(k.sends) == 1 {
		return k.fails
	}
	n := len(messages) / 16
	k.sends = append(k.sends, n)
	for i := range n {
		outcome(i, k.each(len(k.sends)-1, i))
	}
	return nil
}

func (k *kernel) Do(_ context.Context, _ []byte, f func(Message) error) error {
	for i := range 2 {
		if err := f(Message{Type: uint16(i)}); err != nil {
			return err
		}
	}
	if k.dumps > 0 {
		k.dumps--
		return ErrInterrupted
	}
	return nil
}

// operations records outcomes; those in refused append no message.
type operations struct {
	refused []int
	done    map[int]error
}

var errRefused = errors.New("refused")

func (o *operations) Append(e *Encoder, i int) error {
	if slices.Contains(o.refused, i) {
		return errRefused
	}
	e.EndMessage(e.Begin(16, 0, 0))
	return nil
}

func (o *operations) Done(i int, err error) { o.done[i] = err }

// Operations are sent in pieces, and each gets its own outcome, once.
func TestBulk(t *testing.T) {
	noRoom := fmt.Errorf("%w: %w", ErrNoAnswer, unix.ENOBUFS)
	fine := func(int, int) error { return nil }
	for name, c := range map[string]struct {
		n       int
		refused []int
		kernel  kernel
		sends   []int
		failed  map[int]error
		piece   int // at the end
	}{
		"none":       {n: 0, kernel: kernel{each: fine}, piece: 4},
		"one piece":  {n: 4, kernel: kernel{each: fine}, sends: []int{4}, piece: 4},
		"two pieces": {n: 5, kernel: kernel{each: fine}, sends: []int{4, 1}, piece: 4},
		"refused": {n: 6, refused: []int{0, 3}, kernel: kernel{each: fine}, sends: []int{4},
			failed: map[int]error{0: errRefused, 3: errRefused}, piece: 4},
		"all refused": {n: 2, refused: []int{0, 1}, kernel: kernel{each: fine},
			failed: map[int]error{0: errRefused, 1: errRefused}, piece: 4},
		"an error of the kernel": {n: 6, refused: []int{1}, kernel: kernel{each: func(send, i int) error {
			if send == 0 && i == 1 {
				return unix.EEXIST
			}
			return nil
		}}, sends: []int{4, 1}, failed: map[int]error{1: errRefused, 2: unix.EEXIST}, piece: 4},
		"no room for answers": {n: 9, kernel: kernel{each: func(send, i int) error {
			if send == 0 && i == 0 {
				return noRoom
			}
			return nil
		}}, sends: []int{4, 2, 2, 1}, failed: map[int]error{0: noRoom}, piece: 2},
		"never room": {n: 6, kernel: kernel{each: func(int, int) error { return noRoom }}, sends: []int{4, 2},
			failed: map[int]error{0: noRoom, 1: noRoom, 2: noRoom, 3: noRoom, 4: noRoom, 5: noRoom}, piece: 1},
		"no answer for another reason": {n: 5, kernel: kernel{each: func(send, i int) error {
			if send == 0 {
				return ErrNoAnswer
			}
			return unix.ENOBUFS
		}}, sends: []int{4, 1}, failed: map[int]error{0: ErrNoAnswer, 1: ErrNoAnswer, 2: ErrNoAnswer, 3: ErrNoAnswer,
			4: unix.ENOBUFS}, piece: 4},
		"a system call fails": {n: 10, kernel: kernel{each: fine, fails: unix.EBADF}, sends: []int{4},
			failed: map[int]error{4: unix.EBADF, 5: unix.EBADF, 6: unix.EBADF, 7: unix.EBADF, 8: unix.EBADF,
				9: unix.EBADF}, piece: 4},
	} {
		o := operations{refused: c.refused, done: map[int]error{}}
		b := Bulk{Piece: 4}
		b.Do(t.Context(), &c.kernel, c.n, &o)
		sent := 0
		for _, n := range c.sends {
			sent += n
		}
		want := Counters{Messages: uint64(sent), Sends: uint64(len(c.sends)), Bytes: uint64(16 * sent)}
		if !slices.Equal(c.kernel.sends, c.sends) || b.Counters != want || b.Piece != c.piece {
			t.Errorf("%s: sent %v, counted %+v, pieces of %d; want %v, %+v, %d", name, c.kernel.sends, b.Counters,
				b.Piece, c.sends, want, c.piece)
		}
		for i := range c.n {
			if err, done := o.done[i]; !done || err != c.failed[i] {
				t.Errorf("%s: operation %d is done: %t, with %v; want %v", name, i, done, err, c.failed[i])
			}
		}
	}
}

// A dump that changes interrupted is read again, not without end, and nothing is read twice.
func TestDumpIsRepeated(t *testing.T) {
	odd := func(m Message) (uint16, bool) { return m.Type, m.Type%2 == 1 }
	for _, c := range []struct {
		interrupted int
		want        error
	}{{0, nil}, {1, nil}, {9, nil}, {10, ErrInterrupted}} {
		all, err := Dump(t.Context(), &kernel{dumps: c.interrupted}, nil, odd)
		if err != c.want || !slices.Equal(all, []uint16{1}) {
			t.Errorf("%d interruptions: %v, %v; want %v", c.interrupted, all, err, c.want)
		}
	}
}

// The first failure is named, the others are counted, and each is reported.
func TestFailures(t *testing.T) {
	var f Failures
	if f.Err(3) != nil {
		t.Error("a failure of nothing")
	}
	f.Add(0, unix.EEXIST)
	if f.Err(3) != unix.EEXIST {
		t.Error(f.Err(3))
	}
	var at []int
	f.Failed = func(i int, _ error) { at = append(at, i) }
	f.Add(2, unix.ENOENT)
	if err := f.Err(3); !errors.Is(err, unix.EEXIST) || err.Error() != "file exists; and 1 more of 3 failed" ||
		!slices.Equal(at, []int{2}) {
		t.Errorf("%v, reported %v", err, at)
	}
}
