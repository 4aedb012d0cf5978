//go:build linux

package xt

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"kube-proxy/internal/xtables"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/trace"
)

// route answers the queries of rules about the node.
type route interface {
	// here reports whether an address of the packet is one of this node.
	here(w *walker, a netip.Addr) bool
	// comesIn returns the input interface of the packet, "" without one; known is false if it is
	// unknown. leaves returns the output interface.
	comesIn(w *walker) (name string, known bool)
	leaves(w *walker, destination netip.Addr) (name string, known bool)
}

// holder has chains; nil for one that is not there.
type holder interface {
	Chain(id xtables.ChainID) (*xtables.ChainState, error)
}

// walker takes one packet through the chains.
type walker struct {
	ctx    context.Context
	packet trace.Packet
	holds  holder
	route  route
	sets   Sets // nil without information about ipsets
	read   map[xtables.ChainID]*chain
	// allOurs: no other program has rules.
	allOurs bool
	// report receives each line at once; nil to keep them.
	report func(line string)

	// conn is the packet's connection. any: rules that are not understood are followed both ways.
	conn Conn
	any  bool
	sent bool         // a program of this node sends the packet, of any
	as   *follow.Rule // the rule in hand, of any
	// source is the packet's source, if any.
	source netip.AddrPort

	// leaving: the outgoing interface is known. arriving: the incoming interface is known.
	leaving, arriving bool
	// sending: the packet is at the hook OUTPUT, with the interface of its first destination.
	sending bool
	// doubt: an earlier unknown rule of the base chain might have accepted or dropped the packet.
	doubt bool
	ends  []follow.Flow

	said follow.Said
	// silent: rules are not reported. atHome: the node itself is a backend for which the client's
	// address should have been masqueraded.
	silent, atHome bool
	err            error // of the route or of a set
}

// maxSaid is the number of reported rules of a packet's path: a frontend may have thousands of
// endpoints.
const maxSaid = 200

// maxDeep is the limit of nested jumps; the kernel's is half of that.
const maxDeep = 64

// all passes the hooks, in the order of the kernel.
func (w *walker) all() error {
	flows := []follow.Flow{{Share: 1, State: follow.State{To: w.packet.To}}}
	if w.packet.Host {
		w.leaving, w.sending = true, true
		flows = w.hook(flows, "OUTPUT", xtables.Raw, xtables.Mangle, xtables.NAT, xtables.Filter)
		w.sending = false
		flows = w.hook(flows, "POSTROUTING", xtables.Mangle, xtables.NAT)
		here, away := follow.Part(flows, w.staysHere)
		w.leaving, w.arriving = false, true // through the interface lo
		flows = append(w.hook(here, "INPUT", xtables.Mangle, xtables.Filter), away...)
	} else {
		w.arriving = true
		flows = w.hook(flows, "PREROUTING", xtables.Raw, xtables.Mangle, xtables.NAT)
		here, away := follow.Part(flows, w.staysHere)
		here = w.asked(w.hook(here, "INPUT", xtables.Mangle, xtables.Filter))
		w.leaving = true
		away = w.hook(away, "FORWARD", xtables.Mangle, xtables.Filter)
		w.arriving = false
		flows = append(here, w.hook(away, "POSTROUTING", xtables.Mangle, xtables.NAT)...)
	}
	w.ends = append(w.ends, flows...)
	return w.err
}

// staysHere distinguishes packets for this node from forwarded ones.
func (w *walker) staysHere(f follow.Flow) bool { return w.route.here(w, f.To.Addr()) }

// asked checks whether packets to the node itself should have been masqueraded. They are not,
// because they do not leave the node.
func (w *walker) asked(here []follow.Flow) []follow.Flow {
	w.silent = true
	for i := range here {
		f := &here[i]
		if !f.Translated {
			continue
		}
		for _, g := range w.hook([]follow.Flow{*f}, "POSTROUTING", xtables.NAT) {
			f.Masqueraded = f.Masqueraded || g.Masqueraded
		}
		w.atHome = w.atHome || f.Masqueraded
	}
	w.silent = false
	return here
}

// hook passes packets through the base chains of that name, and returns those that continue.
func (w *walker) hook(flows []follow.Flow, name string, tables ...xtables.Table) []follow.Flow {
	for _, t := range tables {
		if len(flows) > 0 && w.err == nil {
			flows = w.base(flows, t.Chain(name))
		}
	}
	return flows
}

// base has packets pass a base chain.
func (w *walker) base(flows []follow.Flow, id xtables.ChainID) (on []follow.Flow) {
	c, err := w.chain(id)
	if c == nil || !c.Hooked {
		w.fail(err)
		return flows
	}
	w.doubt = false
	back, ended, err := follow.Chains{Ctx: w.ctx, Most: maxDeep, Read: func(name string) (follow.Chain, error) {
		c, err := w.chain(id.Table.Chain(name))
		if c == nil { // it went while we read
			return nil, err
		}
		return c, err
	}}.Pass(id.Name, flows)
	w.fail(err)
	if c.Drops && len(back) > 0 && w.judges(id, "-P "+id.Name+" DROP") {
		w.say(id, "-P "+id.Name+" DROP", "")
		for i := range back {
			back[i].Verdict = trace.Drop
		}
	}
	refused, on := follow.Part(append(back, ended...), func(f follow.Flow) bool { return f.Verdict != "" })
	w.ends = append(w.ends, refused...)
	return follow.Merge(on)
}

