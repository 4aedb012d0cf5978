//go:build linux

package nftables

import (
	"context"
	"fmt"
	"net/netip"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/ranges"
	"kube-proxy/plane/internal/slots"
)

// change is one batch, in three steps. Plan computes what frontends need, without side effects.
// Stage applies that to the state: it counts the references to sets and source range lists, and
// allocates slots and numbers. Encode writes the difference as nftables messages. If the kernel
// refuses them, the rollback log undoes the staged changes.
type change struct {
	*ruleset
	st   *state
	out  *wire.Transaction
	undo rollback.Log
	log  *rollback.Log // undo, or nil for a state built from scratch
	most int           // slots of a set that the batch may change

	rows       []rowChange
	touched    []*set
	before     []setBefore // of touched sets; empty for a state built from scratch
	lists      *ranges.Change
	classes    []class // new, as shapes
	shapes     []shape
	clusterIPs map[netip.Addr]int32 // the counts before, of touched addresses

	adopted map[lb.SetID]uint32 // ids that the kernel has for sets that the state does not have yet
	packer  slots.Packer
}

func (p *builder) newChange(st *state) *change {
	c := &change{ruleset: p.rules, st: st, out: p.rules.transaction(TableName), most: p.maxBatchWeight}
	c.log = &c.undo
	c.lists = st.lists.Change(c.log)
	return c
}

// write sends the encoded messages. If the kernel refuses them, the state stays as before.
func (p *Plane) write(ctx context.Context, c *change) error {
	err := p.commit(ctx, c.out)
	if err != nil {
		c.log.Undo()
	}
	return err
}

// commit sends a transaction. It returns the errors of [wire.Socket.Commit].
func (p *Plane) commit(ctx context.Context, t *wire.Transaction) error {
	size, err := p.sock.Commit(ctx, p.ours, t)
	if size > 0 {
		p.stats.Batches++
		p.stats.Messages += uint64(t.Last())
		p.stats.Bytes += uint64(size)
	}
	if err != nil {
		p.stats.Failures++
		return fmt.Errorf("nftables %s: %w", p.ip.Family, err)
	}
	return nil
}

// Apply writes the changes in one transaction: all of them are in force, or none. For a set with
// more backends than MaxBatchWeight it writes a part, and leaves the frontends that change the set
// for later.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	if p.st == nil {
		return plane.ApplyResult{}, fmt.Errorf("nftables %s: apply: %w", p.ip.Family, plane.ErrNotSetUp)
	}
	c, err := p.changed(changes)
	if err != nil {
		return plane.ApplyResult{}, err
	}
	if err := p.write(ctx, c); err != nil {
		return plane.ApplyResult{}, err
	}
	p.localhost.Apply(changes)
	return plane.ApplyResult{Written: c.out.Last() > 0, Later: c.st.unfinished(changes)}, nil
}

// changed plans, stages and encodes changes.
func (p *Plane) changed(changes []lb.Change) (*change, error) {
	plan := p.planner(p.st)
	rows, err := plan.rowsOf(changes)
	if err != nil {
		return nil, err
	}
	c := p.newChange(p.st)
	c.stage(rows)
	if err := c.finish(); err != nil {
		c.log.Undo()
		return nil, err
	}
	c.encode()
	return c, nil
}
