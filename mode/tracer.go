package mode

import (
	"context"
	"errors"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Tracer is a plane that can read its state back from the kernel. Its methods may be called at any
// time from any goroutine in the network namespace of the plane, also during a write. They are
// read-only and do not delay the plane's other callers.
type Tracer interface {
	// TracePacket computes what the kernel does with a packet, from the state that it holds. Its
	// cost does not grow with the table, except where the state can only be read with programs that
	// list all of it. An error is one of reading. walk follows the packet through rules.
	TracePacket(ctx context.Context, p trace.Packet, walk Walk) (trace.Kernel, error)
	// Differences compares the kernel with the table, which must not change meanwhile, and calls
	// each for every difference until it returns false. A write in progress may show as a
	// difference: to exclude that, compare again.
	Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error
}

// Walk follows a packet through rules in the kernel, which a mode describes by a value: a
// rule.Table of nftables, an *xtables.Tool for the chains of iptables, or an *xtables.Visit.
// Package nodetrace has the only one that is not a test's.
type Walk func(ctx context.Context, rules any, p trace.Packet) (trace.Kernel, error)

// Reporter reports differences for a Tracer, until the receiver stops it.
type Reporter struct {
	ctx  context.Context
	each func(trace.Difference) bool
	err  error
}

// NewReporter returns one that calls each until that returns false, or the context ends.
func NewReporter(ctx context.Context, each func(trace.Difference) bool) *Reporter {
	return &Reporter{ctx: ctx, each: each}
}

// Report reports that an object, of a frontend if k is not zero, differs from the desired state; ""
// means that the object should not exist, or does not. After a failure it reports nothing, and
// returns the same error.
func (t *Reporter) Report(k lb.Key, object, desired, actual string) error {
	if t.err == nil {
		t.err = t.ctx.Err()
	}
	if t.err == nil && !t.each(trace.Difference{Key: k, Object: object, Desired: desired, Actual: actual}) {
		t.err = errEnough
	}
	return t.err
}

// Err is the error that ended the reports; nil before.
func (t *Reporter) Err() error { return t.err }

// Done converts the error of a comparison into that of Differences: nil if the receiver stopped it.
func (t *Reporter) Done(err error) error {
	if t.err != nil {
		err = t.err
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// errEnough ends a comparison when the receiver stops it.
var errEnough = errors.New("enough")
