//go:build linux

package xt

import (
	"context"
	"fmt"
	"net/netip"

	"kube-proxy/internal/xtables"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/trace"
)

// Packet and Sets are those of rules of a mode.
type (
	Packet = xtables.Packet
	Sets   = xtables.Sets
)

// Chains holds the chains of a mode that uses a Manager, as its Held returns them. A packet passes
// them as it passes the kernel's in [Trace]. But they have no rules of other programs,
// and the Packet answers for the node's routes.
type Chains struct {
	sets   Sets
	report func(line string)
	chains map[xtables.ChainID]*xtables.ChainState
}

// NewChains reads rules. It calls report with a line for each rule that a packet matches, and for
// each unknown one, which counts as not matching.
func NewChains(rules []xtables.ChainRule, sets Sets, report func(line string)) *Chains {
	c := &Chains{sets, report, map[xtables.ChainID]*xtables.ChainState{}}
	for _, r := range rules {
		if t, known := xtables.TableNamed(r.Table); known {
			id := t.Chain(r.Chain)
			if c.chains[id] == nil {
				c.chains[id] = &xtables.ChainState{Hooked: true}
			}
			c.chains[id].Rules = append(c.chains[id].Rules, xtables.Rule{Text: r.Rule})
		}
	}
	return c
}

// Chain returns a chain, nil if it does not exist.
func (c *Chains) Chain(id xtables.ChainID) (*xtables.ChainState, error) { return c.chains[id], nil }

// Pass sends a packet through a chain of a table, which changes it. It returns Drop, Reject, or
// Pass for a packet that continues. The error is of a set.
func (c *Chains) Pass(ctx context.Context, table, chain string, p *Packet) (trace.Verdict, error) {
	t, known := xtables.TableNamed(table)
	if !known {
		return "", fmt.Errorf("there is no table %s of iptables", table)
	}
	w := newWalker(ctx, trace.Packet{From: p.From, To: p.To, Proto: p.Proto}, c, own{p})
	w.report, w.allOurs, w.sets = c.report, true, c.sets
	on := w.base([]follow.Flow{{Share: 1, State: follow.State{To: p.To, Mark: p.Mark, Masqueraded: p.Masqueraded}}},
		t.Chain(chain))
	if w.err != nil {
		return "", w.err
	}
	for _, f := range on { // it is one: no rule here is random
		p.Mark, p.Masqueraded = f.Mark, f.Masqueraded
		return trace.Pass, nil
	}
	return w.ends[0].Verdict, nil
}

// own is a packet, as the route of a walk through a mode's own chains.
type own struct{ *Packet }

func (p own) here(_ *walker, a netip.Addr) bool {
	if a == p.From.Addr() {
		return p.FromHere
	}
	return p.ToHere
}

func (p own) comesIn(*walker) (string, bool)            { return p.In, true }
func (p own) leaves(*walker, netip.Addr) (string, bool) { return p.Out, true }

// asOf is the packet as a flow is, with what sets match: not FromHere and ToHere.
func (w *walker) asOf(f follow.Flow) Packet {
	in, _ := w.route.comesIn(w)
	out, _ := w.route.leaves(w, f.To.Addr())
	return Packet{From: w.packet.From, To: f.To, Proto: w.packet.Proto, In: in, Out: out, Mark: f.Mark,
		Masqueraded: f.Masqueraded}
}
