//go:build linux

package iptables

import (
	"context"
	"fmt"

	"kube-proxy/internal/xtables"
	"kube-proxy/plane"
)

// Probe writes KUBE-MARK-MASQ anew, as it is: one chain of one rule, in the table that almost all rows are written to. The
// legacy programs write that whole table for it, as for each change; they and the kernel may refuse it for all that they
// may refuse a change for but what is wrong with a row.
//
// To declare an empty chain again, such as a canary, would not do: the nft programs find nothing to change, and the kernel
// commits nothing. What is lost is what the rule has counted. Whether our other chains are there is Audit's to find out.
func (p *Plane) Probe(ctx context.Context) error {
	if p.st == nil {
		return fmt.Errorf("iptables: probe: %w", plane.ErrNotSetUp)
	}
	var b xtables.Batch
	b.Section(xtables.NAT).Put(p.st.marking())
	last := p.Stats().Last // it is no sync (MT-12)
	err := p.Restore(ctx, &b)
	p.Count(func(s *xtables.Stats) { s.Last = last })
	if err != nil {
		return fmt.Errorf("iptables: probe: %w", err)
	}
	return nil
}
