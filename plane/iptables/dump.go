//go:build linux

package iptables

import (
	"context"
	"fmt"
	"kube-proxy/internal/xtables"
	"slices"
	"strings"
)

// Dump lists our chains, and the rules that lead to them, as the kernel has them, without comments.
func (p *Plane) Dump() (string, error) {
	have, rules := newSnapshot(), map[xtables.ChainID]string{}
	err := p.tool.Lines(context.Background(), func(line xtables.SavedLine) {
		t, _ := xtables.TableNamed(line.Table)
		id := xtables.ChainID{Table: t, Name: string(line.Chain)}
		switch {
		case t >= xtables.Tables:
		case line.Kind == xtables.SavedChain && xtables.Ours(id):
			rules[id] = ""
		case line.Kind == xtables.SavedRule && xtables.Ours(id) && id.Name != xtables.NodeFirewall:
			rules[id] += "\n    " + xtables.WithoutComments(string(line.Rest))
		case line.Kind == xtables.SavedRule:
			have.rule(id, line, nil)
		}
	})
	if err != nil {
		return "", fmt.Errorf("iptables: dump: %w", err)
	}
	var lines []string
	for id, text := range rules {
		lines = append(lines, fmt.Sprintf("%s %s%s", id.Table, id.Name, text))
	}
	for j := range have.jumps {
		lines = append(lines, fmt.Sprintf("%s %s has %s", j.From.Table, j.From.Name, j.Rule))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n", nil
}
