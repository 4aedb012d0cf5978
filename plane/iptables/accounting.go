//go:build linux

package iptables

import (
	"bytes"
	"context"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/xtables"
)

// Counters returns the reader of the rules' counters. ok is false if the rules count nothing:
// before the first Reset, or without the match nfacct. Any goroutine may call it at any time.
func (p *Plane) Counters() (c xtables.Counters, ok bool, err error) {
	nf := p.accounting.Load()
	if nf == nil {
		return c, false, nil
	}
	c.InvalidDropped, err = xtables.Packets(nf, xtables.InvalidDropped)
	if err == nil {
		c.LocalhostNodePorts, err = xtables.Packets(nf, xtables.LocalhostAccepted)
	}
	return c, err == nil, err
}

// account creates the counters if rules can use them: the kernel must have the match nfacct, and
// iptables must know it. Otherwise the rules do not count.
func (p *Plane) account(ctx context.Context) {
	if p.dry {
		return
	}
	if nf := p.accounting.Load(); nf != nil {
		if xtables.MakeCounters(nf) == nil { // another program may have deleted them
			return
		}
		p.accounting.Store(nil)
		p.base.counts = false
		nf.Close()
	}
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		return
	}
	if xtables.MakeCounters(nf) != nil {
		nf.Close()
		return
	}
	if p.countsAlready(ctx) || p.tryCounting(ctx) {
		p.base.counts = true
		p.accounting.Store(nf)
		return
	}
	xtables.DropCounters(nf, 0)
	nf.Close()
}

// countsAlready reports whether an earlier process wrote rules that count. Then no trial is needed.
func (p *Plane) countsAlready(ctx context.Context) bool {
	args := append([]string{"-t", "filter"}, p.Tool.Wait...)
	out, err := xtables.Output(ctx, p.Tool.Run, p.Tool.Program, append(args, "-S", xtables.Forward)...)
	return err == nil && bytes.Contains(out, []byte(xtables.Counting(xtables.InvalidDropped)))
}

// tryCounting writes such a rule to the canary of a table with few rules, and removes it again.
func (p *Plane) tryCounting(ctx context.Context) bool {
	before := p.Stats()
	defer p.Count(func(s *xtables.Stats) { *s = before }) // the metrics do not count the trial
	try := func(rules ...string) error {
		var b xtables.Batch
		b.Only(xtables.Mangle).Put(xtables.Chain{ID: xtables.Mangle.Chain(xtables.Canary), Rules: rules})
		return p.Restore(ctx, &b)
	}
	err := try(xtables.Counting(xtables.InvalidDropped))
	gone := try()
	return err == nil && gone == nil
}

// newSync resets the count of rules written by the last sync (MT-12).
func (p *Plane) newSync() { p.Count(func(s *xtables.Stats) { s.Last = xtables.Written{} }) }

// owned records the number of our rules.
func (p *Plane) owned() {
	n := xtables.Written{Filter: p.st.Rules[xtables.Filter], NAT: p.st.Rules[xtables.NAT]}
	for j := range p.st.jumps {
		switch j.From.Table {
		case xtables.Filter:
			n.Filter++
		case xtables.NAT:
			n.NAT++
		}
	}
	p.Count(func(s *xtables.Stats) { s.Owned = n })
}
