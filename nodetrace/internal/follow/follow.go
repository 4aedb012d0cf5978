// Package follow is the common part of walkers that follow a packet through rules of the kernel, in
// any language: the ways that the packet may take, with their shares, and jumps between chains. A
// walker says what a rule does ([Chain]); [Answer] sums up the result.
package follow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"kube-proxy/trace"
)

// State is what a packet carries from rule to rule, besides its source.
type State struct {
	To   netip.AddrPort
	Mark uint32
	// Translated: the rules gave it that destination. Masqueraded: and this node as its source.
	Translated, Masqueraded bool
	// NewPort: the rules gave it another source port.
	NewPort bool
	// Affine: it goes where the kernel remembers that the client went, and counts for nothing else.
	Affine bool
	// Verdict is "" on its way. By is the rule that gave it; nil where the walker does not say.
	Verdict trace.Verdict
	By      *Rule
	Memory  Memory
	// TranslatedBy is the rule that translated the destination; nil where the walker does not say.
	TranslatedBy *Rule
	// From is the source that rules gave it; invalid if they gave none, or one of this node.
	From netip.AddrPort
	// ConnMark is the mark of its connection. Untracked: connection tracking leaves it alone,
	// because of the rule UntrackedBy if that is not nil.
	ConnMark uint32
	// Label is the connection's label. TOS is the packet's, with its ECN bits; TTL 0 is unknown.
	Label       [16]byte
	TOS, TTL    byte
	Untracked   bool
	UntrackedBy *Rule
	// Offload is a rule that gives the connection to a flowtable: its next packets bypass chains.
	Offload *Rule
}

// NewSource reports whether rules gave the packet another source, as the kernel counts: to
// masquerade what a program of this node sent from an address of it changes nothing but, perhaps,
// the port. sent: this node sent the packet; from is its source.
func (s State) NewSource(sent bool, from netip.Addr) bool {
	own := sent && !from.IsLoopback()
	return s.Masqueraded && (s.NewPort || !own || s.From.IsValid())
}

// Rule is a rule of any program in the kernel. Number 0 is the policy of the chain.
type Rule struct {
	Table, Chain string
	Number       int
	Handle       uint64
	Text         string
}

// Memory is what the packet stores for the next one of its client.
type Memory struct{ Set, Key, Data string }

// Flow is one way that the packet may take, with its share of new connections; affine ones have
// none.
type Flow struct {
	Share float64
	// Doubt is the first rule on this way that the walker could not evaluate: the packet goes this
	// way only if that rule matches. Such a flow has no share; nil for the others.
	Doubt *Rule
	State
}

// Merge joins flows with the same state. A doubtful flow disappears in a certain one: the rule that
// it stands for makes no difference.
func Merge(flows []Flow) []Flow {
	if distinct(flows) {
		return flows
	}
	at := make(map[State]int, len(flows))
	var all []Flow
	for _, f := range flows {
		if i, ok := at[f.State]; ok {
			all[i].Share += f.Share
			if f.Doubt == nil {
				all[i].Doubt = nil
			}
			continue
		}
		at[f.State] = len(all)
		all = append(all, f)
	}
	return all
}

// distinct reports whether at most 16 flows all have different states, as they do after most rules.
func distinct(flows []Flow) bool {
	if len(flows) > 16 {
		return false
	}
	for i := range flows {
		for j := range i {
			if flows[i].State == flows[j].State {
				return false
			}
		}
	}
	return true
}

// Part divides flows in two.
func Part(flows []Flow, is func(Flow) bool) (those, others []Flow) {
	for _, f := range flows {
		if is(f) {
			those = append(those, f)
		} else {
			others = append(others, f)
		}
	}
	return those, others
}

// Kind is where flows go that have matched a rule.
type Kind uint8

// The kinds. End is for flows that the hook has decided: they are accepted, or have a verdict.
const (
	Next Kind = iota
	Jump
	Goto
	Return
	End
)

// Met are flows that have matched a rule and continue alike.
type Met struct {
	Flows []Flow
	Kind  Kind
	Chain string // of a jump or a goto
}

// Chain applies the rules of a chain to flows.
type Chain interface {
	// Rules is how many rules there are.
	Rules() int
	// Meet applies a rule to flows. rest are those that do not match, merged.
	Meet(rule int, flows []Flow) (met []Met, rest []Flow, err error)
}

// ErrDoubts is the error for a chain with too many rules that cannot be evaluated: each doubles the
// ways of a packet.
var ErrDoubts = errors.New("too many of its rules cannot be evaluated")

// maxDoubts bounds the doubtful flows in a chain.
const maxDoubts = 256

// Chains reads chains by name, until Ctx ends. Most is the limit of nested jumps.
type Chains struct {
	Ctx  context.Context
	Read func(name string) (Chain, error) // nil for a missing chain
	Most int
}

// Pass sends flows through a chain. back are those that came to its end or returned, ended those
// that the hook has decided.
func (cs Chains) Pass(name string, flows []Flow) (back, ended []Flow, err error) {
	return cs.pass(name, flows, 0)
}

