package hooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/nodetrace/internal/nft"
	"kube-proxy/nodetrace/internal/xt"
	"kube-proxy/trace"
)

// Numbers of hooks of the families netdev, inet and bridge beside those of [Hook].
const (
	netdevIngress = 0
	netdevEgress  = 1
	inetIngress   = 5
	bridgePre     = 0
	bridgeIn      = 1
	bridgeOut     = 3
	bridgePost    = 4
)

// Pass returns the ways of a packet through a hook. At Prerouting it also passes what lies before
// on its device, and at Postrouting what lies after.
func (s *Snapshot) Pass(ctx context.Context, h Hook, p Packet) ([]Way, error) {
	s.sets.ctx, s.node.ctx = ctx, ctx
	flows := []follow.Flow{{Share: 1, State: follow.State{To: p.To, Mark: p.Mark, ConnMark: p.Flow.Mark,
		Label: p.Flow.Label, TOS: p.TOS, TTL: p.TTL, Untracked: p.Flow.State == Untracked}}}
	var err error
	pass := func(device string, family byte, nums ...uint32) {
		for _, num := range nums {
			if err == nil {
				flows, err = s.chains(ctx, stop{p, h, family, num, device}, flows)
			}
		}
	}
	perhaps := func(bridge string, family byte, num uint32) {
		for _, port := range s.node.ports(bridge) {
			before := flows
			pass(port, family, num)
			flows = mayEnd(before, flows)
		}
	}
	if h == Prerouting && p.In != "" {
		pass(p.In, unix.NFPROTO_NETDEV, netdevIngress)
		pass(p.In, unix.NFPROTO_INET, inetIngress)
		if s.node.bridge(p.In) {
			if p.Port != "" {
				pass(p.Port, unix.NFPROTO_NETDEV, netdevIngress)
				pass(p.Port, unix.NFPROTO_INET, inetIngress)
			} else {
				perhaps(p.In, unix.NFPROTO_NETDEV, netdevIngress)
				perhaps(p.In, unix.NFPROTO_INET, inetIngress)
			}
			pass("", unix.NFPROTO_BRIDGE, bridgePre)
			if !p.Calls {
				pass("", unix.NFPROTO_BRIDGE, bridgeIn)
			}
		}
	}
	if unread := s.unread[h]; unread != nil {
		s.note("%s", s.why)
		f := flows[0]
		f.Share, f.Doubt, f.Verdict = 0, unread, trace.Drop
		flows = append(flows, f)
	}
	pass("", s.proto(), uint32(h))
	if h == Prerouting && p.Calls {
		pass("", unix.NFPROTO_BRIDGE, bridgeIn)
	}
	if h == Postrouting && p.Out != "" {
		if s.node.bridge(p.Out) {
			pass("", unix.NFPROTO_BRIDGE, bridgeOut, bridgePost)
			perhaps(p.Out, unix.NFPROTO_NETDEV, netdevEgress)
		}
		pass(p.Out, unix.NFPROTO_NETDEV, netdevEgress)
	}
	if err != nil {
		return nil, fmt.Errorf("follow a packet to %s through %s: %w", p.To, h, err)
	}
	return s.ways(p, flows), nil
}

// mayEnd has flows go on as they were, with a doubt for each that may have ended: the
// packet's port of the bridge is not known.
func mayEnd(before, after []follow.Flow) []follow.Flow {
	all := slices.Clone(before)
	for _, f := range after {
		if f.Verdict == "" || slices.ContainsFunc(before, func(b follow.Flow) bool {
			return b.Verdict != "" && b.By == f.By
		}) {
			continue
		}
		f.Share, f.Doubt = 0, cmp.Or(f.Doubt, f.By)
		all = append(all, f)
	}
	return all
}

// stop is one hook on the way of a packet.
type stop struct {
	Packet
	hook   Hook
	family byte
	num    uint32
	device string // of a hook that is on a device
}

// natPriority is where conntrack translates at a hook: destinations before the routing decision,
// sources after it.
func (s stop) natPriority() int32 {
	if s.hook == Prerouting || s.hook == Output {
		return -100
	}
	return 100
}

// has reports whether a base chain is at the stop.
func (s stop) has(b base, ip byte) bool {
	if b.Num != s.num || s.device != "" && !slices.Contains(b.devices, s.device) ||
		s.family == ip && (s.Flow.Offloaded || s.Before != 0 && b.Priority >= s.Before) {
		return false
	}
	return b.family == s.family || s.family == ip && b.family == unix.NFPROTO_INET
}

