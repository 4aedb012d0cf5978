package walk

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/trace"
)

// Table is a table that packets walk through.
type Table struct {
	// Family is NFPROTO_IPV4 or NFPROTO_IPV6.
	Family byte
	Name   string
	// Chains are those that there shall be. Of them, the walk looks at which are base chains.
	Chains []rule.Chain
	// Sets are the sets that rules may look into. Of another one texts are bytes.
	Sets []wire.Set
	// EndsHere: what the table gives another destination goes to this node.
	EndsHere bool
}

// set returns the set of that name; nil for another's.
func (t *Table) set(name string) *wire.Set {
	if i := slices.IndexFunc(t.Sets, func(d wire.Set) bool { return d.Name == name }); i >= 0 {
		return &t.Sets[i]
	}
	return nil
}

// Way is one way that the packet may take, with how likely that is.
type Way struct {
	Share float64
	// Verdict is never Balance: what has another destination passes.
	Verdict trace.Verdict
	// To is where it goes in the end.
	To netip.AddrPort
	// Translated: the table gave it that destination. Masquerade: and this node as its source.
	Translated, Masquerade bool
}

// Answer is what becomes of a packet.
type Answer struct {
	// Ways are for a client whom the kernel does not remember.
	Ways []Way
	// Remembered are the ways of this client, where it is one that the kernel remembers; else none.
	Remembered []Way
	// Text is what it meets, a line each.
	Text []string
}

// mostWays bounds how many ways there may be at once, and with them what a walk costs.
const mostWays = 1 << 17

// tries is how often a walk begins anew because somebody changed the ruleset meanwhile. Where that happens all the time, the last one
// counts.
const tries = 4

// Go walks. An error is of reading.
func Go(ctx context.Context, sock *wire.Socket, t Table, p trace.Packet) (Answer, error) {
	for try := 1; ; try++ {
		before, err := sock.Generation(ctx)
		if err != nil {
			return Answer{}, fmt.Errorf("read the ruleset's generation: %w", err)
		}
		w := newWalk(ctx, sock, t, p)
		if err := w.whole(); err != nil {
			return Answer{}, fmt.Errorf("read table %s: %w", t.Name, err)
		}
		after, err := sock.Generation(ctx)
		if err != nil {
			return Answer{}, fmt.Errorf("read the ruleset's generation: %w", err)
		}
		if before == after || try == tries {
			return w.answer, nil
		}
	}
}

type walk struct {
	ctx  context.Context
	sock *wire.Socket
	t    Table
	p    trace.Packet

	bases    []base
	chains   map[string][]Rule
	elements map[string]map[string]element
	foreign  map[string]int // lengths of the keys of sets that are not ours

	remembering bool // dynamic sets are looked into
	asked       bool // a dynamic set was asked
	hit         bool // and had an answer
	told        map[string]bool
	answer      Answer
}

func newWalk(ctx context.Context, sock *wire.Socket, t Table, p trace.Packet) *walk {
	return &walk{ctx: ctx, sock: sock, t: t, p: p, chains: map[string][]Rule{}, elements: map[string]map[string]element{},
		foreign: map[string]int{}, told: map[string]bool{}}
}

// say notes a line, once.
func (w *walk) say(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !w.told[line] {
		w.told[line] = true
		w.answer.Text = append(w.answer.Text, line)
	}
}

// whole reads the table, and walks once or twice.
func (w *walk) whole() error {
	table := wire.Table{Socket: w.sock, Family: w.t.Family, Name: w.t.Name}
	there, dormant, err := table.State(w.ctx)
	if err != nil {
		return err
	}
	start := []flow{{share: 1, state: state{to: w.p.To}}}
	if !there || dormant {
		what := map[bool]string{false: "no %s", true: "%s is dormant: none of its chains is in force"}
		w.say(what[there], table.Title())
		w.answer.Ways = waysOf(start)
		return nil
	}
	w.say("%s", table.Title())
	if err := w.readBases(); err != nil {
		return err
	}
	ends, err := w.hooks(start)
	if err != nil {
		return err
	}
	w.answer.Ways = waysOf(ends)
	if !w.asked {
		return nil
	}
	w.remembering = true
	mark := len(w.answer.Text)
	if ends, err = w.hooks(start); err != nil {
		return err
	}
	if w.hit {
		w.answer.Remembered = waysOf(ends)
		w.answer.Text = slices.Insert(w.answer.Text, mark, "as the kernel remembers this client:")
	} else {
		w.answer.Text = w.answer.Text[:mark]
	}
	return nil
}

