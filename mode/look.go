package mode

import (
	"context"
	"errors"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Looker is a plane that tells what the kernel holds. Its methods may be called at any time from any goroutine in the network
// namespace of the plane, also while a write is under way; they change nothing, and take no time of the plane's other callers.
type Looker interface {
	// Follow says what the state that the kernel holds makes of a packet. Its cost does not grow with the table, but where only
	// programs that list all can read it. An error is of reading.
	Follow(ctx context.Context, p trace.Packet) (trace.Kernel, error)
	// Differences compares the kernel with the table, which must not change meanwhile, and calls each for every difference until it
	// returns false. A write in progress may show as a difference: to exclude that, compare again.
	Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error
}

// Teller reports differences for a Looker, until the receiver wants no more.
type Teller struct {
	ctx  context.Context
	each func(trace.Difference) bool
	err  error
}

// NewTeller returns one that calls each until that returns false, or the context ends.
func NewTeller(ctx context.Context, each func(trace.Difference) bool) *Teller {
	return &Teller{ctx: ctx, each: each}
}

// Tell reports that an object, of a row if k is not zero, is not as desired; "" is the state of an object that should not exist, or does
// not. Once it has failed it reports no more, and returns the same error.
func (t *Teller) Tell(k lb.Key, object, want, have string) error {
	if t.err == nil {
		t.err = t.ctx.Err()
	}
	if t.err == nil && !t.each(trace.Difference{Key: k, Object: object, Want: want, Have: have}) {
		t.err = errEnough
	}
	return t.err
}

// Err is the error that ended the reports; nil before.
func (t *Teller) Err() error { return t.err }

// Done turns the error of a comparison into that of Differences: nil if the receiver wanted no more.
func (t *Teller) Done(err error) error {
	if t.err != nil {
		err = t.err
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// errEnough ends a comparison when the receiver wants no more.
var errEnough = errors.New("enough")