// chains takes flows through the base chains of a stop.
func (s *Snapshot) chains(ctx context.Context, at stop, flows []follow.Flow) ([]follow.Flow, error) {
	var nat []base
	translated := at.family != s.proto() || at.hook == Forward || at.Before != 0 && at.Before < at.natPriority()
	translate := func() (err error) {
		if !translated {
			translated = true
			flows, err = s.translate(ctx, at, nat, flows)
		}
		return err
	}
	for _, b := range s.bases {
		if at.has(b, s.proto()) && b.Type == "nat" {
			nat = append(nat, b)
		}
	}
	for i, b := range s.bases {
		if !at.has(b, s.proto()) || b.Type == "nat" {
			continue
		}
		if b.Priority > at.natPriority() {
			if err := translate(); err != nil {
				return nil, err
			}
		}
		after, err := s.chain(ctx, at, b, flows)
		if err == nil {
			flows, err = s.rivals(ctx, at, b, s.bases[i+1:], flows, after)
		}
		if err != nil {
			return nil, err
		}
	}
	return flows, translate()
}

// unordered names a chain whose place before or after another of its priority is not known.
func unordered(b, other base, what string) *follow.Rule {
	return &follow.Rule{Table: b.name, Chain: b.chain, Number: -1, Text: fmt.Sprintf(
		"and %s, chain %s, %s at one priority, in an unknown order", escaped(other.name), escaped(other.chain), what)}
}

// rivals doubts what a base chain stops if another of its priority stops it otherwise: the kernel
// does not show which comes first.
func (s *Snapshot) rivals(ctx context.Context, at stop, b base, rest []base, before, after []follow.Flow) (
	[]follow.Flow, error) {
	ended := func(f follow.Flow) bool { return f.Verdict != "" }
	_, on := follow.Part(before, ended)
	otherwise := func(f follow.Flow) bool {
		return f.Verdict != "" && f.Doubt == nil && slices.ContainsFunc(after, func(a follow.Flow) bool {
			return a.Verdict != "" && a.Verdict != f.Verdict && !slices.ContainsFunc(before, func(p follow.Flow) bool {
				return p.Verdict != "" && p.By == a.By
			})
		})
	}
	all := after
	for _, other := range rest {
		if other.Priority != b.Priority || !slices.ContainsFunc(after, ended) {
			break
		}
		if !at.has(other, s.proto()) || other.Type == "nat" {
			continue
		}
		rival, err := s.chain(ctx, at, other, slices.Clone(on))
		if err != nil {
			return nil, err
		}
		for _, f := range rival {
			if otherwise(f) {
				f.Share, f.Doubt = 0, unordered(b, other, "stop the packet")
				all = append(slices.Clip(all), f)
			}
		}
	}
	return all, nil
}

// translate does what conntrack does at the priority of nat: the first packet of a flow meets the
// nat chains until one translates it. Others are translated as the flow is.
func (s *Snapshot) translate(ctx context.Context, at stop, nat []base, flows []follow.Flow) ([]follow.Flow, error) {
	f := at.Flow
	if f.tracked() {
		there, back := f.Orig, f.Reverse
		if f.Reply {
			there, back = back, there
		}
		for i := range flows {
			switch to := &flows[i]; {
			case flows[i].Verdict != "" || flows[i].Untracked:
			case at.natPriority() < 0 && back.From.IsValid() && there.To.IsValid() && back.From != there.To:
				to.To = back.From
			case at.natPriority() > 0 && back.To.IsValid() && there.From.IsValid() && back.To != there.From:
				to.From = back.To
			}
		}
		return flows, nil
	}
	if f.State != New {
		return flows, nil
	}
	done := func(f follow.Flow) bool {
		if at.natPriority() < 0 {
			return f.Verdict != "" || f.Untracked || f.Translated
		}
		return f.Verdict != "" || f.Untracked || f.Masqueraded
	}
	for i, b := range nat {
		past, on := follow.Part(flows, done)
		after, err := s.chain(ctx, at, b, slices.Clone(on))
		if err != nil {
			return nil, err
		}
		for _, other := range nat[i+1:] {
			if other.Priority != b.Priority || !slices.ContainsFunc(after, done) {
				break
			}
			rival, err := s.chain(ctx, at, other, slices.Clone(on))
			if err != nil {
				return nil, err
			}
			either := unordered(b, other, "translate")
			for _, f := range rival {
				if done(f) && f.Doubt == nil {
					f.Share, f.Doubt = 0, either
					after = append(after, f)
				}
			}
		}
		flows = follow.Merge(append(past, after...))
	}
	return flows, nil
}

