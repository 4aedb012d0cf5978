package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
)

// Mode returns the mode iptables.
func Mode() mode.Mode { return ModeIn(map[lb.Family]Backend{}) }

// ModeIn returns the mode as it is where its planes write with these back ends already.
func ModeIn(backends map[lb.Family]Backend) mode.Mode {
	h := host{backends: backends}
	m := facts()
	m.Sysctls = sysctls
	m.Able, m.New, m.Render = h.able, h.open, render
	m.Modules = func(s mode.Settings) []string { return Modules(s.Family) }
	m.Remove = func(ctx context.Context, what mode.Removal) (mode.Report, error) { return remove(ctx, what, both) }
	m.RemoveStale = h.removeStale
	return m
}

// host is what this process knows of the iptables of its machine.
type host struct {
	// found are the programs of the family that the mode was chosen for: to look again would take seconds.
	found *Programs
	// backends are those that planes write with.
	backends map[lb.Family]Backend
}

func (h *host) able(s mode.Settings) (err error) {
	h.found, err = Find(s.Family)
	return err
}

// Modules are those that [Find] may make the kernel load: it asks the nft back end, and where there is no such program the other.
func Modules(f lb.Family) []string {
	all := []string{"nfnetlink", "nf_tables", "nft_compat"}
	if _, err := exec.LookPath(baseName(f) + "-nft"); err != nil {
		all = []string{"ip_tables", "iptable_nat"}
		if f == lb.IPv6 {
			all = []string{"ip6_tables", "ip6table_nat"}
		}
	}
	all = append(all, "x_tables")
	for _, e := range needed[NFT] {
		all = append(all, moduleOf(e))
	}
	return all
}

// moduleOf returns the module that has an extension, of Linux 5.10 or later.
func moduleOf(e extension) string {
	if e.name == "DNAT" {
		return "xt_nat"
	}
	return "xt_" + e.name
}

func (h *host) open(s mode.Settings) (mode.Plane, error) {
	cfg := configOf(s)
	if h.found != nil && h.found.family == s.Family {
		cfg.Programs = h.found
	}
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	h.backends[s.Family] = p.Backend()
	return p, nil
}

func configOf(s mode.Settings) Config {
	return Config{Family: s.Family, MasqueradeBit: &s.MasqueradeBit, LocalhostNodePorts: &s.LocalhostNodePorts, Writes: s.Writes}
}

func render(s mode.Settings, want *lb.Table) ([]byte, error) {
	text, err := Render(configOf(s), want)
	return append(fmt.Appendf(nil, "# %s-restore --noflush\n", baseName(s.Family)), text...), err
}

// sysctls lets packets of 127.0.0.1 leave for pods. A plane that runs does it after its rule that blocks localnet is in force;
// with --init-only that rule comes with the next process.
func sysctls(s mode.Settings) []mode.Sysctl {
	if !s.LocalhostNodePorts || !slices.ContainsFunc(s.NodePorts, func(p netip.Prefix) bool { return p.Overlaps(loopback4) }) {
		return nil
	}
	return []mode.Sysctl{{Name: routeLocalnet, Value: "1", InitOnly: true,
		Asks: "--iptables-localhost-nodeports (iptables.localhostNodePorts), where false does without"}}
}

// both are the back ends of iptables.
func both(lb.Family) []Backend { return []Backend{NFT, Legacy} }

// removeStale removes what is left in the back end that a family is not written with: its rules would go on to lead to
// endpoints of long ago (DP-14). In its own it removes the chains of mode ipvs that the plane has none of.
func (h *host) removeStale(ctx context.Context, what mode.Removal) (mode.Report, error) {
	keep := layout()
	return RemoveBeside(ctx, what, func(f lb.Family) (Backend, *Layout) { return h.backends[f], keep })
}

// layout is what the plane keeps.
func layout() *Layout {
	keep := &Layout{Ours: func(table, chain string) bool {
		t, ok := tableNamed(table)
		return ok && t < tables && ours(chainID{t, chain})
	}}
	for _, j := range jumps() {
		keep.Jumps = append(keep.Jumps, ChainRule{j.from.table.String(), j.from.name, j.rule})
	}
	return keep
}

// RemoveBeside removes what other modes left, in both back ends, beside one that keeps a layout in one of them. Of a family for which
// runs returns no back end nothing is removed.
func RemoveBeside(ctx context.Context, what mode.Removal, runs func(lb.Family) (Backend, *Layout)) (r mode.Report, err error) {
	for _, fam := range what.Families {
		own, keep := runs(fam)
		if own != NFT && own != Legacy {
			continue
		}
		for _, b := range both(fam) {
			beside := keep
			if b != own {
				beside = nil
			}
			s := scope{keep: beside, keepGuard: !keep.Ours("filter", guardOfIPVS)}
			err = errors.Join(err, s.removeFrom(ctx, what, fam, b, &r))
		}
	}
	return r, err
}

