//go:build linux

package nftables

import (
	"context"
	"fmt"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Probe rewrites the unchanged rules of one small chain, in a transaction like Apply's. Whatever
// makes the kernel refuse it would make it refuse an Apply too; only invalid frontends are not
// covered. The error wraps plane.ErrStateLost if the table or chain is missing.
//
// Adding an existing object, such as the table, would prove nothing: the kernel finds no change,
// and commits nothing.
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
