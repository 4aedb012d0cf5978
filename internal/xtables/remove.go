//go:build linux

package xtables

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
)

// Removed is the result of a removal in one back end and family.
type Removed struct {
	// Chains is the number of deleted chains, Rules that of deleted rules in foreign chains.
	Chains, Rules int
	// Left has a sentence for each object of ours that stays, with the reason.
	Left []string
}

// RemoveConfig configures a removal.
type RemoveConfig struct {
	// Family is the IP family, Backend the variant of iptables: not Auto.
	Family  lb.Family
	Backend Backend
	// KeepLocalnet keeps connections to NodePorts on 127.0.0.1: the sysctl route_localnet stays as
	// it is, and so does the rule that protects 127.0.0.1 from other hosts (DP-10). Otherwise both
	// are removed.
	KeepLocalnet bool
	// KeepGuard leaves the chain that [IsGuard] names, which mode ipvs removes after the addresses
	// that the chain protects.
	KeepGuard bool
	// Keep is the layout of the running mode, nil for none: its chains stay, and so do its jumps
	// from built-in chains.
	Keep *Layout
	// Ours reports which chains of a table to remove; nil for those of the modes iptables and ipvs,
	// see [Leftover].
	Ours func(table, chain string) bool
	// Runner runs the programs; nil runs the system's.
	Runner Runner
}

// Remove removes everything that a kube-proxy, ours or upstream's, wrote with iptables in the modes
// iptables and ipvs (DP-15). The kubelet's chains stay: KUBE-MARK-DROP, KUBE-IPTABLES-HINT, its
// canary, and KUBE-FIREWALL if the kubelet has any of them in mangle or other software uses that
// chain. Before 1.28 a kubelet writes KUBE-MARK-MASQ and KUBE-POSTROUTING too; those are removed
// unless a rule of other software jumps to KUBE-MARK-MASQ, such as one of CNI plugins for host
// ports.
//
// Rules of other software that jump to our chains stay, and so does the chain, empty. Without rules
// to remove, Remove writes nothing and creates no table. Errors wrap plane.ErrUnsupported if this
// iptables is missing, and name chains that the kernel still has.
func Remove(ctx context.Context, cfg RemoveConfig) (Removed, error) {
	if cfg.Backend == Legacy && !LegacyInUse(cfg.Family) { // listing its tables would create them
		return Removed{}, nil
	}
	t, err := FindTool(cmp.Or[Runner](cfg.Runner, System{}), cfg.Family, cfg.Backend)
	if err != nil {
		return Removed{}, err
	}
	return t.remove(ctx, cfg)
}

// remove lists the rules, removes ours, and verifies that with the kernel. It starts again if other
// programs change rules meanwhile.
func (t *Tool) remove(ctx context.Context, cfg RemoveConfig) (done Removed, err error) {
	for range 3 {
		found := newLeftovers(cfg)
		err = t.Lines(ctx, found.Read)
		if err == nil {
			err = t.take(ctx, found, &done)
		}
		if err == nil {
			err = t.verify(ctx, found)
		}
		if err == nil && !found.guards { // the running mode may use the counters
			return done, nil
		}
		if err == nil {
			return done, t.removeCounters()
		}
		if ctx.Err() != nil {
			break
		}
	}
	return done, fmt.Errorf("iptables: remove rules of %s, %s: %w", cfg.Family, t.Program, err)
}

// verify checks that the kernel has none of the deleted chains, and no rules in emptied ones.
func (t *Tool) verify(ctx context.Context, found *leftovers) error {
	if !t.Real() {
		return nil
	}
	h, err := t.OpenHolding(ctx)
	if err != nil {
		return fmt.Errorf("verify the removal: %w", err)
	}
	defer h.Close()
	var remain []string
	for i := range tableNames {
		names, err := h.Names(Table(i))
		if err != nil {
			return fmt.Errorf("verify the removal: %w", err)
		}
		for _, name := range names {
			if id := (ChainID{Table(i), name}); found.goes(id) && !found.mayStay(id, h) {
				remain = append(remain, id.Table.String()+" "+name)
			}
		}
	}
	if len(remain) == 0 {
		return nil
	}
	see := t.Program + "-save"
	if t.Backend == NFT {
		see = "nft list ruleset"
	}
	return fmt.Errorf("the kernel still has %d chains of kube-proxy (%s): see %s, delete the rules that lead to "+
		"them, then run --cleanup again", len(remain), strings.Join(remain[:min(len(remain), 10)], ", "), see)
}

// mayStay reports whether the report lists a chain as left, in force or without rules.
func (l *leftovers) mayStay(id ChainID, h Holding) bool {
	if empty, reported := l.stay[id]; !reported || !empty {
		return reported
	}
	c, err := h.Chain(id)
	return err == nil && (c == nil || len(c.Rules) == 0)
}