// chain is one that was read.
type chain struct {
	*xtables.ChainState
	w     *walker
	id    xtables.ChainID
	rules []rule
}

// chain reads a chain once; nil if it does not exist.
func (w *walker) chain(id xtables.ChainID) (*chain, error) {
	if c, again := w.read[id]; again {
		return c, w.ctx.Err()
	}
	held, err := w.holds.Chain(id)
	if err == nil {
		err = w.ctx.Err()
	}
	var c *chain
	if held != nil && err == nil {
		c = &chain{held, w, id, make([]rule, len(held.Rules))}
		for i, r := range held.Rules {
			c.rules[i] = readText(r.Text, w.sets)
		}
	}
	w.read[id] = c
	return c, err
}

func (c *chain) Rules() int { return len(c.rules) }

// Meet is part of follow.Chain.
func (c *chain) Meet(i int, flows []follow.Flow) (met []follow.Met, rest []follow.Flow, err error) {
	return c.w.meet(c.id, &c.rules[i], flows)
}

// meet applies a rule of a chain to flows.
func (w *walker) meet(id xtables.ChainID, r *rule, flows []follow.Flow) (met []follow.Met, rest []follow.Flow,
	err error) {
	var those []follow.Flow
	for _, f := range flows {
		if w.any {
			w.packet.From = w.source
			if f.From.IsValid() { // rules before have changed it
				w.packet.From = f.From
			}
		}
		odds := r.odds(w, f)
		switch {
		case odds == 0:
			rest = append(rest, f)
		case odds == unreported && w.any:
			rest = append(rest, f)
			if f.Share = 0; f.Doubt == nil {
				f.Doubt = w.as
			}
			those = append(those, f)
		case odds == unreported:
			w.say(id, r.text, "not known whether the packet meets it")
			w.doubt = w.doubt || r.do.kind != follow.Next
			rest = append(rest, f)
		case r.recalls != "" && w.any:
			if _, known := remembers(r.recalls, w.from(), r.within); known {
				those = append(those, f)
			} else {
				rest = append(rest, f)
			}
		case r.recalls != "":
			rest = append(rest, f)
			if age, known := remembers(r.recalls, w.from(), r.within); known && !f.Affine {
				w.say(id, r.text, fmt.Sprintf("the client is remembered, last seen %.0f s ago", age.Seconds()))
				f.Affine, f.Share = true, 0
				those = append(those, f)
			}
		default:
			if odds < 1 {
				left := f
				left.Share *= 1 - odds
				rest = append(rest, left)
			}
			f.Share *= odds
			those = append(those, f)
		}
	}
	if len(those) == 0 || w.err != nil {
		return nil, rest, w.err
	}
	if r.do.refuses && !w.judges(id, r.text) {
		return nil, append(rest, those...), nil
	}
	if r.do.source && !w.any && !w.allOurs && !xtables.Ours(id) { // not by the mark of kube-proxy
		return nil, append(rest, those...), nil
	}
	if r.recalls == "" || w.any {
		w.say(id, r.text, "")
	}
	for i := range those {
		if before := those[i].To; r.do.change != nil {
			r.do.change(w, &those[i])
			if those[i].To != before {
				those[i].TranslatedBy = w.as
			}
		}
		if those[i].Verdict != "" {
			those[i].By = w.as
		}
	}
	return []follow.Met{{Flows: those, Kind: r.do.kind, Chain: r.do.chain}}, rest, w.err
}

// judges reports whether a refusal by a rule of a chain counts: not that of another program after
// an unknown rule.
func (w *walker) judges(by xtables.ChainID, text string) bool {
	if w.doubt && !w.allOurs && (!xtables.Ours(by) || by.Name == xtables.NodeFirewall) {
		w.say(by, text, "not judged: a rule before it, which is not understood, may have let the packet pass")
		return false
	}
	return true
}

// say reports a rule of the path once.
func (w *walker) say(id xtables.ChainID, text, note string) {
	if w.silent {
		return
	}
	line := "-t " + id.Table.String() + " "
	if w.any {
		line = ""
	}
	if strings.HasPrefix(text, "-P ") {
		line += text
	} else {
		line = strings.TrimSuffix(line+"-A "+id.Name+" "+text, " ") // a rule may be empty, and only count
	}
	if note != "" {
		line += " (" + note + ")"
	}
	if w.said.Say(line) && w.report != nil {
		w.report(line)
	}
}

// from is the source of the packet.
func (w *walker) from() netip.Addr { return w.packet.From.Addr() }

func (w *walker) fail(err error) {
	if err != nil && w.err == nil {
		w.err = err
	}
}

// answer sums up the result.
func (w *walker) answer() trace.Kernel {
	lines := w.said.Lines
	if more := len(lines) - maxSaid; more > 0 {
		lines = append(lines[:maxSaid], fmt.Sprintf("and %d rules more", more))
	}
	k := follow.Answer(w.packet, w.ends, lines)
	if w.atHome {
		k.Way = append(k.Way, "a backend is the node itself, which sees the client's own address: nothing leaves the "+
			"node that could be masqueraded")
	}
	return k
}
