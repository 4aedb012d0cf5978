package iptables

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Remove takes away all that is ours, or upstream's, of this family and back end: chains, and the rules of built-in chains
// that lead to them (DP-15). KUBE-FIREWALL stays, for the kubelet has rules there, but for our rule in it. The plane holds
// nothing afterwards; only Reset brings it back.
func (p *Plane) Remove(ctx context.Context) error {
	p.st = nil
	p.stats.Saves++
	have, err := p.tool.snapshot(ctx, false)
	if err != nil {
		return fmt.Errorf("iptables: remove: %w", err)
	}
	var b batch
	for j := range have.jumps {
		_, target, _ := strings.Cut(j.rule, "-j ")
		target, _, _ = strings.Cut(target, " ")
		mine := ours(chainID{j.from.table, target}) && target != nodeFirewall && slices.Contains(builtin[j.from.table], j.from.name)
		if mine || j.rule == martian {
			s := b.only(j.from.table)
			s.remove = append(s.remove, j)
		}
	}
	l := &loader{p: p, st: newState(p.base), have: have}
	var ids []chainID
	for id := range have.chains {
		if id.name != nodeFirewall {
			b.only(id.table).put(chain{id: id})
			ids = append(ids, id)
		}
	}
	if err := p.run(ctx, &b); err != nil {
		return fmt.Errorf("iptables: remove: %w", err)
	}
	for part := range slices.Chunk(ids, 2000) {
		if err := l.delete(ctx, part); err != nil {
			return fmt.Errorf("iptables: remove: %w", err)
		}
	}
	return nil
}
