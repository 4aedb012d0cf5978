//go:build linux

package nftables

import (
	"context"
	"fmt"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Probe writes the rules of one small chain anew, as they are, in a transaction as Apply's. The kernel may refuse it for
// all that it may refuse that for but what is wrong with a row; it wraps plane.ErrStateLost where table or chain is gone.
//
// To add again what is there, such as the table, would not do: the kernel finds nothing to change, and commits nothing.
func (p *Plane) Probe(ctx context.Context) error {
	if p.st == nil {
		return fmt.Errorf("nftables %s: probe: %w", p.ip.Family, plane.ErrNotSetUp)
	}
	c := p.newChange(p.st)
	small := c.masqThen(lb.Cluster)
	c.out.FlushChain(small.Name)
	small.AddTo(c.out)
	return p.commit(ctx, c.out)
}
