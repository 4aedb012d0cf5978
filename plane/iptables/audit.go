//go:build linux

package iptables

import (
	"context"
	"fmt"
	"maps"
	"time"

	"kube-proxy/internal/xtables"
	"kube-proxy/plane"
)

// Drift has a value when an audit is to go on. Others' changes to iptables are not told to anybody: they are noticed by the audits that the
// engine asks for once in a sync period (DP-13).
func (p *Plane) Drift() <-chan struct{} { return p.drift }

// Audit compares all our chains, and the rules that lead to them, with what was applied, and writes again what differs.
// It does so only if anybody else may have changed any rule since the last time (DP-13), which costs nothing to find out; and
// with full once an hour all the same. Where there are many chains, of the nft back end, it looks at some of them in each call, and lists all rules only
// once any differs. It returns the number of chains, rules and settings that were mended.
//
// What the rules depend on may have been set anew since: whether conntrack is liberal (DP-09).
func (p *Plane) Audit(ctx context.Context, full bool) (mended int, err error) {
	if p.st == nil {
		return 0, fmt.Errorf("iptables: audit: %w", plane.ErrNotSetUp)
	}
	if p.round == nil && !(full && time.Since(p.listed) >= xtables.ListPeriod) && p.untouched() {
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
	mended = comparison{p, p.st, have}.count()
	p.st.kubelet = have.kubelet
	if mended > 0 {
		p.newSync()
		if err := p.rewrite(ctx, p.st.renderer, have); err != nil {
			return 0, fmt.Errorf("iptables: mend %d chains: %w", mended, err)
		}
		odd, err := p.learn(ctx, have)
		if err != nil {
			return mended, fmt.Errorf("iptables: audit: look at what was mended: %w", err)
		}
		mended -= odd
	}
	set, err := p.auditSettings(ctx)
	return mended + set, err
}

// untouched reports whether it is known that nobody else has changed any rule.
func (p *Plane) untouched() bool {
	now := p.look()
	return now != xtables.Fingerprint{} && now == p.seen
}

// auditSettings brings in line what the rules and the kernel's settings say to each other.
func (p *Plane) auditSettings(ctx context.Context) (mended int, err error) {
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
		mended = 1
	}
	return mended, err
}

// reads reports whether a chain that is printed so may be one that was written so.
func (p *Plane) reads(id xtables.ChainID, written, printed xtables.Digest) bool {
	return printed.Alike(written) || p.prints[id] == xtables.Printed{Written: written, As: printed}
}

// learn looks at what was just mended, and remembers chains and rules that are printed as before: nobody had changed them, but
// this iptables prints them otherwise than they are written. To mend them each time would never end. It returns how many
// they are.
func (p *Plane) learn(ctx context.Context, before *snapshot) (n int, err error) {
	ours := p.seen
	have, err := p.list(ctx)
	if err != nil {
		return 0, err
	}
	if ours != p.seen || p.seen != p.look() { // others write meanwhile; the next time tells
		return 0, nil
	}
	for id, d := range p.st.kernel {
		if is, known := have.chains[id]; known && !p.reads(id, d, is) && is == before.chains[id] {
			if p.prints == nil {
				p.prints = map[xtables.ChainID]xtables.Printed{}
			}
			p.prints[id] = xtables.Printed{Written: d, As: is}
			n++
		}
	}
	for j := range p.st.jumps {
		if !have.jumps[j] && !before.jumps[j] && !p.unread[j] {
			if p.unread == nil {
				p.unread = map[xtables.Jump]bool{}
			}
			p.unread[j] = true
			n++
		}
	}
	maps.DeleteFunc(p.prints, func(id xtables.ChainID, _ xtables.Printed) bool { _, known := p.st.kernel[id]; return !known })
	p.count(func(s *Stats) { s.Unlike = len(p.prints) + len(p.unread) })
	return n, nil
}

// look returns the fingerprint of all tables, zero if it cannot be told.
func (p *Plane) look() xtables.Fingerprint {
	if p.fingerprints == nil {
		return xtables.Fingerprint{}
	}
	m, err := p.fingerprints.Now()
	if err != nil {
		return xtables.Fingerprint{}
	}
	return m
}
