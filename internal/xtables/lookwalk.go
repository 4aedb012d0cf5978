//go:build linux

package xtables

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kube-proxy/trace"
)

// flow is what becomes of a packet on its way, beside its source. Where chance decides, there are several.
type flow struct {
	to   netip.AddrPort
	mark uint32
	// translated: by DNAT. masqueraded: its source is the node's.
	translated, masqueraded bool
	// affine: it goes where the kernel remembers that the client went, and counts for nothing else.
	affine bool
}

// flows are the ways of one packet that are left, with the part of new connections that goes each. That of affine ones is 0.
type flows map[flow]float64

func (fs flows) add(f flow, part float64) { fs[f] += part }

func (fs flows) join(more flows) {
	for f, part := range more {
		fs[f] += part
	}
}

// end is where a part of the connections ends.
type end struct {
	flow
	verdict trace.Verdict
	part    float64
}

// place is where a walk is: what rules ask beside the packet.
type place interface {
	// sourceHere reports whether the packet's source is this node's address, here whether its destination is.
	sourceHere(w *walk) bool
	here(w *walk, destination netip.Addr) bool
	// comesIn returns the interface that the packet came in through, "" where there is none; false if it is not known. leaves returns that
	// which it leaves through.
	comesIn(w *walk) (name string, known bool)
	leaves(w *walk, f flow) (name string, known bool)
	// Remembers reports whether a list of xt_recent has a client that was seen so many seconds ago at most, 0 for any time, and how long ago.
	Remembers(list string, client netip.Addr, within uint32) (age time.Duration, known bool)
}

// walk is one packet's way through the chains.
type walk struct {
	ctx    context.Context
	packet trace.Packet
	holds  interface {
		Chain(id ChainID) (*ChainState, error) // nil if there is none
	}
	place place
	read  map[ChainID]*ChainState
	// allOurs: there are no rules of others.
	allOurs bool
	// tell gets what is said at once; nil to keep it in way.
	tell func(line string)

	// leaving: the interface that packets leave through is known. arriving: they have come in through one, and still know it.
	leaving, arriving bool
	// table is that of the base chain in which the walk is; doubt says that a rule came before which is not understood, and that
	// might have had the packet accepted, or dropped.
	table Table
	doubt bool
	// accepted are those that are done with the base chain.
	accepted flows
	ends     []end

	way  []string
	said map[saying]bool
	// silent: rules are not said. atHome: the node itself is a backend to whom the client's address was to be masqueraded.
	silent, atHome bool
	more           int // rules that were not said any more
	err            error
}

// saying is a rule that was said, by its place.
type saying struct {
	chain ChainID
	at    int
	note  string
}

// mostSaid is how many rules of a packet's way are told: a row may have thousands of endpoints.
const mostSaid = 200

// mostDeep is how deep chains may lead to others; the kernel takes half of that.
const mostDeep = 64

// newFlows is the packet as it begins.
func (w *walk) newFlows() flows { return flows{flow{to: w.packet.To}: 1} }

// go through the hooks, in the order of the kernel.
func (w *walk) all() {
	fs := w.newFlows()
	if w.packet.Host {
		w.leaving = true
		fs = w.hook(fs, "OUTPUT", Raw, Mangle, NAT, Filter)
		fs = w.hook(fs, "POSTROUTING", Mangle, NAT)
		here, away := w.part(fs)
		w.leaving, w.arriving = false, true // through the interface lo
		here = w.hook(here, "INPUT", Mangle, Filter)
		here.join(away)
		fs = here
	} else {
		w.arriving = true
		fs = w.hook(fs, "PREROUTING", Raw, Mangle, NAT)
		here, away := w.part(fs)
		here = w.asked(w.hook(here, "INPUT", Mangle, Filter))
		w.leaving = true
		away = w.hook(away, "FORWARD", Mangle, Filter)
		w.arriving = false
		away = w.hook(away, "POSTROUTING", Mangle, NAT)
		here.join(away)
		fs = here
	}
	for f, part := range fs {
		verdict := trace.Pass
		if f.translated {
			verdict = trace.Balance
		}
		w.ends = append(w.ends, end{f, verdict, part})
	}
}

// part tells what is for this node itself from what goes on to others.
func (w *walk) part(fs flows) (here, away flows) {
	here, away = flows{}, flows{}
	for f, part := range fs {
		if w.place.here(w, f.to.Addr()) {
			here.add(f, part)
		} else {
			away.add(f, part)
		}
	}
	return here, away
}

