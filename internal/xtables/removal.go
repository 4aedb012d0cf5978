//go:build linux

package xtables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
)

// Both lists the back ends of iptables.
var Both = []Backend{NFT, Legacy}

// RemoveBeside removes the leftovers of other modes in both back ends, next to a mode that keeps a
// layout in one of them. It skips families for which runs returns no back end.
func RemoveBeside(ctx context.Context, what mode.Removal, runs func(lb.Family) (Backend, *Layout)) (r mode.Report,
	err error) {
	for _, fam := range what.Families {
		own, keep := runs(fam)
		if own != NFT && own != Legacy {
			continue
		}
		for _, b := range Both {
			cfg := RemoveConfig{Family: fam, Backend: b, KeepLocalnet: what.Beside,
				KeepGuard: !keep.Ours("filter", guardOfIPVS)}
			if b == own {
				cfg.Keep = keep
			}
			err = errors.Join(err, cfg.remove(ctx, "", &r))
		}
	}
	return r, err
}

// RemoveModes removes the rules of the modes iptables and ipvs in both back ends, except the guard
// of kube-ipvs0.
func RemoveModes(ctx context.Context, what mode.Removal) (r mode.Report, err error) {
	for _, fam := range what.Families {
		for _, b := range Both {
			cfg := RemoveConfig{Family: fam, Backend: b, KeepLocalnet: what.Beside, KeepGuard: true}
			err = errors.Join(err, cfg.remove(ctx, "", &r))
		}
	}
	return r, err
}

// RemoveKept removes the chains that a [Manager] maintains for a layout, and the rules that jump to
// them, in both back ends. of names the mode.
func RemoveKept(ctx context.Context, l Layout, of string) (r mode.Report, err error) {
	for _, b := range Both {
		cfg := RemoveConfig{Family: l.Family, Backend: b, KeepLocalnet: true, Ours: l.Ours}
		err = errors.Join(err, cfg.remove(ctx, " of mode "+of, &r))
	}
	return r, err
}

// remove removes the rules of one back end and adds to the report. It runs the programs only if
// such rules may exist.
func (cfg RemoveConfig) remove(ctx context.Context, of string, report *mode.Report) error {
	if cfg.Backend == NFT {
		switch some, err := cfg.hasChains(); {
		case err != nil:
			return fmt.Errorf("look for iptables rules of %s: %w", cfg.Family, err)
		case !some:
			return nil
		}
	}
	r, err := Remove(ctx, cfg)
	report.Count(r.Chains, "chains of iptables%s (%s, %s)", of, cfg.Backend, cfg.Family)
	report.Count(r.Rules, "rules in chains of others of iptables%s (%s, %s)", of, cfg.Backend, cfg.Family)
	for _, l := range r.Left {
		report.Leave("iptables (%s, %s): %s", cfg.Backend, cfg.Family, l)
	}
	switch {
	case !errors.Is(err, plane.ErrUnsupported):
		return err
	case cfg.Backend == Legacy: // other programs use such tables too
		report.Leave("iptables (%s, %s): the kernel has such tables; whether they hold rules of kube-proxy is not "+
			"known: %v", cfg.Backend, cfg.Family, err)
		return nil
	}
	return fmt.Errorf("there are chains of kube-proxy for %s, but no program to remove them: %w", cfg.Family, err)
}

// hasChains reports whether the nft back end has chains to remove. KUBE-FIREWALL counts if the rule
// of DP-10 may be removed.
func (cfg RemoveConfig) hasChains() (some bool, err error) {
	l := newLeftovers(cfg)
	such := func(c kernel.Chain) bool {
		t, known := TableNamed(c.Table)
		id := ChainID{t, c.Name}
		return known && (l.goes(id) || !cfg.KeepLocalnet && id == firewall)
	}
	err = kernel.WithNetfilter(func(nf *kernel.Netfilter) error {
		chains, err := nf.Chains(nfproto(cfg.Family))
		some = slices.ContainsFunc(chains, such)
		return err
	})
	return some, err
}