// remove removes the rules that the modes iptables and ipvs leave in the back ends, but for the guard of kube-ipvs0.
func remove(ctx context.Context, what mode.Removal, backends func(lb.Family) []Backend) (r mode.Report, err error) {
	for _, fam := range what.Families {
		for _, b := range backends(fam) {
			err = errors.Join(err, scope{keepGuard: true}.removeFrom(ctx, what, fam, b, &r))
		}
	}
	return r, err
}

// RemoveKept removes the chains that a [Keeper] has of a layout, and what leads to them, in both back ends. of names the mode.
func RemoveKept(ctx context.Context, l Layout, of string) (r mode.Report, err error) {
	s := scope{ours: l.Ours, of: " of mode " + of}
	for _, b := range both(l.Family) {
		err = errors.Join(err, s.removeFrom(ctx, mode.Removal{Beside: true}, l.Family, b, &r))
	}
	return r, err
}

// scope says whose chains to remove: see Ours, Keep and KeepGuard of RemoveConfig. of names them, "" for those of the modes iptables and ipvs.
type scope struct {
	ours func(table, chain string) bool
	keep *Layout
	of   string

	keepGuard bool
}

// removeFrom removes the rules of one back end. The programs are only run where there is something to see.
func (s scope) removeFrom(ctx context.Context, what mode.Removal, fam lb.Family, b Backend, report *mode.Report) error {
	if b == NFT {
		switch some, err := hasChains(fam, s.has(!what.Beside)); {
		case err != nil:
			return fmt.Errorf("look for iptables rules of %s: %w", fam, err)
		case !some:
			return nil
		}
	}
	r, err := Remove(ctx, RemoveConfig{Family: fam, Backend: b, KeepLocalnet: what.Beside, KeepGuard: s.keepGuard, Keep: s.keep, Ours: s.ours})
	report.Count(r.Chains, "chains of iptables%s (%s, %s)", s.of, b, fam)
	report.Count(r.Rules, "rules in chains of others of iptables%s (%s, %s)", s.of, b, fam)
	for _, l := range r.Left {
		report.Leave("iptables (%s, %s): %s", b, fam, l)
	}
	if b == Legacy && errors.Is(err, plane.ErrUnsupported) {
		// Others use such tables too, so it need not be of ours what they hold.
		report.Leave("iptables (%s, %s): the kernel has such tables; whether they hold rules of kube-proxy is not known: %v", b, fam, err)
		return nil
	}
	if errors.Is(err, plane.ErrUnsupported) {
		return fmt.Errorf("there are chains of kube-proxy for %s, but no program to remove them: %w", fam, err)
	}
	return err
}

// has matches the chains that are to be removed; and, if firewall is set, KUBE-FIREWALL, where a rule of a kube-proxy may be.
func (s scope) has(firewall bool) func(table, chain string) bool {
	l := newLeftovers(RemoveConfig{Ours: s.ours, Keep: s.keep, KeepGuard: s.keepGuard})
	return func(table, chain string) bool {
		t, known := tableNamed(table)
		return known && (l.goes(chainID{t, chain}) || firewall && table == "filter" && chain == nodeFirewall)
	}
}

// hasChains reports whether tables of iptables, of the nft back end, have such chains.
func hasChains(fam lb.Family, such func(table, chain string) bool) (some bool, err error) {
	err = kernel.WithNetfilter(func(nf *kernel.Netfilter) error {
		chains, err := nf.Chains(nfproto(fam))
		some = slices.ContainsFunc(chains, func(c kernel.Chain) bool { return such(c.Table, c.Name) })
		return err
	})
	return some, err
}

// told is what the process has been told of already.
type told struct {
	stuck  []string
	unlike bool
}

// Notices is part of mode.Plane: chains that cannot be deleted, and rules that are printed otherwise.
func (p *Plane) Notices() (all []mode.Notice) {
	p.mu.Lock()
	p.written = p.stats
	s := p.stats
	p.mu.Unlock()
	if len(s.Stuck) > 0 && !slices.Equal(s.Stuck, p.told.stuck) {
		all = append(all, mode.Notice{Text: "chains that no Service needs any more cannot be deleted, as rules of others lead to them; they are empty",
			Args: []any{"chains", s.Stuck}})
	}
	p.told.stuck = s.Stuck
	if s.Unlike > 0 && !p.told.unlike {
		p.told.unlike = true
		all = append(all, mode.Notice{Text: "this iptables prints rules otherwise than they were written: they are in force, and are not taken for changes of others",
			Args: []any{"chains", s.Unlike}})
	}
	return all
}

// Measure is part of mode.Plane: what the last write left, and the kernel's counters as they are now.
func (p *Plane) Measure(emit mode.Emit) error {
	p.mu.Lock()
	s := p.written
	p.mu.Unlock()
	emit(restoreFailures, float64(s.Failures))
	emit(partialFailures, float64(s.PartialFailures))
	for name, n := range map[string]Written{rulesTotal: s.Owned, rulesLast: s.Last} {
		emit(name, float64(n.Filter), "filter")
		emit(name, float64(n.NAT), "nat")
	}
	c, ok, err := p.Counters()
	if ok && err == nil {
		emit(invalidPackets, float64(c.InvalidDropped))
		emit(localhostTotal, float64(c.LocalhostNodePorts))
	}
	return err
}