// chain takes flows through one base chain.
func (s *Snapshot) chain(ctx context.Context, at stop, b base, flows []follow.Flow) ([]follow.Flow, error) {
	past, on := follow.Part(flows, func(f follow.Flow) bool { return f.Verdict != "" })
	if len(on) == 0 {
		return flows, nil
	}
	if on[0].From.IsValid() { // conntrack has translated the source, the same for all flows
		at.From = on[0].From
	}
	s.xt.At(ctx, s.placeOf(at, b))
	var back, ended []follow.Flow
	var err error
	var lines []string
	if b.legacy != nil {
		back, ended, err = follow.Chains{Ctx: ctx, Most: maxJumps, Read: func(name string) (follow.Chain, error) {
			if rules := b.legacy.chains[name]; len(rules) > 0 {
				return legacyChain{s.xt, rules}, nil
			}
			return nil, nil
		}}.Pass(b.chain, on)
	} else {
		t := s.table(b.table)
		back, ended, err = t.Pass(ctx, b.chain, s.seenOf(at, b), on)
		lines = t.Lines()
	}
	if errors.Is(err, nft.ErrTooMany) || errors.Is(err, follow.ErrDoubts) {
		s.note("%s, chain %s is not evaluated: %v", escaped(b.name), escaped(b.chain), err)
		whole := &follow.Rule{Table: b.name, Chain: b.chain, Number: -1, Text: "is not evaluated"}
		for _, f := range on {
			f.Share, f.Doubt, f.Verdict = 0, whole, trace.Drop
			flows = append(flows, f)
		}
		return flows, nil
	}
	if err != nil {
		return nil, err
	}
	s.walked(b, append(lines, s.xt.Lines()...))
	if b.drops {
		policy := &follow.Rule{Table: b.name, Chain: b.chain, Text: "drop"}
		for i := range back {
			back[i].Verdict, back[i].By = trace.Drop, policy
		}
	}
	return follow.Merge(slices.Concat(past, back, ended)), nil
}

// maxJumps is how deep chains may be nested.
const maxJumps = 64

// legacyChain is a chain of iptables-legacy.
type legacyChain struct {
	xt    *xt.Any
	rules []*follow.Rule
}

func (c legacyChain) Rules() int { return len(c.rules) }

func (c legacyChain) Meet(i int, flows []follow.Flow) ([]follow.Met, []follow.Flow, error) {
	return c.xt.Meet(c.rules[i], flows)
}

// walked keeps lines about a base chain.
func (s *Snapshot) walked(b base, lines []string) {
	if len(lines) > 0 && len(s.path) < maxPath {
		s.path = append(s.path, fmt.Sprintf("%s, chain %s (%s, priority %d)", escaped(b.name),
			escaped(b.chain), b.Type, b.Priority))
	}
	for _, line := range lines {
		if len(s.path) == maxPath {
			s.path = append(s.path, "and more")
		}
		if len(s.path) < maxPath {
			s.path = append(s.path, "  "+line)
		}
	}
}

// known reports whether conntrack has the packet when it comes to a base chain.
func known(at stop, b base) bool {
	const conntrack = -200 // NF_IP_PRI_CONNTRACK
	switch {
	case at.Flow.State == Untracked || at.Flow.State == Invalid:
		return false
	case at.Flow.Bound || at.Flow.State == Related: // the kernel gives an error the connection that it is about
		return true
	case at.family == unix.NFPROTO_NETDEV || at.family == unix.NFPROTO_BRIDGE || at.num == inetIngress:
		return at.hook == Postrouting
	}
	return at.hook != Prerouting && at.hook != Output || b.Priority > conntrack
}

// Names of states for iptables, and their bits for nftables.
var (
	stateNames = [...]string{"NEW", "ESTABLISHED", "RELATED", "UNTRACKED", "INVALID"}
	stateBits  = [...]uint32{1 << 3, 1 << 1, 1 << 2, 1 << 6, 1 << 0}
)

// state is how rules of a base chain see the packet's connection.
func state(at stop, b base) State {
	if at.Flow.State != Untracked && !known(at, b) {
		return Invalid
	}
	return at.Flow.State
}

// orig is the tuple of the original direction.
func (p Packet) orig() Tuple {
	if p.Flow.Orig.From.IsValid() {
		return p.Flow.Orig
	}
	return Tuple{p.From, p.To}
}

// Bits of ct status.
const (
	seenReply = 1 << 1
	assured   = 1 << 2
	confirmed = 1 << 3
	srcNAT    = 1 << 4
	dstNAT    = 1 << 5
)

// translations are bits of ct status.
func (f Flow) translations() (bits uint32) {
	if !f.IPVS && f.Orig.To.IsValid() && f.Reverse.From.IsValid() && f.Orig.To != f.Reverse.From {
		bits |= dstNAT
	}
	if f.NewPort || f.Orig.From.IsValid() && f.Reverse.To.IsValid() && f.Orig.From != f.Reverse.To {
		bits |= srcNAT
	}
	return bits
}