func waysOf(flows []flow) []Way {
	all := make([]Way, 0, len(flows))
	for _, f := range flows {
		v := f.verdict
		if v == "" {
			v = trace.Pass
		}
		all = append(all, Way{f.share, v, f.to, f.translated, f.masquerade})
	}
	return all
}

// hooks takes flows through the hooks that they meet, in their order.
func (w *walk) hooks(flows []flow) ([]flow, error) {
	first := uint32(unix.NF_INET_PRE_ROUTING)
	if w.own() {
		first = unix.NF_INET_LOCAL_OUT
	}
	flows, err := w.hook(first, flows)
	if err != nil {
		return nil, err
	}
	var here, on []flow
	for _, f := range flows {
		if f.verdict == "" && w.endsHere(f.state) {
			here = append(here, f)
		} else {
			on = append(on, f)
		}
	}
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
	return merge(append(on, here...)), nil
}

// own reports whether the packet is one that this node sends.
func (w *walk) own() bool { return w.p.Host && w.p.In == "" }

// endsHere reports whether a packet is delivered to this node.
func (w *walk) endsHere(s state) bool {
	if s.translated {
		return w.t.EndsHere
	}
	return w.p.Here
}

// hook takes flows through the base chains of one hook.
func (w *walk) hook(num uint32, flows []flow) ([]flow, error) {
	for _, b := range w.bases {
		if b.Num != num || !slices.ContainsFunc(flows, func(f flow) bool { return w.meets(b, f) }) {
			continue
		}
		policy := "accept"
		if b.drops {
			policy = "drop"
		}
		w.say("chain %s { %s; policy %s; }", b.name, b.Hook, policy)
		var in, past []flow
		for _, f := range flows {
			if w.meets(b, f) {
				in = append(in, f)
			} else {
				past = append(past, f)
			}
		}
		back, ended, err := w.chain(b.name, in, 0)
		if err != nil {
			return nil, err
		}
		for i := range back {
			if b.drops {
				back[i].verdict = trace.Drop
			}
		}
		flows = merge(append(append(past, back...), ended...))
	}
	return flows, nil
}

// meets reports whether a flow meets a base chain: chains that translate are not met again by what has been.
func (w *walk) meets(b base, f flow) bool {
	if f.verdict != "" {
		return false
	}
	if b.Type != "nat" {
		return true
	}
	if b.Num == unix.NF_INET_POST_ROUTING || b.Num == unix.NF_INET_LOCAL_IN {
		return !f.masquerade
	}
	return !f.translated
}

// flow is one way that the packet takes, with what is in the kernel's registers.
type flow struct {
	share float64
	regs  [registers]byte
	jump  wire.Verdict // what a rule ends in
	state
}

// state is what a flow takes from rule to rule.
type state struct {
	mark                   uint32
	to                     netip.AddrPort
	translated, masquerade bool
	verdict                trace.Verdict // "" on its way
	// What it has written to a dynamic set.
	set, key, data string
}

// merge makes one flow of those that have the same state.
func merge(flows []flow) []flow {
	if len(flows) < 2 {
		return flows
	}
	at := make(map[state]int, len(flows))
	var all []flow
	for _, f := range flows {
		if i, ok := at[f.state]; ok {
			all[i].share += f.share
			continue
		}
		at[f.state] = len(all)
		all = append(all, flow{share: f.share, state: f.state})
	}
	return all
}