func (cs Chains) pass(name string, flows []Flow, depth int) (back, ended []Flow, err error) {
	if depth > cs.Most {
		return nil, nil, fmt.Errorf("chain %s is reached by more than %d jumps", name, cs.Most)
	}
	c, err := cs.Read(name)
	if c == nil || err != nil {
		return flows, nil, err
	}
	for i := 0; i < c.Rules() && len(flows) > 0; i++ {
		if err := cs.Ctx.Err(); err != nil {
			return nil, nil, fmt.Errorf("follow the rules of chain %s: %w", name, err)
		}
		all, rest, err := c.Meet(i, flows)
		if err != nil {
			return nil, nil, err
		}
		flows = rest
		for _, met := range all {
			on := met.Flows
			if met.Kind == Jump || met.Kind == Goto {
				var more []Flow
				if on, more, err = cs.pass(met.Chain, Merge(met.Flows), depth+1); err != nil {
					return nil, nil, err
				}
				ended = append(ended, more...)
			}
			switch met.Kind {
			case End:
				ended = append(ended, on...)
			case Return, Goto:
				back = append(back, on...)
			default:
				flows = append(flows, on...)
			}
		}
		if len(all) == 0 {
			continue
		}
		flows, ended = Merge(flows), Merge(ended)
		if doubtful(flows)+doubtful(ended)+doubtful(back) > maxDoubts {
			return nil, nil, ErrDoubts
		}
	}
	return Merge(append(back, flows...)), Merge(ended), nil
}

func doubtful(flows []Flow) (n int) {
	for _, f := range flows {
		if f.Doubt != nil {
			n++
		}
	}
	return n
}

// attempts is how often a packet is followed while rules change. If they change all the time, the
// last attempt counts.
const attempts = 4

// Steady follows a packet, and again if the generation of the rules changed meanwhile.
func Steady(ctx context.Context, generation func() (uint32, error), follow func() error) error {
	for attempt := 1; ; attempt++ {
		before, err := generation()
		if err != nil {
			return fmt.Errorf("read the ruleset's generation: %w", err)
		}
		failed := follow()
		after, err := generation()
		if err != nil {
			return fmt.Errorf("read the ruleset's generation: %w", err)
		}
		if before == after || attempt == attempts || ctx.Err() != nil {
			return failed
		}
	}
}

// Said are lines about a packet's way, each once.
type Said struct {
	Lines    []string
	reported map[string]bool
}

// Say adds a line, and reports whether it is new.
func (s *Said) Say(line string) bool {
	if s.reported[line] {
		return false
	}
	if s.reported == nil {
		s.reported = map[string]bool{}
	}
	s.reported[line] = true
	s.Lines = append(s.Lines, line)
	return true
}

// Answer sums up the ways of a packet. If only some have a backend, the backends answer with shares
// that add up to less than one, and a line reports the others. A backend that is its own client is
// masqueraded in any case (SV-60), and says nothing about others.
func Answer(packet trace.Packet, ways []Flow, lines []string) trace.Kernel {
	k := trace.Kernel{Way: lines}
	parts, shares := map[trace.Verdict]float64{}, map[netip.AddrPort]float64{}
	others, masked := false, map[bool]bool{} // by whether the client itself is the backend
	for _, f := range ways {
		if f.Doubt != nil {
			continue
		}
		v := f.Verdict
		switch {
		case v == "" && f.Translated:
			v = trace.Balance
		case v == "":
			v = trace.Pass
		}
		if f.Affine {
			if v == trace.Balance {
				k.Affine = f.To
			}
			continue
		}
		parts[v] += f.Share
		if v == trace.Balance {
			itself := f.To.Addr() == packet.From.Addr()
			shares[f.To] += f.Share
			others = others || !itself
			masked[itself] = masked[itself] || f.Masqueraded
		}
	}
	k.Masquerade = masked[!others]
	for to, share := range shares {
		k.Backends = append(k.Backends, trace.Backend{Address: to, Share: math.Round(share*1e9) / 1e9})
	}
	slices.SortFunc(k.Backends, func(a, b trace.Backend) int { return a.Address.Compare(b.Address) })
	for _, v := range []trace.Verdict{trace.Pass, trace.Drop, trace.Reject, trace.Balance} {
		if parts[v] > parts[k.Verdict] || v == trace.Balance && parts[v] > 0 || k.Verdict == "" {
			k.Verdict = v
		}
	}
	for _, v := range []trace.Verdict{trace.Balance, trace.Reject, trace.Drop, trace.Pass} {
		if p := parts[v]; v != k.Verdict && p > 1e-6 {
			k.Way = append(k.Way, fmt.Sprintf("of new connections %.4f end otherwise: %s", p, v))
		}
	}
	if others && masked[true] && !masked[false] {
		k.Way = append(k.Way, "a client that is the backend itself is masqueraded")
	}
	return k
}
