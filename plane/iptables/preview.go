//go:build linux

package iptables

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// Render returns the input of iptables-restore --noflush with which a plane on an empty machine
// would write the table. It needs no iptables and changes nothing.
func Render(cfg Config, want *lb.Table) ([]byte, error) {
	var paper paper
	cfg.Runner, cfg.Backend = &paper, xtables.NFT
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	p.single, p.pace.first = true, math.MaxInt
	if _, err := p.Reset(context.Background(), want); err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	return paper.text.Bytes(), nil
}

// paper is an iptables that records its input.
type paper struct{ text bytes.Buffer }

func (*paper) LookPath(name string) (string, error) { return name, nil }

func (p *paper) Pipe(_ context.Context, in func(io.Writer) error, out func(io.Reader) error, _ string,
	args ...string) error {
	said := ""
	if slices.Contains(args, "--version") {
		said = "iptables v1.8.9 (nf_tables)"
	}
	if out != nil {
		return out(strings.NewReader(said))
	}
	return in(&p.text)
}
