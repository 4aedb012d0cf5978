package iptables

import (
	"context"
	"fmt"
	"strings"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Drift has a value when it is time to look at the canaries: others' changes to iptables are not told to anybody.
func (p *Plane) Drift() <-chan struct{} { return p.drift }

// Audit compares all our chains, and the rules that lead to them, with what was applied, and writes again what differs.
// Without full it does so only if anybody else has changed any rule since the last time, which costs nothing to find out;
// where the kernel does not tell that, if canary chains or the rules that lead to our chains are gone (DP-13). It returns
// the number of chains and rules that were mended.
func (p *Plane) Audit(ctx context.Context, full bool) (mended int, err error) {
	if p.st == nil {
		return 0, fmt.Errorf("iptables: audit before a reset: %w", plane.ErrStateLost)
	}
	if !full {
		switch now := p.look(); {
		case now != mark{}:
			if now == p.seen {
				return 0, nil
			}
		// The legacy programs read a whole table to tell one chain, so there to compare all is the cheapest look.
		case p.tool.backend != Legacy && p.canaries(ctx):
			return 0, nil
		}
	}
	have, err := p.list(ctx)
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
	p.begin()
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

// builtin are the chains where our jumps are.
var builtin = [tables][]string{
	filter: {"INPUT", "FORWARD", "OUTPUT"},
	nat:    {"PREROUTING", "OUTPUT", "POSTROUTING"},
}

// canaries reports whether all canary chains are there, and the rules that lead to our chains: when somebody flushes a
// table, they go with all the rest.
func (p *Plane) canaries(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	have := newSnapshot()
	for t := range tables {
		args := append([]string{"-t", t.String()}, p.tool.wait...)
		if _, err := p.tool.run.Run(ctx, nil, p.tool.program, append(args, "-S", canary)...); err != nil {
			return false
		}
		for _, name := range builtin[t] {
			out, err := p.tool.run.Run(ctx, nil, p.tool.program, append(args, "-S", name)...)
			if err != nil {
				return false
			}
			for line := range strings.Lines(string(out)) {
				if rule, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "-A "+name+" "); ok {
					have.rule(t, []byte(name), []byte(rule), nil)
				}
			}
		}
	}
	for j := range p.st.jumps {
		if j.from.name != nodeFirewall && !have.jumps[j] {
			return false
		}
	}
	return true
}

// watch asks for a look at the canaries from time to time, until stop is closed (DP-13).
func (p *Plane) watch(period time.Duration, stop <-chan struct{}) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			select {
			case p.drift <- struct{}{}:
			default: // not looked yet
			}
		}
	}
}
