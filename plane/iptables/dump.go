//go:build linux

package iptables

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Dump lists our chains, and the rules that lead to them, as the kernel has them, without comments.
func (p *Plane) Dump() (string, error) {
	have, rules := newSnapshot(), map[chainID]string{}
	err := p.tool.lines(context.Background(), func(line savedLine) {
		t, _ := tableNamed(line.table)
		id := chainID{t, string(line.chain)}
		switch {
		case t >= tables:
		case line.kind == savedChain && ours(id):
			rules[id] = ""
		case line.kind == savedRule && ours(id) && id.name != nodeFirewall:
			rules[id] += "\n    " + WithoutComments(string(line.rest))
		case line.kind == savedRule:
			have.rule(id, line, nil)
		}
	})
	if err != nil {
		return "", fmt.Errorf("iptables: dump: %w", err)
	}
	var lines []string
	for id, text := range rules {
		lines = append(lines, fmt.Sprintf("%s %s%s", id.table, id.name, text))
	}
	for j := range have.jumps {
		lines = append(lines, fmt.Sprintf("%s %s has %s", j.from.table, j.from.name, j.rule))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n", nil
}
