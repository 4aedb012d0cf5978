//go:build linux

package xtwalk

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"kube-proxy/internal/follow"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Looker follows packets through the chains of one family and back end that the kernel holds, for who asks. No writer knows it.
type Looker struct {
	family lb.Family
	tool   *xtables.Tool

	turn chan struct{} // has room for the one packet that is followed at a time
	// asking is how many want a packet followed. As long as somebody does, what was read of the legacy back end is kept, for those who asked
	// before that.
	asking atomic.Int32
	kept   xtables.Holding
	began  time.Time // to read what is kept
	reads  int
}

// New returns a Looker for the back end of the programs.
func New(t *xtables.Tool) *Looker {
	return &Looker{family: t.Family, tool: t, turn: make(chan struct{}, 1)}
}

// Follow is part of mode.Looker: it goes a packet's way through the chains that the kernel holds, whoever made them. Of the nft back end it reads
// those alone that the packet comes to; of the legacy one it reads all that iptables-save prints. One packet at a time is followed.
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

func (l *Looker) follow(ctx context.Context, packet trace.Packet) (k trace.Kernel, err error) {
	if f := lb.FamilyOf(packet.To.Addr()); f != l.family {
		return k, fmt.Errorf("it is of %s, and these chains are of %s", f, l.family)
	}
	since := time.Now()
	if err := l.begin(ctx); err != nil {
		return k, err
	}
	defer l.end()
	around, err := lookAround()
	if err != nil {
		return k, err
	}
	defer around.close()
	h, err := l.read(ctx, since)
	if err != nil {
		return k, err
	}
	if h != l.kept {
		defer h.Close()
	}
	err = follow.Steady(ctx, h.Generation, func() error {
		w := newWalker(ctx, packet, h, around)
		err := w.all()
		k = w.answer()
		return err
	})
	return k, err
}

func newWalker(ctx context.Context, packet trace.Packet, holds holder, r route) *walker {
	return &walker{ctx: ctx, packet: packet, holds: holds, route: r, read: map[xtables.ChainID]*chain{}}
}

// begin waits for the turn.
func (l *Looker) begin(ctx context.Context) error {
	l.asking.Add(1)
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
	}
	if l.asking.Add(-1) == 0 { // who has the turn is about to give it back, and may have counted on us
		l.turn <- struct{}{}
		if l.asking.Load() == 0 {
			l.kept = nil
		}
		<-l.turn
	}
	return ctx.Err()
}

// end gives the turn back. The last forgets what was read.
func (l *Looker) end() {
	if l.asking.Add(-1) == 0 {
		l.kept = nil
	}
	<-l.turn
}

// read returns what the kernel holds for who has asked since some time, in the network namespace of the calling thread.
func (l *Looker) read(ctx context.Context, since time.Time) (h xtables.Holding, err error) {
	if l.tool.Backend != xtables.Legacy {
		return l.tool.OpenHolding(ctx)
	}
	if l.kept != nil && !l.began.Before(since) {
		return l.kept, nil
	}
	l.began, l.reads = time.Now(), l.reads+1
	if h, err = l.tool.OpenHolding(ctx); err != nil {
		return nil, err
	}
	l.kept = h
	return h, nil
}
