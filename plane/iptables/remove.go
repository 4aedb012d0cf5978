//go:build linux

package iptables

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
)

// Removed says what became of the rules of modes that do not run, of one back end and family.
type Removed struct {
	// Chains is how many were deleted, Rules how many rules of chains of others.
	Chains, Rules int
	// Left has a sentence for each thing that stays though it is ours, and why.
	Left []string
}

// RemoveConfig says from where to remove.
type RemoveConfig struct {
	// Family is the IP family, Backend the variant of iptables: not Auto.
	Family  lb.Family
	Backend Backend
	// KeepLocalnet leaves connections to NodePorts on 127.0.0.1 alive: net.ipv4.conf.all.route_localnet stays as it
	// is, and with it the rule that keeps others on the link away from 127.0.0.1 (DP-10). Otherwise both go.
	KeepLocalnet bool
	// Keep is what a mode that runs keeps by iptables: its chains stay, and so do rules of built-in chains that lead to them from where
	// it has some itself. Nil if there is no such mode.
	Keep *Layout
	// Runner runs the programs; nil runs the system's.
	Runner Runner
}

// Remove takes away all that a kube-proxy, ours or upstream's, has written with iptables in the modes iptables and
// ipvs (DP-15). What is the kubelet's stays: KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-IPTABLES-HINT, its canary. Kubelets
// before 1.28 write KUBE-MARK-MASQ and KUBE-POSTROUTING too; those go, unless a rule of others leads to KUBE-MARK-MASQ,
// such as one of CNI plugins for host ports.
//
// Rules of others that lead to our chains stay, and then the chain does, empty. Where there are no rules, nothing is
// written and no table made. Errors wrap plane.ErrUnsupported where there is no such iptables.
func Remove(ctx context.Context, cfg RemoveConfig) (Removed, error) {
	if cfg.Family != lb.IPv4 && cfg.Family != lb.IPv6 {
		return Removed{}, fmt.Errorf("iptables: remove: family %s: want IPv4 or IPv6", cfg.Family)
	}
	if cfg.Backend != NFT && cfg.Backend != Legacy {
		return Removed{}, fmt.Errorf("iptables: remove: back end %q: want nft or legacy", cfg.Backend)
	}
	if cfg.Backend == Legacy && !legacyInUse(baseName(cfg.Family)) { // to list its tables would make them
		return Removed{}, nil
	}
	run := cfg.Runner
	if run == nil {
		run = system{}
	}
	t, err := findTool(run, cfg.Family, cfg.Backend)
	if err != nil {
		return Removed{}, err
	}
	return t.remove(ctx, cfg)
}

// Remove is [Remove] for the plane's own family and back end. The plane holds nothing afterwards; only Reset brings it
// back.
func (p *Plane) Remove(ctx context.Context) error {
	p.st = nil
	if nf := p.accounting.Swap(nil); nf != nil {
		nf.Close()
		p.base.counts = false
	}
	_, err := p.tool.remove(ctx, RemoveConfig{Family: p.family, Backend: p.tool.backend, KeepLocalnet: p.dry})
	return err
}

// remove lists the rules and removes. If others change rules meanwhile, it begins again.
func (t *tool) remove(ctx context.Context, cfg RemoveConfig) (done Removed, err error) {
	for range 3 {
		found := &leftovers{foreign: map[chainID]jump{}, keep: cfg.Keep}
		if err = t.list(ctx, found.read); err == nil {
			err = t.take(ctx, found, cfg, &done)
		}
		if err == nil && cfg.Keep != nil { // the mode that runs may count
			return done, nil
		}
		if err == nil {
			return done, t.removeCounters()
		}
		if ctx.Err() != nil {
			break
		}
	}
	return done, fmt.Errorf("iptables: remove rules of %s, %s: %w", cfg.Family, t.program, err)
}

// removeCounters deletes the counters of MT-16 and MT-17, unless the other family or back end still counts.
func (t *tool) removeCounters() error {
	if _, real := t.run.(system); !real {
		return nil
	}
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		return nil // where nothing can be asked, nothing was made
	}
	defer nf.Close()
	return dropCounters(nf, 500*time.Millisecond)
}

