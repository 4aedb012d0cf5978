//go:build linux

package xtables

import (
	"context"
	"errors"
	"fmt"
	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
	"slices"
)

// Both are the back ends of iptables.
func Both(lb.Family) []Backend { return []Backend{NFT, Legacy} }

// RemoveBeside removes what other modes left, in both back ends, beside one that keeps a layout in one of them. Of a family for which
// runs returns no back end nothing is removed.
func RemoveBeside(ctx context.Context, what mode.Removal, runs func(lb.Family) (Backend, *Layout)) (r mode.Report, err error) {
	for _, fam := range what.Families {
		own, keep := runs(fam)
		if own != NFT && own != Legacy {
			continue
		}
		for _, b := range Both(fam) {
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

// RemoveModes removes the rules that the modes iptables and ipvs leave in the back ends, but for the guard of kube-ipvs0.
func RemoveModes(ctx context.Context, what mode.Removal, backends func(lb.Family) []Backend) (r mode.Report, err error) {
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
	for _, b := range Both(l.Family) {
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
		t, known := TableNamed(table)
		return known && (l.goes(ChainID{t, chain}) || firewall && table == "filter" && chain == NodeFirewall)
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