// goOn is what a rule ends in that says nothing.
const goOn = expr.VerdictContinue

// mostJumps is how deep chains may lie in another, as the kernel has it.
const mostJumps = 16

// chain takes flows through a chain. back are those that came to its end or returned, ended those of which the hook has decided.
func (w *walk) chain(name string, flows []flow, depth int) (back, ended []flow, err error) {
	if depth > mostJumps {
		return nil, nil, fmt.Errorf("chain %s: more than %d jumps", name, mostJumps)
	}
	rules, err := w.rules(name)
	if err != nil {
		return nil, nil, err
	}
	if len(rules) == 0 {
		w.say("chain %s has no rules", name)
	}
	for i, r := range rules {
		if len(flows) == 0 {
			break
		}
		matched, others, err := w.rule(name, i, r, flows)
		if err != nil {
			return nil, nil, err
		}
		flows = others
		for _, group := range byVerdict(matched) {
			switch v := group[0].jump; {
			case group[0].verdict != "" || v.Kind == expr.VerdictAccept:
				ended = append(ended, group...)
			case v.Kind == expr.VerdictReturn:
				back = append(back, group...)
			case v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto:
				b, e, err := w.chain(v.Chain, merge(group), depth+1)
				if err != nil {
					return nil, nil, err
				}
				ended = append(ended, e...)
				if v.Kind == expr.VerdictGoto {
					back = append(back, b...)
				} else {
					flows = append(flows, b...)
				}
			default:
				flows = append(flows, group...)
			}
		}
		flows = merge(flows)
	}
	return merge(append(back, flows...)), merge(ended), nil
}

// byVerdict groups flows that go on alike.
func byVerdict(flows []flow) (groups [][]flow) {
	type what struct {
		v     wire.Verdict
		ended bool
	}
	at := map[what]int{}
	for _, f := range flows {
		k := what{f.jump, f.verdict != ""}
		i, ok := at[k]
		if !ok {
			i = len(groups)
			at[k], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], f)
	}
	return groups
}

// rule takes flows through the expressions of a rule. matched came to its end, others did not.
func (w *walk) rule(chain string, i int, r Rule, flows []flow) (matched, others []flow, err error) {
	on, before := slices.Clone(flows), flows[0].state
	for j := range on {
		on[j].regs, on[j].jump = [registers]byte{}, wire.Verdict{Kind: goOn}
	}
	for _, s := range r.Steps {
		next, broken, err := w.step(s, on)
		if err != nil {
			return nil, nil, fmt.Errorf("chain %s, rule %d: %w", chain, i+1, err)
		}
		others, on = append(others, broken...), next[:0]
		for _, f := range next {
			if f.verdict != "" || f.jump.Kind != goOn {
				matched = append(matched, f)
			} else {
				on = append(on, f)
			}
		}
		if len(on) == 0 {
			break
		}
	}
	matched = append(matched, on...)
	if e := effects(before, matched); e != "" {
		w.say("chain %s rule %d %q: %s", chain, i+1, r.Comment, e)
	}
	return matched, merge(others), nil
}

// mostWords bounds how many elements or destinations a line, or the lines of one lookup, name.
const mostWords = 8

// effects says what a rule did to flows that began in a state.
func effects(before state, flows []flow) string {
	var all, to []string
	add := func(what string) {
		if !slices.Contains(all, what) {
			all = append(all, what)
		}
	}
	more := 0
	for _, f := range flows {
		if f.mark != before.mark {
			add(fmt.Sprintf("meta mark set 0x%08x", f.mark))
		}
		if f.data != before.data {
			add(map[bool]string{true: "update", false: "delete"}[f.data != ""] + " @" + f.set)
		}
		switch {
		case f.translated && !before.translated && len(to) < mostWords:
			to = append(to, f.to.String())
		case f.translated && !before.translated:
			more++
		case f.masquerade && !before.masquerade:
			add("masquerade")
		case f.verdict == trace.Reject:
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
