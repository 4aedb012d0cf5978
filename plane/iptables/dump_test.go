//go:build linux

package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"kube-proxy/internal/xtables"
)

// Dump lists our chains, and the rules that jump to them, as the kernel has them, without comments.
func (p *Plane) Dump() (string, error) {
	rules := map[xtables.ChainID]string{}
	have, err := p.Snapshot(context.Background(), xtables.Ours, func(id xtables.ChainID, rule []byte) {
		rules[id] += "\n    " + xtables.WithoutComments(string(rule))
	})
	if err != nil {
		return "", fmt.Errorf("iptables: dump: %w", err)
	}
	var lines []string
	for id := range have.Chains {
		lines = append(lines, fmt.Sprintf("%s %s%s", id.Table, id.Name, rules[id]))
	}
	for j := range maps.Keys(have.Jumps) {
		lines = append(lines, fmt.Sprintf("%s %s has %s", j.From.Table, j.From.Name, j.Rule))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n", nil
}
