package iptables

import (
	"context"
	"fmt"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Drift has a value when somebody else may have changed our chains.
func (p *Plane) Drift() <-chan struct{} { return p.drift }

// Audit looks whether the canary chains are still there (DP-13) and, with full or without the canaries, compares all
// our chains and the rules that lead to them with what was applied. What differs is written again. It returns the
// number of chains and rules that were mended.
func (p *Plane) Audit(ctx context.Context, full bool) (mended int, err error) {
	if p.st == nil {
		return 0, fmt.Errorf("iptables: audit before a reset: %w", plane.ErrStateLost)
	}
	if !full && p.canaries(ctx) {
		return 0, nil
	}
	p.stats.Saves++
	have, err := p.tool.snapshot(ctx, false)
	if err != nil {
		return 0, fmt.Errorf("iptables: audit: %w", err)
	}
	mended = p.st.differences(have)
	if mended == 0 {
		return 0, nil
	}
	st := p.st
	rows := make([]*lb.Frontend, 0, len(st.rows))
	for _, r := range st.rows {
		rows = append(rows, r.front)
	}
	p.st = nil
	if err := p.hold(ctx, st.renderer, rows, have); err != nil {
		return 0, fmt.Errorf("iptables: mend %d chains: %w: %w", mended, err, plane.ErrStateLost)
	}
	return mended, nil
}

// differences counts what is not as it was applied.
func (st *state) differences(have *snapshot) int {
	n := 0
	for id, d := range st.kernel {
		if is, known := have.chains[id]; !known || is != d && id.name != nodeFirewall {
			n++
		}
	}
	for id := range have.chains {
		if _, known := st.kernel[id]; !known && isDynamic(id) {
			n++
		}
	}
	for j := range st.jumps {
		if !have.jumps[j] {
			n++
		}
	}
	return n
}

// canaries reports whether all canary chains are there: when somebody flushes a table, they go with all the rest.
func (p *Plane) canaries(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for t := range tables {
		args := append([]string{"-t", t.String()}, p.tool.wait...)
		if _, err := p.tool.run.Run(ctx, nil, p.tool.program, append(args, "-S", canary)...); err != nil {
			return false
		}
	}
	return true
}
