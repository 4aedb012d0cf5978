//go:build linux

package nftables

import (
	"context"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
)

// standInName is the name of the table that serves while a table of another layout is replaced (ADR
// 0027).
//
// One transaction deletes that table and creates ours. But a packet may have read the kernel's list
// of chains before ours were in it, and walk it when the old ones are gone. So the stand-in, whose
// name no other table has, exists before, and is deleted when no such packet is left.
const standInName = TableName + "-stand-in"

// standIn writes the frontends to the stand-in table, and returns when every packet meets it.
func (p *Plane) standIn(ctx context.Context, want *lb.Table) error {
	there, err := hasTable(ctx, p.sock, p.ip, standInName)
	if err != nil {
		return err
	}
	p.rules.node = want.Node
	// Frontends that it refuses are left to the table proper.
	st, _ := p.desired(&snapshot{}, want, want.All())
	c := p.newChange(st)
	c.out.Table = standInName
	if there { // left by a killed process, perhaps long ago
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

// standDown deletes the stand-in table, if it exists: this process's, or that of a killed one.
func (p *Plane) standDown(ctx context.Context) error {
	there, err := hasTable(ctx, p.sock, p.ip, standInName)
	if err != nil || !there {
		return err
	}
	kernel.AwaitPackets()
	c := p.newChange(p.st)
	c.out.Table = standInName
	c.out.DeleteTable()
	return p.commit(ctx, c.out)
}
