package iptables

import (
	"context"
	"errors"
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
	// Runner runs the programs; nil runs the system's.
	Runner Runner
}

// Remove takes away all that a kube-proxy, ours or upstream's, has written with iptables in any mode: iptables, ipvs and
// userspace (DP-15). What is the kubelet's stays: KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-IPTABLES-HINT, its canary. Kubelets
// before 1.28 write KUBE-MARK-MASQ and KUBE-POSTROUTING too; those go, unless a rule of others leads to KUBE-MARK-MASQ,
// such as one of CNI plugins for host ports.
//
// Rules of others that lead to our chains stay, and then the chain does, empty. Where there are no rules, nothing is
// written and no table made. Errors wrap plane.ErrUnsupported where there is no such iptables.
func Remove(ctx context.Context, cfg RemoveConfig) (Removed, error) {
	base := "iptables"
	switch {
	case cfg.Family == lb.IPv6:
		base = "ip6tables"
	case cfg.Family != lb.IPv4:
		return Removed{}, fmt.Errorf("iptables: remove: family %s: want IPv4 or IPv6", cfg.Family)
	}
	if cfg.Backend != NFT && cfg.Backend != Legacy {
		return Removed{}, fmt.Errorf("iptables: remove: back end %q: want nft or legacy", cfg.Backend)
	}
	if cfg.Backend == Legacy && !legacyInUse(base) { // to list its tables would make them
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
		var found *leftovers
		if found, err = t.leftovers(ctx, cfg); err == nil {
			err = t.take(ctx, found, &done)
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
	entries, jumps []savedRule
	// drop are chains to delete, empty those that others' rules lead to.
	drop, empty []savedChain
	left        []string
}

// savedChain names a chain as iptables-save does: its tables are not those of the plane alone.
type savedChain struct{ table, name string }

type savedRule struct {
	savedChain
	rule string // after the chain's name
}

// target is the chain or the verdict that the rule leads to.
func (r savedRule) target() string {
	fields := words(r.rule)
	for i, f := range fields[:max(0, len(fields)-1)] {
		if f == "-j" || f == "-g" {
			return fields[i+1]
		}
	}
	return ""
}

// Chains of older versions and of the modes ipvs (DP-33) and userspace, beside those of the plane. nat's
// KUBE-FIREWALL was ipvs'; the kubelet has its own in filter.
var otherModes = map[string][]string{
	"nat": {"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", nodeFirewall,
		"KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST", "KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST"},
	"filter": {"KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-NODEPORT-NON-LOCAL"},
	"raw":    {canary},
}

// Leftover reports whether a chain of a table, such as KUBE-SERVICES of nat, is one that [Remove] would remove.
func Leftover(table, chain string) bool { return isLeftover(savedChain{table, chain}) }

// isLeftover reports whether a kube-proxy made the chain. Other software has chains that begin with KUBE- as well.
func isLeftover(c savedChain) bool {
	for t := range tables {
		if c.table == t.String() && c.name != nodeFirewall && ours(chainID{t, c.name}) {
			return true
		}
	}
	return slices.Contains(otherModes[c.table], c.name)
}

// isJump reports whether the rule has the form of those by which built-in chains lead to ours, of whatever version: any
// with another condition was made by somebody else.
func isJump(rule string) bool {
	var rest []string
	fields := words(rule)
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

// words splits a rule at blanks outside of quotes.
func words(rule string) []string {
	quoted, escaped := false, false
	return strings.FieldsFunc(rule, func(r rune) bool {
		if r == '"' && !escaped {
			quoted = !quoted
		}
		escaped = r == '\\' && !escaped
		return r == ' ' && !quoted
	})
}

// leftovers lists what there is to remove.
func (t *tool) leftovers(ctx context.Context, cfg RemoveConfig) (*leftovers, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out, err := t.run.Run(ctx, nil, t.program+"-save")
	if err != nil {
		return nil, fmt.Errorf("list the rules: %w", err)
	}
	rules := string(out)
	return findLeftovers(rules, keepMartian(cfg, rules)), nil
}

// keepMartian ends that packets to 127.0.0.1 are routed, if the rule is there that protects them. Where that must not
// or cannot be, it says why: then the rule must stay.
func keepMartian(cfg RemoveConfig, out string) (why string) {
	if cfg.Family != lb.IPv4 || !strings.Contains(out, "-A "+nodeFirewall+" "+martian+"\n") {
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

// findLeftovers reads the output of iptables-save. If martian rules are to be kept, keep says why.
func findLeftovers(out, keep string) *leftovers {
	found := &leftovers{}
	builtIn := map[savedChain]bool{}
	kubelet := false                      // which writes the rule of DP-10 as well, and once only
	foreign := map[savedChain]savedRule{} // to our chains, rules of others
	var rules []savedRule
	var chains []savedChain
	table := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			name, policy, _ := strings.Cut(line[1:], " ")
			c := savedChain{table, name}
			builtIn[c] = !strings.HasPrefix(policy, "-")
			kubelet = kubelet || table == mangle.String() && slices.Contains(kubelets, name)
			if isLeftover(c) {
				chains = append(chains, c)
			}
		case strings.HasPrefix(line, "-A "):
			name, rule, _ := strings.Cut(line[3:], " ")
			r := savedRule{savedChain{table, name}, rule}
			if !isLeftover(r.savedChain) {
				rules = append(rules, r)
			}
		}
	}
	for _, r := range rules {
		to := savedChain{r.table, r.target()}
		switch {
		case r.savedChain == savedChain{"filter", nodeFirewall} && r.rule == martian:
			switch {
			case keep != "":
				found.left = append(found.left, "the rule of "+nodeFirewall+" that protects 127.0.0.1 stays: "+keep)
			case !kubelet:
				found.jumps = append(found.jumps, r)
			}
		case !isLeftover(to):
		case !builtIn[r.savedChain] || !isJump(r.rule):
			foreign[to] = r
		case r.table == "nat" && (r.name == "PREROUTING" || r.name == "OUTPUT"):
			found.entries = append(found.entries, r)
		default:
			found.jumps = append(found.jumps, r)
		}
	}
	masq := savedChain{"nat", markMasq}
	r, masquerades := foreign[masq]
	if masquerades {
		found.left = append(found.left, fmt.Sprintf("chains nat %s and %s stay in force: a rule of others relies on them: -A %s %s", markMasq, postrouting, r.name, r.rule))
		found.jumps = slices.DeleteFunc(found.jumps, func(r savedRule) bool { return r.table == "nat" && r.target() == postrouting })
	}
	for _, c := range chains {
		r, is := foreign[c]
		switch {
		case masquerades && (c == masq || c == savedChain{"nat", postrouting}):
		case is:
			found.empty = append(found.empty, c)
			found.left = append(found.left, fmt.Sprintf("chain %s %s stays, empty: a rule of others leads to it: -A %s %s", c.table, c.name, r.name, r.rule))
		default:
			found.drop = append(found.drop, c)
		}
	}
	return found
}

// take removes what was found: first what leads new connections to translation, so that what is translated already is
// masqueraded and let pass until the end; then what leads to the other chains; then the chains.
func (t *tool) take(ctx context.Context, found *leftovers, done *Removed) error {
	for _, rules := range [][]savedRule{found.entries, found.jumps} {
		text := lines{}
		for _, r := range rules {
			text.add(r.table, "-D "+r.name+" "+r.rule)
		}
		if err := t.restoreLines(ctx, text); err != nil {
			return err
		}
		done.Rules += len(rules)
		if _, real := t.run.(system); real && len(rules) > 0 {
			kernel.AwaitPackets() // some may have been translated, and not be masqueraded yet
		}
	}
	step := nftLines
	if t.backend == Legacy {
		step = legacyLines
	}
	// All are emptied before any is deleted, for they lead to each other.
	for part := range slices.Chunk(slices.Concat(found.empty, found.drop), step) {
		if err := t.flush(ctx, part); err != nil {
			return err
		}
	}
	done.Left = found.left
	for part := range slices.Chunk(found.drop, step) {
		if err := t.drop(ctx, part, done); err != nil {
			return err
		}
	}
	return nil
}

// flush makes chains empty.
func (t *tool) flush(ctx context.Context, chains []savedChain) error {
	text := lines{}
	for _, c := range chains {
		text.add(c.table, ":"+c.name+" - [0:0]")
	}
	return t.restoreLines(ctx, text)
}

// drop deletes empty chains. If one cannot be, the others are.
func (t *tool) drop(ctx context.Context, chains []savedChain, done *Removed) error {
	text := lines{}
	for _, c := range chains {
		text.add(c.table, "-X "+c.name)
	}
	err := t.restoreLines(ctx, text)
	switch {
	case err == nil:
		done.Chains += len(chains)
		return nil
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), t.flush(ctx, chains) != nil: // no chain is to blame
		return err
	case len(chains) == 1:
		done.Left = append(done.Left, fmt.Sprintf("chain %s %s stays, empty: %v", chains[0].table, chains[0].name, err))
		return nil
	}
	half := len(chains) / 2
	if err := t.drop(ctx, chains[:half], done); err != nil {
		return err
	}
	return t.drop(ctx, chains[half:], done)
}

// lines are input of iptables-restore, by table.
type lines map[string][]string

func (l lines) add(table, line string) { l[table] = append(l[table], line) }

func (t *tool) restoreLines(ctx context.Context, l lines) error {
	if len(l) == 0 {
		return nil
	}
	return t.restore(ctx, func(w io.Writer) error {
		for _, table := range []string{"raw", "mangle", "nat", "filter"} {
			if len(l[table]) == 0 {
				continue
			}
			if _, err := io.WriteString(w, "*"+table+"\n"+strings.Join(l[table], "\n")+"\nCOMMIT\n"); err != nil {
				return err
			}
		}
		return nil
	})
}
