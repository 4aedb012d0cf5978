//go:build linux

package xtables

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Follow is part of mode.Looker: it goes a packet's way through the chains that the kernel holds, whoever made them, and reads those alone;
// of the legacy back end the tables in which they are, for it has nothing less. One packet at a time is followed.
//
// What becomes of a packet follows from what is read: rules of others count as ours do, if all in them is understood. Of those that are not it
// is told that they are there; and what others drop after such a rule is told, and not judged. Of the kernel's lists of clients it is taken
// where a client went before (Affine), and the shares are those of other clients. Masquerade says whether backends are to see the node's address,
// where a backend is not the client itself; one that is the node itself sees the client's all the same.
func (l *Looker) Follow(ctx context.Context, packet trace.Packet) (trace.Kernel, error) {
	k, err := l.follow(ctx, packet)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("iptables: follow a packet to %s: %w", packet.To, err)
	}
	return k, nil
}

// Looker reads what the kernel holds of one family, for who asks. No writer knows it.
type Looker struct {
	family lb.Family
	tool   *Tool
	looking
}

// NewLooker returns one for the back end of the programs.
func NewLooker(f lb.Family, t *Tool) *Looker {
	return &Looker{f, t, looking{Turn: make(chan struct{}, 1), Compare: make(chan struct{}, 1)}}
}

// Follow follows a packet as [Looker.Follow] does, through the chains of the back end that the Keeper keeps chains in. Unlike its other
// methods it may be called by any goroutine.
func (k *Keeper) Follow(ctx context.Context, packet trace.Packet) (trace.Kernel, error) {
	return k.looker.Follow(ctx, packet)
}

// attempts is how often a packet is followed where rules change meanwhile.
const attempts = 4

func (l *Looker) follow(ctx context.Context, packet trace.Packet) (trace.Kernel, error) {
	if f := lb.FamilyOf(packet.To.Addr()); f != l.family {
		return trace.Kernel{}, fmt.Errorf("it is of %s, and these chains are of %s", f, l.family)
	}
	since := time.Now()
	if err := l.begin(ctx); err != nil {
		return trace.Kernel{}, err
	}
	defer l.end()
	around, err := LookAround()
	if err != nil {
		return trace.Kernel{}, err
	}
	defer around.Close()
	for attempt := 1; ; attempt++ {
		k, same, err := l.followOnce(ctx, packet, since, around)
		if same || attempt == attempts || ctx.Err() != nil {
			return k, err
		}
	}
}

// followOnce follows a packet, and reports whether no rule changed meanwhile, as far as that can be told.
func (l *Looker) followOnce(ctx context.Context, packet trace.Packet, since time.Time, around *surroundings) (_ trace.Kernel, same bool, _ error) {
	h, done, err := l.holdingFor(ctx, since)
	if err != nil {
		return trace.Kernel{}, true, err
	}
	defer done()
	before, err := h.generation()
	if err != nil {
		return trace.Kernel{}, true, err
	}
	w := &walk{ctx: ctx, packet: packet, holds: h, place: around, read: map[ChainID]*ChainState{}, said: map[saying]bool{}}
	w.all()
	after, err := h.generation()
	if err = errors.Join(w.err, err); err != nil {
		return trace.Kernel{}, before == after, err
	}
	return w.answer(), before == after, nil
}

// looking is what who looks has in common with others who do.
type looking struct {
	// Turn has room for the one packet that is followed at a time, compare for the one comparison.
	Turn, Compare chan struct{}
	// Asking is how many want a packet followed. As long as somebody does, tables of the legacy back end are kept, for those who asked
	// before they were read.
	Asking atomic.Int32
	Kept   *legacyHolding
	Pace   pacer
}

// begin waits for the turn.
func (l *looking) begin(ctx context.Context) error {
	l.Asking.Add(1)
	select {
	case l.Turn <- struct{}{}:
		return nil
	case <-ctx.Done():
	}
	if l.Asking.Add(-1) == 0 { // who has the turn is about to give it back, and may have counted on us
		l.Turn <- struct{}{}
		if l.Asking.Load() == 0 {
			l.forget()
		}
		<-l.Turn
	}
	return ctx.Err()
}

// end gives the turn back. The last forgets what was read.
func (l *looking) end() {
	if l.Asking.Add(-1) == 0 {
		l.forget()
	}
	<-l.Turn
}

func (l *looking) forget() {
	if l.Kept != nil {
		l.Kept.Close()
		l.Kept = nil
	}
}

// holdingFor returns what reads the back end's chains for who has asked since some time, in the network namespace of the calling thread.
func (l *Looker) holdingFor(ctx context.Context, since time.Time) (h Holding, done func(), err error) {
	if l.tool.Backend != Legacy {
		h, err := l.Holding(ctx)
		if err != nil {
			return nil, nil, err
		}
		return h, h.Close, nil
	}
	if l.Kept == nil {
		if l.Kept, err = OpenLegacy(l.family, &l.Pace); err != nil {
			return nil, nil, err
		}
	}
	return l.Kept, func() {}, l.Kept.asked(ctx, since)
}

// Holding opens what reads the back end's chains once, in the network namespace of the calling thread.
func (l *Looker) Holding(ctx context.Context) (Holding, error) {
	if l.tool.Backend == Legacy {
		h, err := OpenLegacy(l.family, nil)
		if err != nil {
			return nil, err
		}
		if err := h.asked(ctx, time.Time{}); err != nil {
			h.Close()
			return nil, err
		}
		return h, nil
	}
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		return nil, err
	}
	return &nftHolding{nf: nf, family: l.family}, nil
}
