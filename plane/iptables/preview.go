//go:build linux

package iptables

import (
	"context"
	"fmt"
	"math"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// Render returns what a plane on an empty machine hands to iptables-restore --noflush for the table. It needs no
// iptables and changes nothing.
func Render(cfg Config, want *lb.Table) ([]byte, error) {
	var paper paper
	cfg.Runner, cfg.Backend = &paper, xtables.NFT
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	p.single, p.pace = true, math.MaxInt
	if _, err := p.Reset(context.Background(), want); err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	return paper.text, nil
}

// paper is an iptables that writes down what it is given.
type paper struct{ text []byte }

func (*paper) LookPath(name string) (string, error) { return name, nil }

func (p *paper) Run(_ context.Context, stdin []byte, _ string, args ...string) ([]byte, error) {
	if len(args) == 1 && args[0] == "--version" {
		return []byte("iptables v1.8.9 (nf_tables)"), nil
	}
	p.text = append(p.text, stdin...)
	return nil, nil
}
