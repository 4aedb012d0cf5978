package nft

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/trace"
)

// set returns the set of that name; nil for a foreign one.
func setNamed(t *rule.Table, name string) *wire.Set {
	if i := slices.IndexFunc(t.Sets, func(d wire.Set) bool { return d.Name == name }); i >= 0 {
		return &t.Sets[i]
	}
	return nil
}

// maxWays limits the number of parallel ways, and so the cost of a walk.
const maxWays = 1 << 17

// Go walks, and returns the ways of the packet, and one line for each rule and element that it
// meets. If the kernel has an affinity entry for this client, its way is included. Errors are read
// errors.
func Go(ctx context.Context, sock *wire.Socket, t rule.Table, p trace.Packet) (all []follow.Flow, lines []string,
	err error) {
	err = follow.Steady(ctx, func() (uint32, error) { return sock.Generation(ctx) }, func() error {
		w := newWalk(ctx, sock, t, p)
		err := w.whole()
		all, lines = w.ends, w.said.Lines
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read table %s: %w", t.Name, err)
	}
	return all, lines, nil
}

type walk struct {
	ctx   context.Context
	table wire.Table
	t     rule.Table
	p     trace.Packet

	seen   Seen
	node   Node // nil in a walk through only one table
	extend Extend
	budget *int   // rules that may still be read; nil for no limit
	now    *Rule  // the current rule
	at     place  // its place
	forked []flow // flows that continue as if the current rule did not match
	// Buffers that each rule reuses.
	on, broken, others []flow

	bases    []base
	chains   map[string][]Rule
	elements map[string]map[string]element
	foreign  map[string]keys // of sets that were asked

	remembering bool // the walk reads dynamic sets
	asked       bool // a dynamic set was looked up
	hit         bool // and had an element
	said        follow.Said
	ends        []follow.Flow
}

func newWalk(ctx context.Context, sock *wire.Socket, t rule.Table, p trace.Packet) *walk {
	table := wire.Table{Socket: sock, Family: t.Family, Name: t.Name}
	return &walk{ctx: ctx, table: table, t: t, p: p, seen: seenOf(t.Family, p), chains: map[string][]Rule{},
		elements: map[string]map[string]element{}, foreign: map[string]keys{}}
}

// say records a line, once.
func (w *walk) say(format string, args ...any) { w.said.Say(fmt.Sprintf(format, args...)) }

// whole reads the table, and walks once or twice.
func (w *walk) whole() error {
	there, dormant, err := w.table.State(w.ctx)
	if err != nil {
		return err
	}
	start := []follow.Flow{{Share: 1, State: follow.State{To: w.p.To}}}
	if !there || dormant {
		what := map[bool]string{false: "no %s", true: "%s is dormant: none of its chains is in force"}
		w.say(what[there], w.table.Title())
		w.ends = start
		return nil
	}
	w.say("%s", w.table.Title())
	if err := w.readBases(); err != nil {
		return err
	}
	if w.ends, err = w.hooks(start); err != nil || !w.asked {
		return err
	}
	w.remembering = true
	mark := len(w.said.Lines)
	ends, err := w.hooks(start)
	if err != nil {
		return err
	}
	if !w.hit {
		w.said.Lines = w.said.Lines[:mark]
		return nil
	}
	w.said.Lines = slices.Insert(w.said.Lines, mark, "as the kernel remembers this client:")
	if len(ends) == 1 {
		ends[0].Affine, ends[0].Share = true, 0
		w.ends = append(w.ends, ends[0])
	}
	return nil
}

// hooks takes flows through the hooks that they meet, in order.
func (w *walk) hooks(flows []follow.Flow) ([]follow.Flow, error) {
	first := uint32(unix.NF_INET_PRE_ROUTING)
	if w.own() {
		first = unix.NF_INET_LOCAL_OUT
	}
	flows, err := w.hook(first, flows)
	if err != nil {
		return nil, err
	}
	here, on := follow.Part(flows, func(f follow.Flow) bool { return f.Verdict == "" && w.endsHere(f.State) })
	if !w.own() {
		if on, err = w.hook(unix.NF_INET_FORWARD, on); err != nil {
			return nil, err
		}
	} else if here, err = w.hook(unix.NF_INET_POST_ROUTING, here); err != nil {
		return nil, err
	}
	if on, err = w.hook(unix.NF_INET_POST_ROUTING, on); err != nil {
		return nil, err
	}
	if here, err = w.hook(unix.NF_INET_LOCAL_IN, here); err != nil {
		return nil, err
	}
	return follow.Merge(append(on, here...)), nil
}

// own reports whether this node sends the packet.
func (w *walk) own() bool { return w.p.Host && w.p.In == "" }

// endsHere reports whether a packet is delivered to this node.
func (w *walk) endsHere(s follow.State) bool {
	if s.Translated {
		return w.t.EndsHere
	}
	return w.p.Here
}

// hook takes flows through the base chains of one hook.
func (w *walk) hook(num uint32, flows []follow.Flow) ([]follow.Flow, error) {
	for _, b := range w.bases {
		if b.Num != num || !slices.ContainsFunc(flows, func(f follow.Flow) bool { return w.meets(b, f) }) {
			continue
		}
		policy := "accept"
		if b.drops {
			policy = "drop"
		}
		w.say("chain %s { %s; policy %s; }", b.name, b.Hook, policy)
		in, past := follow.Part(flows, func(f follow.Flow) bool { return w.meets(b, f) })
		back, ended, err := follow.Chains{Ctx: w.ctx, Read: w.chain, Most: maxJumps}.Pass(b.name, in)
		if err != nil {
			return nil, err
		}
		for i := range back {
			if b.drops {
				back[i].Verdict = trace.Drop
			}
		}
		flows = follow.Merge(append(append(past, back...), ended...))
	}
	return flows, nil
}

// meets reports whether a flow meets a base chain: a translated flow does not meet chains that
// translate again.
func (w *walk) meets(b base, f follow.Flow) bool {
	if f.Verdict != "" {
		return false
	}
	if b.Type != "nat" {
		return true
	}
	if b.Num == unix.NF_INET_POST_ROUTING || b.Num == unix.NF_INET_LOCAL_IN {
		return !f.Masqueraded
	}
	return !f.Translated
}

// flow is one way of the packet, with the content of the kernel's registers.
type flow struct {
	follow.Flow
	regs [rule.Registers]byte
	jump wire.Verdict // the result of a rule
	// hidden has a bit for each byte of the registers with unknown content.
	hidden [rule.Registers / 8]byte
	// ports has one for each of those that are of a client's port.
	ports [rule.Registers / 8]byte
	// unsure: the packet is here only if an expression that could not be evaluated matches.
	unsure bool
}

// goOn is the result of a rule without a verdict.
const goOn = expr.VerdictContinue

// maxJumps is the kernel's limit of nested chains.
const maxJumps = 16

// chain is a chain that was read.
type chain struct {
	w     *walk
	name  string
	rules []Rule
}

// chain reads a chain.
func (w *walk) chain(name string) (follow.Chain, error) {
	rules, err := w.rules(name)
	if len(rules) == 0 {
		w.say("chain %s has no rules", name)
	}
	return chain{w, name, rules}, err
}

func (c chain) Rules() int { return len(c.rules) }

// kinds are the verdicts after which a packet continues elsewhere.
var kinds = map[expr.VerdictKind]follow.Kind{expr.VerdictAccept: follow.End, expr.VerdictReturn: follow.Return,
	expr.VerdictJump: follow.Jump, expr.VerdictGoto: follow.Goto}

// Meet groups flows that have met a rule by their continuation.
func (c chain) Meet(i int, flows []follow.Flow) (met []follow.Met, rest []follow.Flow, err error) {
	if c.w.node != nil && c.rules[i].body != nil {
		return c.w.extend(place{c.w, c.name, i}.rule(), c.rules[i].body, flows)
	}
	matched, others, err := c.w.rule(c.name, i, c.rules[i], flows)
	if len(matched) == 0 && slices.EqualFunc(flows, others, func(a follow.Flow, b flow) bool { return a == b.Flow }) {
		return nil, slices.Clip(flows), err
	}
	type what struct {
		kind  follow.Kind
		chain string
	}
	at := map[what]int{}
	for _, f := range matched {
		on := what{kinds[f.jump.Kind], f.jump.Chain}
		if f.Verdict != "" {
			on = what{kind: follow.End}
		}
		n, known := at[on]
		if !known {
			n = len(met)
			at[on], met = n, append(met, follow.Met{Kind: on.kind, Chain: on.chain})
		}
		met[n].Flows = append(met[n].Flows, f.Flow)
	}
	for _, f := range others {
		rest = append(rest, f.Flow)
	}
	return met, follow.Merge(rest), err
}

// rule takes flows through the expressions of a rule. matched reached its end, others did not.
func (w *walk) rule(chain string, i int, r Rule, flows []follow.Flow) (matched, others []flow, err error) {
	on, before := w.on[:0], flows[0].State
	for j := range flows {
		on = append(on, flow{Flow: flows[j], jump: wire.Verdict{Kind: goOn}})
	}
	w.on, others = on, w.others[:0]
	w.now, w.at, w.forked = &r, place{w, chain, i}, nil
	for _, x := range r.all {
		next, broken, err := w.step(x, on)
		if err != nil {
			return nil, nil, fmt.Errorf("chain %s, rule %d: %w", chain, i+1, err)
		}
		others, on = append(others, slices.DeleteFunc(broken, func(f flow) bool { return f.unsure })...), next[:0]
		for _, f := range next {
			if f.Verdict != "" || f.jump.Kind != goOn {
				matched = append(matched, f)
			} else {
				on = append(on, f)
			}
		}
		if len(on) == 0 {
			break
		}
	}
	matched, others = append(matched, on...), append(others, w.forked...)
	w.others = others
	for j := range matched {
		if f := &matched[j]; f.Verdict != "" && w.node != nil {
			f.By = w.at.rule()
		}
	}
	if e := effects(before, matched); e != "" {
		w.say("chain %s rule %d %q: %s", chain, i+1, r.Comment, e)
	}
	return matched, others, nil
}

// maxWords limits the elements or destinations that a line, or the lines of one lookup, name.
const maxWords = 8

// effects describes what a rule did to flows that began in a state.
func effects(before follow.State, flows []flow) string {
	var all, to []string
	add := func(what string) {
		if !slices.Contains(all, what) {
			all = append(all, what)
		}
	}
	more := 0
	for _, f := range flows {
		if f.Mark != before.Mark {
			add(fmt.Sprintf("meta mark set 0x%08x", f.Mark))
		}
		if f.Memory.Data != before.Memory.Data {
			add(map[bool]string{true: "update", false: "delete"}[f.Memory.Data != ""] + " @" + f.Memory.Set)
		}
		switch {
		case f.Translated && !before.Translated && len(to) < maxWords:
			to = append(to, f.To.String())
		case f.Translated && !before.Translated:
			more++
		case f.Masqueraded && !before.Masqueraded:
			add("masquerade")
		case f.Verdict == trace.Reject:
			add("reject")
		case f.jump.Kind != goOn:
			add(f.jump.String())
		}
	}
	if len(to) > 0 {
		slices.Sort(to)
		if more > 0 {
			to = append(to, fmt.Sprintf("%d more", more))
		}
		add("dnat to " + strings.Join(to, ", "))
	}
	return strings.Join(all, ", ")
}
