package iptables

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"kube-proxy/plane"
)

// Drift never has a value: others' changes to iptables are not told to anybody. They are noticed by the audits that the
// engine asks for once in a sync period (DP-13).
func (p *Plane) Drift() <-chan struct{} { return nil }

// listPeriod is the time after which an Audit lists all rules though nobody seems to have changed any: what nothing
// notices is mended as soon as by upstream's hourly sync (DP-11).
const listPeriod = time.Hour

// Audit compares all our chains, and the rules that lead to them, with what was applied, and writes again what differs.
// It does so only if anybody else has changed any rule since the last time, which costs nothing to find out; where the
// kernel does not tell that, if canary chains or the rules that lead to our chains are gone (DP-13); and with full once an
// hour all the same. It returns the number of chains, rules and settings that were mended.
//
// What the rules depend on may have been set anew since: whether conntrack is liberal (DP-09).
func (p *Plane) Audit(ctx context.Context, full bool) (mended int, err error) {
	if p.st == nil {
		return 0, fmt.Errorf("iptables: audit before a reset: %w", plane.ErrStateLost)
	}
	if !(full && time.Since(p.listed) >= listPeriod) && p.untouched(ctx) {
		return p.auditSettings(ctx)
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

// untouched reports whether nothing shows that somebody else has changed rules.
func (p *Plane) untouched(ctx context.Context) bool {
	if now := p.look(); now != (fingerprint{}) {
		return now == p.seen
	}
	// The legacy programs read a whole table to tell one chain, so there to compare all is the cheapest look.
	return p.tool.backend != Legacy && p.canaries(ctx)
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

// print is a chain as it was written, and as iptables-save prints that.
type print struct{ written, printed digest }

// reads reports whether a chain that is printed so may be one that was written so.
func (p *Plane) reads(id chainID, written, printed digest) bool {
	return printed == written || p.prints[id] == print{written, printed}
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
				p.prints = map[chainID]print{}
			}
			p.prints[id] = print{d, is}
			n++
		}
	}
	for j := range p.st.jumps {
		if !have.jumps[j] && !before.jumps[j] && !p.unread[j] {
			if p.unread == nil {
				p.unread = map[jump]bool{}
			}
			p.unread[j] = true
			n++
		}
	}
	maps.DeleteFunc(p.prints, func(id chainID, _ print) bool { _, known := p.st.kernel[id]; return !known })
	p.count(func(s *Stats) { s.Unlike = len(p.prints) + len(p.unread) })
	return n, nil
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
		if j.from.name != nodeFirewall && !have.jumps[j] && !p.unread[j] {
			return false
		}
	}
	return true
}
