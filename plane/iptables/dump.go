//go:build linux

package iptables

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

var comments = regexp.MustCompile(` ?-m comment --comment ("[^"]*"|\S+)`)

// Dump lists our chains, and the rules that lead to them, as the kernel has them, without comments.
func (p *Plane) Dump() (string, error) {
	have, rules := newSnapshot(), map[chainID]string{}
	err := p.tool.list(context.Background(), func(r io.Reader) error {
		for line, err := range readSaved(r) {
			if err != nil {
				return err
			}
			t, _ := tableNamed(line.table)
			id := chainID{t, string(line.chain)}
			switch rule := comments.ReplaceAllString(string(line.rest), ""); {
			case t >= tables || line.kind == savedUnlistable:
			case line.kind == savedChain && ours(id):
				rules[id] = ""
			case line.kind == savedRule && ours(id) && id.name != nodeFirewall:
				rules[id] += "\n    " + strings.TrimSpace(rule)
			case line.kind == savedRule:
				have.rule(t, line.chain, line.rest, nil)
			}
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("iptables: dump: %w", err)
	}
	var lines []string
	for id, text := range rules {
		lines = append(lines, fmt.Sprintf("%s %s%s", id.table, id.name, text))
	}
	for j := range have.jumps {
		lines = append(lines, fmt.Sprintf("%s %s has %s", j.from.table, j.from.name, comments.ReplaceAllString(j.rule, "")))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n", nil
}