// asked looks whether what the node itself answers was to be masqueraded, which does not come about: it does not leave the node.
func (w *walk) asked(here flows) flows {
	w.silent = true
	out := flows{}
	for f, part := range here {
		if f.translated {
			for g := range w.hook(flows{f: 1}, "POSTROUTING", NAT) {
				f.masqueraded = f.masqueraded || g.masqueraded
			}
			w.atHome = w.atHome || f.masqueraded
		}
		out.add(f, part)
	}
	w.silent = false
	return out
}

// hook has packets pass the base chains of that name, and returns those that go on.
func (w *walk) hook(fs flows, name string, tables ...Table) flows {
	for _, t := range tables {
		if len(fs) == 0 || w.err != nil {
			return fs
		}
		fs = w.base(fs, ChainID{t, name})
	}
	return fs
}

// base has packets pass a base chain.
func (w *walk) base(fs flows, id ChainID) flows {
	c := w.chain(id)
	if c == nil || !c.Hooked {
		return fs
	}
	w.table, w.doubt, w.accepted = id.Table, false, flows{}
	rest := w.pass(fs, id, c, 0)
	if c.drops && len(rest) > 0 {
		rest = w.refuse(rest, id, trace.Drop, saying{id, len(c.Rules), ""}, "-P "+id.Name+" DROP")
	}
	rest.join(w.accepted)
	return rest
}

// chain reads a chain, each once; nil if there is none.
func (w *walk) chain(id ChainID) *ChainState {
	if c, again := w.read[id]; again {
		return c
	}
	c, err := w.holds.Chain(id)
	if err == nil {
		err = w.ctx.Err()
	}
	if err != nil && w.err == nil {
		w.err = err
	}
	w.read[id] = c
	return c
}

// pass has packets pass a chain, and returns those that come back from it.
func (w *walk) pass(fs flows, id ChainID, c *ChainState, depth int) (returned flows) {
	returned = flows{}
	if depth > mostDeep && w.err == nil {
		w.err = fmt.Errorf("chain %s of table %s is reached by more than %d jumps", id.Name, id.Table, mostDeep)
	}
	w.fail(w.ctx.Err()) // chains that lead twice to others, and these to others, take long
	for i := range c.Rules {
		if len(fs) == 0 || w.err != nil {
			break
		}
		r := &c.Rules[i]
		met, rest := w.meets(fs, r, saying{chain: id, at: i})
		if len(met) > 0 {
			left, on := w.do(met, r, saying{chain: id, at: i}, depth)
			returned.join(left)
			rest.join(on)
		}
		fs = rest
	}
	returned.join(fs)
	return returned
}

// meets parts those that meet a rule from those that do not.
func (w *walk) meets(fs flows, r *Rule, at saying) (met, rest flows) {
	met, rest = flows{}, flows{}
	for f, part := range fs {
		odds := r.odds(w, f)
		switch {
		case odds == 0:
			rest.add(f, part)
		case odds == untold:
			w.say(at, r.Text, "not known whether the packet meets it")
			w.doubt = w.doubt || r.do.do != goOn && r.do.do != setMark
			rest.add(f, part)
		case r.recalls != "":
			rest.add(f, part)
			if age, known := w.place.Remembers(r.recalls, w.from(), r.within); known && !f.affine {
				w.say(at, r.Text, fmt.Sprintf("the client is remembered, last seen %.0f s ago", age.Seconds()))
				f.affine = true
				met.add(f, 0)
			}
		default:
			met.add(f, part*odds)
			if odds < 1 {
				rest.add(f, part*(1-odds))
			}
		}
	}
	return met, rest
}