// leftovers is what there is to remove.
type leftovers struct {
	// entries are the rules by which connections come to be translated, jumps all others of chains of others.
	entries, jumps []jump
	// chains are those of a kube-proxy; foreign are rules of others that lead to them, one for each.
	chains  []chainID
	foreign map[chainID]jump
	// blockLocalnet: the rule of DP-10 is there. kubelet: so is a kubelet, which writes it as well, and once only.
	blockLocalnet, kubelet bool
	// keep is that of RemoveConfig.
	keep *Layout
}

// goes reports whether a chain is to be removed.
func (l *leftovers) goes(id chainID) bool {
	return isLeftover(id) && (l.keep == nil || !l.keep.Ours(id.table.String(), id.name))
}

// kept reports whether a rule of a built-in chain that leads to a chain of kube-proxy stays. How a program prints a rule does not count.
func (l *leftovers) kept(from, to chainID) bool {
	return l.keep != nil && slices.ContainsFunc(l.keep.Jumps, func(j ChainRule) bool {
		return j.Table == from.table.String() && j.Chain == from.name && target(j.Rule) == to.name
	})
}

// target is the chain or the verdict that a rule leads to.
func target(rule string) string {
	fields := Words(rule)
	for i, f := range fields[:max(0, len(fields)-1)] {
		if f == "-j" || f == "-g" {
			return fields[i+1]
		}
	}
	return ""
}

// Chains of older versions and of mode ipvs (DP-33), beside those of the plane. Mode userspace has its own removal. nat's
// KUBE-FIREWALL was ipvs'; the kubelet has its own in filter.
var otherModes = [...][]string{
	nat:    {"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", nodeFirewall},
	filter: {"KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER"},
	mangle: {proxyFirewall, "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-IN", "KUBE-IPVS-OUT", "KUBE-IPVS-SENT",
		"KUBE-IPVS-ORIGIN", "KUBE-IPVS-ORIGIN-PODS", "KUBE-IPVS-ORIGIN-HOST", "KUBE-IPVS-ORIGIN-ANYWHERE"},
	raw: {canary},
}

// Leftover reports whether a chain of a table, such as KUBE-SERVICES of nat, is one that [Remove] would remove.
func Leftover(table, chain string) bool {
	t, ok := tableNamed(table)
	return ok && isLeftover(chainID{t, chain})
}

// isLeftover reports whether a kube-proxy made the chain. Other software has chains that begin with KUBE- as well.
func isLeftover(id chainID) bool {
	return id.table < tables && id.name != nodeFirewall && ours(id) || slices.Contains(otherModes[id.table], id.name)
}

// isJump reports whether the rule has the form of those by which built-in chains lead to ours, of whatever version: any
// with another condition was made by somebody else.
func isJump(rule string) bool {
	var rest []string
	fields := Words(rule)
	for i := 0; i < len(fields); {
		next := func(n int) string {
			if i+n < len(fields) {
				return fields[i+n]
			}
			return ""
		}
		switch {
		case next(0) == "-m" && next(1) == "comment" && next(2) == "--comment",
			next(0) == "-m" && next(1) == "conntrack" && next(2) == "--ctstate" && next(3) == "NEW",
			next(0) == "-m" && next(1) == "state" && next(2) == "--state" && next(3) == "NEW",
			next(0) == "-m" && next(1) == "addrtype" && next(2) == "--dst-type" && next(3) == "LOCAL":
			i += 4
		default:
			rest = append(rest, next(0))
			i++
		}
	}
	return len(rest) == 2 && rest[0] == "-j"
}

// Words splits a rule, as iptables-save prints it, at blanks outside of quotes.
func Words(rule string) []string {
	quoted, escaped := false, false
	return strings.FieldsFunc(rule, func(r rune) bool {
		if r == '"' && !escaped {
			quoted = !quoted
		}
		escaped = r == '\\' && !escaped
		return r == ' ' && !quoted
	})
}

