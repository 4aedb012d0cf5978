package iptables

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var comments = regexp.MustCompile(` ?-m comment --comment ("[^"]*"|\S+)`)

// Dump lists our chains, and the rules that lead to them, as the kernel has them, without comments.
func (p *Plane) Dump() (string, error) {
	have, err := p.tool.snapshot(context.Background(), true)
	if err != nil {
		return "", fmt.Errorf("iptables: dump: %w", err)
	}
	var lines []string
	for id := range have.chains {
		text := fmt.Sprintf("%s %s", id.table, id.name)
		for _, r := range have.rules[id] {
			text += "\n    " + strings.TrimSpace(comments.ReplaceAllString(r, ""))
		}
		lines = append(lines, text)
	}
	for j := range have.jumps {
		lines = append(lines, fmt.Sprintf("%s %s has %s", j.from.table, j.from.name, comments.ReplaceAllString(j.rule, "")))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n", nil
}
