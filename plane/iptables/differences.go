//go:build linux

package iptables

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/trace"
)

// Differences implements mode.Tracer. It renders one service port after the other, and ignores
// comments, because rules of many endpoints have none (DP-12).
func (p *Plane) Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error {
	// The settings of a renderer, except those that the engine's goroutine changes.
	r := renderer{family: p.Family, node: want.Node, localhost: p.base.localhost, fullyRandom: p.base.fullyRandom,
		mark: p.base.mark, liberal: !p.dry && liberal(), counts: p.accounting.Load() != nil}
	leading := jumps()
	if r.localnet() {
		leading = append(leading, xtables.BlockLocalnetJump)
	}
	if err := p.Tool.Differences(ctx, leading, r.wanted(want), xtables.Ours, mode.NewReporter(ctx, each)); err != nil {
		return fmt.Errorf("iptables: compare: %w", err)
	}
	return nil
}

// wanted yields all chains of a table. It begins with those that all others depend on.
func (r *renderer) wanted(table *lb.Table) iter.Seq[xtables.Wanted] {
	return func(yield func(xtables.Wanted) bool) {
		for _, c := range r.skeleton() {
			if !yield(xtables.Wanted{Chain: c}) {
				return
			}
		}
		var entries [dispatchers][]xtables.Entry
		lists := map[xtables.ChainID][]netip.Prefix{}
		for _, port := range byPort(table.All()) {
			out := r.servicePort(port.id, port.rows)
			for _, c := range out.chains {
				if !yield(xtables.Wanted{Chain: c, Of: port.id.service,
					Key: func(string) lb.Key { return port.rows[0].Key }}) {
					return
				}
			}
			maps.Copy(lists, out.lists)
			for k, rules := range out.dispatch {
				for _, e := range rules {
					entries[e.to] = append(entries[e.to], xtables.Entry{Path: xtables.PathOf(k), Rules: e.rules})
				}
			}
		}
		for _, tree := range r.dispatchersOf(entries) {
			for c := range tree.Wanted() {
				if !yield(c) {
					return
				}
			}
		}
		for _, id := range slices.SortedFunc(maps.Keys(lists), xtables.CompareID) {
			if !yield(xtables.Wanted{Chain: listChain(id, lists[id])}) {
				return
			}
		}
	}
}