// do does with packets what a rule says: left are those that leave the chain, and on those that go on with the next rule.
func (w *walk) do(met flows, r *Rule, at saying, depth int) (left, on flows) {
	if r.recalls == "" {
		w.say(at, r.Text, "")
	}
	change := func(fs flows, by func(*flow)) flows {
		out := flows{}
		for f, part := range fs {
			by(&f)
			out.add(f, part)
		}
		return out
	}
	switch r.do.do {
	case jumpTo:
		to := ChainID{at.chain.Table, r.do.chain}
		c := w.chain(to)
		if c == nil { // it went while we read
			return nil, met
		}
		if out := w.pass(met, to, c, depth+1); !r.do.final {
			return nil, out
		} else {
			return out, nil
		}
	case accept:
		w.accepted.join(met)
	case drop:
		return nil, w.refuse(met, at.chain, trace.Drop, at, r.Text)
	case reject:
		return nil, w.refuse(met, at.chain, trace.Reject, at, r.Text)
	case back:
		return met, nil
	case translate:
		w.accepted.join(change(met, func(f *flow) {
			to := r.do.to
			if !to.Addr().IsValid() {
				to = netip.AddrPortFrom(f.to.Addr(), to.Port())
			}
			f.to, f.translated = to, true
		}))
	case setMark:
		return nil, change(met, func(f *flow) {
			mark, mask := r.do.mark, r.do.mask
			if r.do.markOf != nil {
				mark, mask = r.do.markOf(w, *f)
			}
			f.mark = f.mark&^mask ^ mark
		})
	case masquerade:
		w.accepted.join(change(met, func(f *flow) { f.masqueraded = true }))
	default:
		return nil, met
	}
	return nil, nil
}

// refuse ends packets, unless it is others who do it after a rule that is not understood.
func (w *walk) refuse(fs flows, by ChainID, verdict trace.Verdict, at saying, text string) (on flows) {
	if w.doubt && !w.allOurs && (!Ours(by) || by.Name == NodeFirewall) {
		w.say(at, text, "not judged: a rule before it, which is not understood, may have let the packet pass")
		return fs
	}
	if at.note == "" {
		w.say(at, text, "")
	}
	for f, part := range fs {
		w.ends = append(w.ends, end{f, verdict, part})
	}
	return flows{}
}

// say notes a rule of the way, once.
func (w *walk) say(at saying, text, note string) {
	if w.silent {
		return
	}
	at.note = note
	if w.said[at] {
		return
	}
	w.said[at] = true
	if len(w.way) >= mostSaid { // not where somebody is told
		w.more++
		return
	}
	line := "-t " + at.chain.Table.String() + " "
	if strings.HasPrefix(text, "-P ") {
		line += text
	} else {
		line = strings.TrimSuffix(line+"-A "+at.chain.Name+" "+text, " ") // a rule may have nothing in it, and only count
	}
	if note != "" {
		line += " (" + note + ")"
	}
	if w.tell != nil {
		w.tell(line)
		return
	}
	w.way = append(w.way, line)
}

// from is the source of the packet.
func (w *walk) from() netip.Addr { return w.packet.From.Addr() }

func (w *walk) fail(err error) {
	if err != nil && w.err == nil {
		w.err = err
	}
}

// answer puts together what became of all.
func (w *walk) answer() trace.Kernel {
	k := trace.Kernel{Way: w.way}
	parts, shares := map[trace.Verdict]float64{}, map[netip.AddrPort]float64{}
	others, masked := false, map[bool]bool{} // by whether the client itself is the backend
	for _, e := range w.ends {
		if e.affine {
			if e.verdict == trace.Balance {
				k.Affine = e.to
			}
			continue
		}
		parts[e.verdict] += e.part
		if e.verdict == trace.Balance {
			itself := e.to.Addr() == w.from()
			shares[e.to] += e.part
			others = others || !itself
			masked[itself] = masked[itself] || e.masqueraded
		}
	}
	k.Masquerade = masked[!others]
	for _, to := range slices.SortedFunc(maps.Keys(shares), netip.AddrPort.Compare) {
		k.Backends = append(k.Backends, trace.Backend{Address: to, Share: math.Round(shares[to]*1e9) / 1e9})
	}
	for _, v := range []trace.Verdict{trace.Pass, trace.Drop, trace.Reject, trace.Balance} {
		if parts[v] > 0 {
			k.Verdict = v
		}
	}
	for _, v := range []trace.Verdict{trace.Balance, trace.Reject, trace.Drop, trace.Pass} {
		if p := parts[v]; v != k.Verdict && p > 1e-6 {
			k.Way = append(k.Way, fmt.Sprintf("of new connections %.4f end otherwise: %s", p, v))
		}
	}
	if w.atHome {
		k.Way = append(k.Way, "a backend is the node itself, which sees the client's own address: nothing leaves the node that could be masqueraded")
	}
	if w.more > 0 {
		k.Way = append(k.Way, fmt.Sprintf("and %d rules more", w.more))
	}
	return k
}
