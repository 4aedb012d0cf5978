//go:build linux

package nftables

import (
	"context"
	"fmt"

	"kube-proxy/internal/nft/wire"
)

// early is a reading of the table that starts when the plane is made. The kernel needs seconds for
// a large table; meanwhile other cores list the cluster's objects and compute the frontends.
type early struct {
	sock   *wire.Socket
	end    context.CancelFunc
	done   chan struct{} // closed when snap and err are set
	others uint32        // see [selfwrites.Ledger.Others]; taken before the reading
	snap   *snapshot
	err    error
}

// readEarly starts a reading, on a socket in the network namespace of the calling thread.
func (p *Plane) readEarly(ctx context.Context) error {
	sock, err := wire.Open()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	sock.ReadAtOnce(16) // of a large table, the kernel answers with a datagram for each element
	ctx, end := context.WithCancel(ctx)
	e := &early{sock: sock, end: end, done: make(chan struct{})}
	p.early = e
	e.others, err = p.others(ctx)
	if err != nil {
		close(e.done)
		return err
	}
	r := p.readerBy(sock, p.mon.silent)
	go func() {
		defer close(e.done)
		e.snap, e.err = r.once(ctx, allSets)
	}()
	return nil
}

// others returns a number that changes with each change of the ruleset by another process.
func (p *Plane) others(ctx context.Context) (uint32, error) {
	return p.ours.Others(func() (uint32, error) { return p.sock.Generation(ctx) })
}

// takeEarly returns the early reading once, if no other process has changed the ruleset since it
// began; else nil.
func (p *Plane) takeEarly(ctx context.Context) *snapshot {
	e := p.early
	if e == nil {
		return nil
	}
	if now, err := p.others(ctx); err == nil && now == e.others {
		select {
		case <-e.done:
		case <-ctx.Done():
		}
	}
	p.early = nil
	err := e.close()
	if now, changed := p.others(ctx); err != nil || e.err != nil || changed != nil || now != e.others {
		return nil
	}
	return e.snap
}

// close ends the reading.
func (e *early) close() error {
	if e == nil {
		return nil
	}
	e.end()
	<-e.done
	return e.sock.Close()
}
