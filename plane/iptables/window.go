//go:build linux

package iptables

import (
	"context"
	"maps"
	"slices"
	"time"

	"kube-proxy/internal/xtables"
)

// windowSize is the approximate number of chains and rules that one Audit checks of a larger total
// (TN-73).
const windowSize = 6000

// inWindows reports whether an audit is too large for one call. The legacy programs list all rules
// or none.
func (p *Plane) inWindows() bool {
	return p.Tool.Backend == xtables.NFT && !p.dry && len(p.st.Digests)+p.st.Rules[xtables.NAT]+
		p.st.Rules[xtables.Filter] > p.window
}

// nextWindow checks the next window of the audit, or the first of a new one. It reads each chain
// from the kernel separately, and writes happen between windows. It reports whether everything seen
// so far is as wanted, and requests the next window by Drift; if anything differs, the plane lists
// all rules.
func (p *Plane) nextWindow(ctx context.Context) (same bool, err error) {
	h, err := p.Tool.OpenHolding(ctx)
	if err != nil {
		return false, err
	}
	defer h.Close()
	if p.round == nil {
		p.Begin()
		if same, err := p.looksComplete(h); err != nil || !same {
			return false, err
		}
		p.round = slices.Collect(maps.Keys(p.st.Digests))
	}
	for n := 0; n < p.window && len(p.round) > 0; p.round = p.round[1:] {
		id := p.round[0]
		if same, err := p.holdsStill(h, id); err != nil || !same {
			p.round = nil
			return false, err
		}
		n += 1 + int(p.st.Digests[id].Rules)
	}
	if len(p.round) == 0 {
		p.round = nil
		p.ListedAt = time.Now()
		return true, nil
	}
	select {
	case p.drift <- struct{}{}:
	default:
	}
	return true, nil
}

// looksComplete reports whether all jumps to our chains and all needed chains exist, and no others.
func (p *Plane) looksComplete(h xtables.Holding) (bool, error) {
	have := xtables.NewSnapshot()
	for t := range xtables.Tables {
		names, err := h.Names(t)
		if err != nil {
			return false, err
		}
		for _, name := range names {
			if id := t.Chain(name); xtables.Ours(id) {
				have.Chains[id] = xtables.Digest{}
			}
		}
	}
	for j := range p.st.jumps {
		c, err := h.Chain(j.From)
		if err != nil {
			return false, err
		}
		if c == nil {
			return false, nil
		}
		for _, r := range c.Rules {
			have.AddJump(r, j.From)
		}
	}
	c := comparison{p, p.st, &snapshot{Snapshot: have}}
	if len(c.stale()) > 0 || slices.ContainsFunc(slices.Collect(maps.Keys(p.st.jumps)), c.lacksJump) {
		return false, nil
	}
	for id := range p.st.Digests {
		if _, there := have.Chains[id]; !there {
			return false, nil
		}
	}
	return true, nil
}

// holdsStill reports whether the kernel has a chain as written, or the chain is no longer needed.
func (p *Plane) holdsStill(h xtables.Holding, id xtables.ChainID) (bool, error) {
	want, needed := p.st.Digests[id]
	if !needed || id.Name == xtables.NodeFirewall {
		return true, nil
	}
	c, err := h.Chain(id)
	if err != nil || c == nil {
		return false, err
	}
	is := xtables.NewContent()
	for _, r := range c.Rules {
		is.Add(r.Text, false)
	}
	return p.Holds(id, want, is.Digest()), nil
}