// removeCounters deletes the counters of MT-16 and MT-17, unless the other family or back end uses
// them.
func (t *Tool) removeCounters() error {
	if !t.Real() {
		return nil
	}
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		return nil // counters that cannot be read were not created
	}
	defer nf.Close()
	return DropCounters(nf, 500*time.Millisecond)
}

// leftovers are the rules and chains to remove.
type leftovers struct {
	RemoveConfig // with Ours
	// entries are the rules that send connections to translation, jumps all other jumps from
	// foreign chains to ours.
	entries, jumps []Jump
	// handles are the handles of entries and jumps that iptables cannot delete.
	handles map[Jump][]uint64
	// Chains are those of a kube-proxy; foreign has one rule of other software for each chain that
	// such rules jump to.
	Chains  []ChainID
	foreign map[ChainID]Jump
	// builtIn has the listed chains, and whether they are built in.
	builtIn map[ChainID]bool
	// stay has the chains that the report lists as left, and whether they are empty.
	stay map[ChainID]bool
	// blockLocalnet: the rule of DP-10 exists. kubelet: a kubelet exists, which writes that rule
	// too, but only once.
	blockLocalnet, kubelet bool
	// guards: the rule of DP-10 belongs to the removed modes: none of them runs, and all of their
	// chains are deleted.
	guards bool
	// toFirewall are rules of built-in chains that jump to KUBE-FIREWALL; inFirewall are its rules
	// except that of DP-10.
	toFirewall, inFirewall []Jump
}

func newLeftovers(cfg RemoveConfig) *leftovers {
	l := &leftovers{RemoveConfig: cfg, guards: cfg.Ours == nil && cfg.Keep == nil, handles: map[Jump][]uint64{},
		foreign: map[ChainID]Jump{}, builtIn: map[ChainID]bool{}, stay: map[ChainID]bool{}}
	if l.Ours == nil {
		l.Ours = Leftover
	}
	return l
}

// is reports whether a chain belongs to the removed modes.
func (l *leftovers) is(id ChainID) bool { return l.Ours(id.Table.String(), id.Name) }

// goes reports whether to remove a chain.
func (l *leftovers) goes(id ChainID) bool {
	return l.is(id) && !l.guard(id) && (l.Keep == nil || !l.Keep.Ours(id.Table.String(), id.Name))
}

// guard reports whether a chain stays because it protects existing addresses.
func (l *leftovers) guard(id ChainID) bool { return l.KeepGuard && IsGuard(id.Table.String(), id.Name) }

// kept reports whether a jump from a built-in chain to a chain of kube-proxy stays, however a
// program prints it.
func (l *leftovers) kept(from, to ChainID) bool {
	return l.guard(to) || l.Keep != nil && slices.ContainsFunc(l.Keep.Jumps, func(j ChainRule) bool {
		return j.Table == from.Table.String() && j.Chain == from.Name && target(j.Rule) == to.Name
	})
}

// Read handles a line of iptables-save.
func (l *leftovers) Read(line SavedLine) {
	t, known := TableNamed(line.Table)
	if !known {
		return
	}
	id := ChainID{t, string(line.Chain)}
	if line.Kind == SavedChain {
		l.builtIn[id] = !bytes.HasPrefix(line.Rest, []byte("-"))
		l.kubelet = l.kubelet || isKubelets(id)
		if l.goes(id) {
			l.Chains = append(l.Chains, id)
		}
		return
	}
	if l.is(id) {
		return
	}
	j := Jump{id, string(line.Rest)}
	if line.Handle != 0 {
		if id == BlockLocalnetJump.From && WithoutComments(j.Rule) == WithoutComments(BlockLocalnet) {
			j = BlockLocalnetJump
		}
		l.handles[j] = append(l.handles[j], line.Handle)
	}
	l.rule(j)
}

// rule handles a rule of a foreign chain.
func (l *leftovers) rule(j Jump) {
	to := ChainID{j.From.Table, target(j.Rule)}
	switch {
	case j == BlockLocalnetJump:
		l.blockLocalnet = l.guards
	case j.From == firewall:
		l.inFirewall = append(l.inFirewall, j)
	case to == firewall && l.builtIn[j.From] && isJump(j.Rule):
		l.toFirewall = append(l.toFirewall, j)
	case to == firewall:
		l.foreign[to] = j
	}
	switch {
	case j == BlockLocalnetJump, !l.is(to), l.kept(j.From, to):
	case !l.builtIn[j.From] || !isJump(j.Rule):
		if l.goes(to) {
			l.foreign[to] = j
		}
	case j.From.Table == Mangle, j.From.Table == NAT && (j.From.Name == "PREROUTING" || j.From.Name == "OUTPUT"):
		l.entries = append(l.entries, j)
	default:
		l.jumps = append(l.jumps, j)
	}
}

