//go:build linux

package nftables

import (
	"context"
	"fmt"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
)

// StandInName is the name of the table that serves while one of another layout is replaced (ADR 0027).
//
// One transaction deletes that table and makes ours, but a packet may have read the kernel's list of chains before ours were in it,
// and walk it when the others are gone. So a table that others have not is there before, and goes when no such packet is left.
const StandInName = TableName + "-stand-in"

// standIn makes the table that stands in hold the rows, and returns when every packet meets it.
func (p *Plane) standIn(ctx context.Context, want *lb.Table) error {
	there, err := hasTable(ctx, p.sock, p.ip.Proto, StandInName)
	if err != nil {
		return fmt.Errorf("look for table %s of %s: %w", StandInName, p.ip.Family, err)
	}
	p.rules.node = want.Node
	st, _ := p.desired(&snapshot{}, want, want.All()) // what is refused, the table proper leaves for later
	c := p.newChange(st)
	c.out.Table = StandInName
	if there { // of a process that was killed: it may be of long ago
		c.out.DeleteTable()
	}
	if err := p.load(ctx, c, !there); err != nil {
		return err
	}
	if err := p.commit(ctx, c.out); err != nil {
		return err
	}
	kernel.AwaitPackets()
	return nil
}

// standDown deletes the table that stands in, if there is one: this process's, or that of one that was killed.
func (p *Plane) standDown(ctx context.Context) error {
	there, err := hasTable(ctx, p.sock, p.ip.Proto, StandInName)
	if err != nil {
		return fmt.Errorf("look for table %s of %s: %w", StandInName, p.ip.Family, err)
	}
	if !there {
		return nil
	}
	kernel.AwaitPackets()
	c := p.newChange(p.st)
	c.out.Table = StandInName
	c.out.DeleteTable()
	return p.commit(ctx, c.out)
}
