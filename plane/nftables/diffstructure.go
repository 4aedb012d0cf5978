//go:build linux

package nftables

import (
	"context"
	"maps"
	"slices"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// compareStructure compares chains with their rules, and the maps that refer to them. Chains of
// classes and shapes that no frontend uses any more are allowed, see needClass.
func (d *differ) compareStructure(ctx context.Context) error {
	needed, must := (&change{ruleset: d.rules, st: d.state}).structure()
	may := newState(0)
	maps.Copy(may.classes, d.state.classes)
	maps.Copy(may.shapes, d.state.shapes)
	for _, i := range []setIndex{sFilterClasses, sNATClasses} {
		for key := range d.snap.verdicts[i] {
			if c := class(netlink.Order.Uint32([]byte(key))); c.valid() {
				may.classes[c] = true
			}
		}
	}
	for _, scope := range []lb.Scope{lb.Cluster, lb.Local} {
		for key := range d.snap.verdicts[shapesOf(scope)] {
			if s := parseShape(scope, netlink.Order.Uint32([]byte(key))); s.valid() {
				may.shapes[s] = true
			}
		}
	}
	chains, want := (&change{ruleset: d.rules, st: may}).structure()
	optional := func(name string) bool {
		return !slices.ContainsFunc(needed, func(n rule.Chain) bool { return n.Name == name })
	}
	if err := rule.CompareChains(ctx, d.Table, &d.snap.Kept, chains, optional, d.reportOf); err != nil {
		return err
	}
	for i := range setCount {
		if d.layout.sets[i].Verdict && d.snap.There[i] {
			d.compareVerdicts(i, d.snap.verdicts[i], want[i], must[i])
		}
	}
	return nil
}

// compareVerdicts compares a map of verdicts with the elements that it may have and must have.
func (d *differ) compareVerdicts(i setIndex, have, may, must map[string]wire.Verdict) {
	for _, key := range slices.Sorted(maps.Keys(have)) {
		want, ok := may[key]
		text := ""
		if ok {
			text = want.String()
		}
		if !ok || want != have[key] {
			d.Report(lb.Key{}, d.layout.sets[i].ElementText([]byte(key)), text, have[key].String())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(must)) {
		if _, ok := have[key]; !ok {
			d.Report(lb.Key{}, d.layout.sets[i].ElementText([]byte(key)), must[key].String(), "")
		}
	}
}