// keepBlock resets route_localnet if the rule that protects 127.0.0.1 exists. If it must not or
// cannot, it returns the reason why the rule must stay.
func (l *leftovers) keepBlock() (why string) {
	if l.Family != lb.IPv4 || !l.blockLocalnet {
		return ""
	}
	value, err := kernel.Sysctl(RouteLocalnet)
	switch {
	case err == nil && value == "0":
		return ""
	case err == nil && l.KeepLocalnet:
		return "for connections to NodePorts on 127.0.0.1, sysctl " + RouteLocalnet + " stays " + value
	case err == nil:
		err = CloseLocalnet()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// stays removes from the lists everything that must stay, and returns the reasons in left. keep is
// the reason why the rule of DP-10 must stay, "" if it need not. empty are the chains of ours that
// stay because rules of other software jump to them.
func (l *leftovers) stays(keep string) (empty []ChainID, left []string) {
	left = l.firewallStays(keep)
	switch {
	case !l.blockLocalnet:
	case keep != "":
		left = append(left, "the rule of "+NodeFirewall+" that protects 127.0.0.1 stays: "+keep)
	case !l.kubelet:
		l.jumps = append(l.jumps, BlockLocalnetJump)
	}
	masq, post := ChainID{NAT, MarkMasq}, ChainID{NAT, Postrouting}
	if j, relied := l.foreign[masq]; relied {
		left = append(left, fmt.Sprintf("chains nat %s and %s stay in force: a rule of others relies on them: -A %s %s",
			MarkMasq, Postrouting, j.From.Name, j.Rule))
		l.jumps = slices.DeleteFunc(l.jumps, func(j Jump) bool {
			return j.From.Table == NAT && target(j.Rule) == Postrouting
		})
		l.stay[masq], l.stay[post] = false, false
		l.Chains = slices.DeleteFunc(l.Chains, func(id ChainID) bool { return id == masq || id == post })
	}
	l.Chains = slices.DeleteFunc(l.Chains, func(id ChainID) bool {
		j, is := l.foreign[id]
		if is {
			empty = append(empty, id)
			l.stay[id] = true
			left = append(left, fmt.Sprintf("chain %s %s stays, empty: a rule of others leads to it: -A %s %s",
				id.Table, id.Name, j.From.Name, j.Rule))
		}
		return is
	})
	return empty, left
}

// firewallStays lists KUBE-FIREWALL and the jumps to it for removal, unless a kubelet or other
// software uses it. Then it returns the reason.
func (l *leftovers) firewallStays(keep string) (left []string) {
	if _, there := l.builtIn[firewall]; !there || l.kubelet || l.KeepLocalnet || !l.guards {
		return nil
	}
	why := ""
	switch j, relied := l.foreign[firewall]; {
	case keep != "":
		return nil // stays reports its rule
	case relied:
		why = "a rule of others leads to it: -A " + j.From.Name + " " + j.Rule
	case len(l.inFirewall) > 0:
		why = "it has a rule that no kube-proxy writes: -A " + NodeFirewall + " " + l.inFirewall[0].Rule
	default:
		l.jumps = append(l.jumps, l.toFirewall...)
		l.Chains = append(l.Chains, firewall)
		return nil
	}
	delete(l.foreign, firewall)
	return []string{fmt.Sprintf("chain filter %s stays, though no kubelet has chains here, and so do the rules of "+
		"INPUT and OUTPUT that lead to it: %s", NodeFirewall, why)}
}

// take first removes the rules that send new connections to translation, so that translated ones
// are masqueraded and accepted until the end. Then it removes the other jumps to the chains, and
// then the chains.
func (t *Tool) take(ctx context.Context, found *leftovers, done *Removed) error {
	empty, left := found.stays(found.keepBlock())
	for _, rules := range [][]Jump{found.entries, found.jumps} {
		slices.SortStableFunc(rules, func(a, b Jump) int { return cmp.Compare(b.From.Table, a.From.Table) })
		var b Batch
		for _, j := range rules {
			b.remove(j, found.handles)
		}
		if err := t.restoreBatch(ctx, b.Text(), &b); err != nil {
			return err
		}
		done.Rules += len(rules)
		if t.Real() && len(rules) > 0 {
			kernel.AwaitPackets() // translated packets may not be masqueraded yet
		}
	}
	done.Left = left
	most := max(1, len(empty)+len(found.Chains))
	if t.Backend == NFT {
		most = NFTLines
	}
	stuck, err := Sweep(ctx, empty, found.Chains, most, func(b *Batch) error {
		err := t.restoreBatch(ctx, b.Text(), b)
		for _, s := range b.Sections {
			if err == nil {
				done.Chains += len(s.Drop)
			}
		}
		return err
	})
	for _, s := range stuck {
		found.stay[s.ID] = true
		done.Left = append(done.Left, fmt.Sprintf("chain %s %s stays, empty: %v", s.ID.Table, s.ID.Name, s.err))
	}
	return err
}