func (s *Snapshot) seenOf(at stop, b base) nft.Seen {
	c := nft.Conn{State: stateBits[state(at, b)], Known: known(at, b), Reply: at.Flow.Reply,
		Error: at.Flow.State == Related, Later: at.Flow.later(), Status: at.Flow.translations()}
	if at.Flow.State == Established {
		c.Status |= seenReply
	}
	if at.Flow.tracked() {
		c.Status |= confirmed
	}
	if at.Flow.State == Established && at.Flow.later() && at.Proto == lb.TCP {
		c.Status |= assured
	}
	orig := at.orig()
	c.From, c.To, c.ReplyFrom, c.ReplyTo = orig.From, orig.To, at.Flow.Reverse.From, at.Flow.Reverse.To
	in, out := s.node.link(at.In), s.node.link(at.Out)
	switch {
	case at.family == unix.NFPROTO_BRIDGE: // its rules see ports
		in, out = s.portOf(in, at.Port), s.portOf(out, "")
	case at.device != "" && at.hook == Prerouting:
		in = s.node.link(at.device)
	case at.device != "":
		out = s.node.link(at.device)
	}
	return nft.Seen{Family: s.proto(), Proto: byte(at.Proto), From: at.From, In: in, Out: out,
		Sent:     at.In == "" && (at.hook == Output || at.hook == Postrouting),
		Received: at.hook == Input && at.Flow.State == Established, Conn: c}
}

// portOf returns the port of a bridge, by its name if that is known.
func (s *Snapshot) portOf(bridge nft.Link, name string) nft.Link {
	switch {
	case name != "":
		return s.node.link(name)
	case bridge.Name != "":
		bridge.Port = true
	}
	return bridge
}

func (s *Snapshot) placeOf(at stop, b base) xt.Place {
	orig, bits := at.orig(), at.Flow.translations()
	return xt.Place{Packet: trace.Packet{From: at.From, To: orig.To, Proto: at.Proto}, In: at.In, Out: at.Out,
		Conn: xt.Conn{State: stateNames[state(at, b)], Known: known(at, b), Reply: at.Flow.Reply,
			DNAT: bits&dstNAT != 0, SNAT: bits&srcNAT != 0,
			From: orig.From, To: orig.To, Error: at.Flow.State == Related,
			Acknowledged: at.Flow.later(), Node: s.node}}
}

// ways are flows as the hook leaves them. What may differ because of rules that are not evaluated
// is with those that are certain.
func (s *Snapshot) ways(p Packet, flows []follow.Flow) (all []Way) {
	type doubt struct {
		rule    Rule
		verdict trace.Verdict
	}
	var doubts []doubt
	for _, f := range flows {
		if f.Doubt != nil {
			if f.Doubt.Number < 0 { // of a whole chain: it may do anything
				f.Verdict = ""
			}
			if d := (doubt{Rule(*f.Doubt), f.Verdict}); !slices.Contains(doubts, d) && len(doubts) < maxDoubts {
				doubts = append(doubts, d)
			}
			continue
		}
		w := Way{Packet: p, Share: f.Share, Translated: f.Translated, Masqueraded: f.Masqueraded, Verdict: f.Verdict}
		w.To, w.Mark, w.Flow.Mark, w.Before = f.To, f.Mark, f.ConnMark, 0
		w.TOS, w.TTL, w.Flow.Label = f.TOS, f.TTL, f.Label
		if f.From.IsValid() {
			w.From = f.From
		}
		if w.Flow.State == New && !w.Flow.Bound {
			w.Flow.Orig, w.Flow.Reverse = p.orig(), Tuple{w.To, w.From}
		}
		w.Flow.NewPort = w.Flow.NewPort || f.NewPort
		if f.Untracked {
			w.Flow.State = Untracked
		}
		if f.Offload != nil && f.Verdict != "" {
			w.NotEvaluated, w.If = []Rule{Rule(*f.Offload)}, []trace.Verdict{""}
		}
		w.By, w.UntrackedBy, w.TranslatedBy = (*Rule)(f.By), (*Rule)(f.UntrackedBy), (*Rule)(f.TranslatedBy)
		all = append(all, w)
	}
	for i := range all {
		w := &all[i]
		for _, d := range doubts {
			if w.Verdict == "" || d.verdict != w.Verdict { // else the packet ends alike
				w.NotEvaluated, w.If = append(w.NotEvaluated, d.rule), append(w.If, d.verdict)
			}
		}
	}
	return all
}

// maxDoubts bounds how many rules a way names that were not evaluated.
const maxDoubts = 16
