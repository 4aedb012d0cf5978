//go:build linux

package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"kube-proxy/internal/xtables"
	"kube-proxy/plane"
)

// Drift has a value while an audit has more windows to check. The audits of each sync period find
// changes of other programs (DP-13).
func (p *Plane) Drift() <-chan struct{} { return p.drift }

// Audit compares all our chains and the jumps to them with the applied state, and repairs them. It
// does so only if another program may have changed a rule since the last time (DP-13), which costs
// nothing to find out, or with full once an hour. With many chains of the nft back end, each call
// checks some of them, and a difference makes it list all rules. It returns the number of repaired
// chains, rules and settings.
//
// It also follows a setting that the rules depend on: whether conntrack is liberal (DP-09).
func (p *Plane) Audit(ctx context.Context, full bool) (repaired int, err error) {
	if p.st == nil {
		return 0, fmt.Errorf("iptables: audit: %w", plane.ErrNotSetUp)
	}
	if p.round == nil && !p.Due(full) {
		return p.auditSettings(ctx)
	}
	if p.inWindows() {
		same, err := p.nextWindow(ctx)
		if err != nil {
			return 0, fmt.Errorf("iptables: audit: %w", err)
		}
		if same {
			return p.auditSettings(ctx)
		}
	}
	have, err := p.list(ctx)
	if err != nil {
		return 0, fmt.Errorf("iptables: audit: %w", err)
	}
	repaired = comparison{p, p.st, have}.count()
	p.st.kubelet, p.st.used = have.Kubelet, have.Used
	if repaired > 0 {
		p.newSync()
		if err := p.rewrite(ctx, p.st.renderer, have); err != nil {
			return 0, fmt.Errorf("iptables: repair %d chains: %w", repaired, err)
		}
		odd, err := p.Learn(ctx, p.st.Digests, slices.Collect(maps.Keys(p.st.jumps)), have.Snapshot)
		p.retry() // Learn has listed the rules too
		if err != nil {
			return repaired, fmt.Errorf("iptables: audit: %w", err)
		}
		repaired = max(0, repaired-odd-p.st.undeleted)
	}
	set, err := p.auditSettings(ctx)
	return repaired + set, err
}

// auditSettings updates the rules that depend on the kernel's settings, and the settings that
// depend on the rules.
func (p *Plane) auditSettings(ctx context.Context) (repaired int, err error) {
	if p.dry {
		return 0, nil
	}
	if r := p.st.renderer; r.liberal != liberal() {
		r.liberal = !r.liberal
		if err := p.rewrite(ctx, r, p.st.snapshot()); err != nil {
			return 0, fmt.Errorf("iptables: follow nf_conntrack_tcp_be_liberal: %w", err)
		}
	}
	if !p.st.localnet() {
		return 0, nil
	}
	wrote, err := p.openLocalnet()
	if wrote {
		repaired = 1
	}
	return repaired, err
}

// Probe rewrites KUBE-MARK-MASQ: one chain of one rule, in the table that almost all frontends are
// written to. The legacy programs write that whole table, as for each change. So the probe fails
// for every reason that a change may fail for, except an invalid frontend.
//
// Declaring an empty chain again, such as a canary, would not suffice: the nft programs would find
// no change, and the kernel would commit nothing. The probe loses the count of the rule. Audit
// checks our other chains.
func (p *Plane) Probe(ctx context.Context) error {
	if p.st == nil {
		return fmt.Errorf("iptables: probe: %w", plane.ErrNotSetUp)
	}
	var b xtables.Batch
	b.Section(xtables.NAT).Put(p.st.marking())
	last := p.Stats().Last // it is no sync (MT-12)
	err := p.Restore(ctx, &b)
	p.Count(func(s *xtables.Stats) { s.Last = last })
	if err != nil {
		return fmt.Errorf("iptables: probe: %w", err)
	}
	return nil
}