// read takes the output of iptables-save.
func (l *leftovers) read(r io.Reader) error {
	builtIn := map[chainID]bool{}
	for line, err := range readSaved(r) {
		if err != nil {
			return err
		}
		t, known := tableNamed(line.table)
		if !known || line.kind == savedUnlistable {
			continue
		}
		id := chainID{t, string(line.chain)}
		if line.kind == savedChain {
			builtIn[id] = !bytes.HasPrefix(line.rest, []byte("-"))
			l.kubelet = l.kubelet || isKubelets(id)
			if l.goes(id) {
				l.chains = append(l.chains, id)
			}
			continue
		}
		if isLeftover(id) {
			continue
		}
		j := jump{id, string(line.rest)}
		to := chainID{t, target(j.rule)}
		switch {
		case j == blockLocalnetJump:
			l.blockLocalnet = l.keep == nil // of the mode that runs
		case !isLeftover(to), l.kept(id, to):
		case !builtIn[id] || !isJump(j.rule):
			if l.goes(to) {
				l.foreign[to] = j
			}
		case t == mangle, t == nat && (id.name == "PREROUTING" || id.name == "OUTPUT"):
			l.entries = append(l.entries, j)
		default:
			l.jumps = append(l.jumps, j)
		}
	}
	return nil
}

// keepBlock ends that packets to 127.0.0.1 are routed, if the rule is there that protects them. Where that must not
// or cannot be, it says why: then the rule must stay.
func (l *leftovers) keepBlock(cfg RemoveConfig) (why string) {
	if cfg.Family != lb.IPv4 || !l.blockLocalnet {
		return ""
	}
	value, err := kernel.Sysctl(routeLocalnet)
	switch {
	case err == nil && value == "0":
		return ""
	case err == nil && cfg.KeepLocalnet:
		return "for connections to NodePorts on 127.0.0.1, sysctl " + routeLocalnet + " stays " + value
	case err == nil:
		err = closeLocalnet()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// stays takes out of what is to be removed what must stay, and says why. keep says why the rule of DP-10 must, if it must. Of the
// chains empty are those that stay though they are ours, for rules of others lead to them.
func (l *leftovers) stays(keep string) (empty []chainID, left []string) {
	switch {
	case !l.blockLocalnet:
	case keep != "":
		left = append(left, "the rule of "+nodeFirewall+" that protects 127.0.0.1 stays: "+keep)
	case !l.kubelet:
		l.jumps = append(l.jumps, blockLocalnetJump)
	}
	masq, post := chainID{nat, markMasq}, chainID{nat, postrouting}
	if j, relied := l.foreign[masq]; relied {
		left = append(left, fmt.Sprintf("chains nat %s and %s stay in force: a rule of others relies on them: -A %s %s", markMasq, postrouting, j.from.name, j.rule))
		l.jumps = slices.DeleteFunc(l.jumps, func(j jump) bool { return j.from.table == nat && target(j.rule) == postrouting })
		l.chains = slices.DeleteFunc(l.chains, func(id chainID) bool { return id == masq || id == post })
	}
	l.chains = slices.DeleteFunc(l.chains, func(id chainID) bool {
		j, is := l.foreign[id]
		if is {
			empty = append(empty, id)
			left = append(left, fmt.Sprintf("chain %s %s stays, empty: a rule of others leads to it: -A %s %s", id.table, id.name, j.from.name, j.rule))
		}
		return is
	})
	return empty, left
}

// take removes what was found: first what leads new connections to translation, so that what is translated already is
// masqueraded and let pass until the end; then what leads to the other chains; then the chains.
func (t *tool) take(ctx context.Context, found *leftovers, cfg RemoveConfig, done *Removed) error {
	empty, left := found.stays(found.keepBlock(cfg))
	for _, rules := range [][]jump{found.entries, found.jumps} {
		slices.SortStableFunc(rules, func(a, b jump) int { return cmp.Compare(b.from.table, a.from.table) })
		var b batch
		for _, j := range rules {
			s := b.only(j.from.table)
			s.remove = append(s.remove, j)
		}
		if err := t.restoreBatch(ctx, &b); err != nil {
			return err
		}
		done.Rules += len(rules)
		if _, real := t.run.(system); real && len(rules) > 0 {
			kernel.AwaitPackets() // some may have been translated, and not be masqueraded yet
		}
	}
	done.Left = left
	most := max(1, len(empty)+len(found.chains))
	if t.backend == NFT {
		most = nftLines
	}
	stuck, err := sweep(ctx, empty, found.chains, most, func(b *batch) error {
		err := t.restoreBatch(ctx, b)
		for _, s := range b.sections {
			if err == nil {
				done.Chains += len(s.drop)
			}
		}
		return err
	})
	for _, s := range stuck {
		done.Left = append(done.Left, fmt.Sprintf("chain %s %s stays, empty: %v", s.id.table, s.id.name, s.err))
	}
	return err
}
