package iptables

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Mode returns the mode iptables.
func Mode() mode.Mode { return ModeIn(map[lb.Family]xtables.Backend{}) }

// ModeIn returns the mode for planes that already write with these back ends.
func ModeIn(backends map[lb.Family]xtables.Backend) mode.Mode {
	h := host{backends: backends}
	m := facts()
	m.Sysctls = sysctls
	m.Able, m.New, m.Render = h.able, h.open, render
	m.Modules = func(s mode.Settings) []string { return xtables.Modules(s.Family) }
	m.Remove = xtables.RemoveModes
	m.RemoveStale = h.removeStale
	return m
}

// host has the state that planes of this process share about the machine's iptables.
type host struct {
	// found are the programs of the family that the mode was chosen for. Finding them again would
	// take seconds.
	found *xtables.Tool
	// backends are the back ends with which planes write.
	backends map[lb.Family]xtables.Backend
}

func (h *host) able(s mode.Settings) (err error) {
	h.found, err = xtables.Find(s.Family)
	return err
}

func (h *host) open(s mode.Settings) (mode.Plane, error) {
	cfg := configOf(s)
	if h.found != nil && h.found.Family == s.Family {
		cfg.Programs = h.found
	}
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	h.backends[s.Family] = p.Backend
	return p, nil
}

func configOf(s mode.Settings) Config {
	return Config{Family: s.Family, MasqueradeBit: &s.MasqueradeBit, LocalhostNodePorts: &s.LocalhostNodePorts,
		Writes: s.Writes, Log: s.Log}
}

func render(s mode.Settings, want *lb.Table) ([]byte, error) {
	text, err := Render(configOf(s), want)
	return append(fmt.Appendf(nil, "# %s-restore --noflush\n", xtables.BaseName(s.Family)), text...), err
}

// sysctls lets packets from 127.0.0.1 leave for pods. A running plane sets this after its rule that
// blocks localnet; with --init-only the next process adds that rule.
func sysctls(s mode.Settings) []mode.Sysctl {
	if !s.LocalhostNodePorts || !slices.ContainsFunc(s.NodePorts,
		func(p netip.Prefix) bool { return p.Overlaps(xtables.Loopback4) }) {
		return nil
	}
	return []mode.Sysctl{{Name: xtables.RouteLocalnet, Value: "1", InitOnly: true,
		Asks: "--iptables-localhost-nodeports (iptables.localhostNodePorts), where false does without"}}
}

// removeStale removes the rules in the back end that a family does not use: they would send packets
// to old endpoints (DP-14). In its own back end it removes the chains of mode ipvs.
func (h *host) removeStale(ctx context.Context, what mode.Removal) (mode.Report, error) {
	keep := layout()
	return xtables.RemoveBeside(ctx, what, func(f lb.Family) (xtables.Backend, *xtables.Layout) {
		return h.backends[f], keep
	})
}

// layout returns the chains that the plane keeps.
func layout() *xtables.Layout {
	keep := &xtables.Layout{Ours: func(table, chain string) bool {
		t, ok := xtables.TableNamed(table)
		return ok && t < xtables.Tables && xtables.Ours(t.Chain(chain))
	}}
	for _, j := range jumps() {
		keep.Jumps = append(keep.Jumps, xtables.ChainRule{Table: j.From.Table.String(), Chain: j.From.Name,
			Rule: j.Rule})
	}
	return keep
}

// reported records the notices already reported.
type reported struct {
	stuck  []string
	unlike bool
}

// Notices implements mode.Plane: it reports chains that cannot be deleted, and rules that iptables
// prints differently.
func (p *Plane) Notices() (all []mode.Notice) {
	s := p.Stats()
	p.written.Store(&s)
	if len(s.Stuck) > 0 && !slices.Equal(s.Stuck, p.reported.stuck) {
		all = append(all, mode.Notice{Text: "Cannot delete unused chains, because rules of other programs lead to " +
			"them; the chains are empty", Args: []any{"chains", s.Stuck}})
	}
	p.reported.stuck = s.Stuck
	if s.Unlike > 0 && !p.reported.unlike {
		p.reported.unlike = true
		all = append(all, mode.Notice{Text: "This iptables prints rules differently from how they were written; " +
			"they are in force, and do not count as changes by other programs", Args: []any{"chains", s.Unlike}})
	}
	return all
}

// Measure implements mode.Plane with the counts after the last write, and the kernel's counters.
func (p *Plane) Measure(emit mode.Emit) error {
	s := cmp.Or(p.written.Load(), &xtables.Stats{})
	emit(restoreFailures, float64(s.Failures))
	emit(partialFailures, float64(s.PartialFailures))
	for name, n := range map[string]xtables.Written{rulesTotal: s.Owned, rulesLast: s.Last} {
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
