//go:build linux

package nftables

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/walk"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// compareSets looks for sets that are not there, or not as we make them, whose elements are left out then.
func (d *differ) compareSets() error {
	var others []string
	err := wire.Undisturbed(d.ctx, func() error {
		d.there, others = [setCount]bool{}, nil
		return d.eachSet(d.ctx, func(i setIndex) { d.there[i] = true }, func(name string) { others = append(others, name) })
	})
	for i := range setCount {
		if err == nil && !d.there[i] {
			have := ""
			if at := slices.Index(others, d.sets[i].Name); at >= 0 {
				have, others = "of other types", slices.Delete(others, at, at+1)
			}
			err = d.Tell(lb.Key{}, d.sets[i].String(), wire.IsThere, have)
		}
	}
	for _, name := range others {
		if err == nil {
			err = d.Tell(lb.Key{}, "set "+name, "", wire.IsThere)
		}
	}
	return err
}

// compareReserved looks whether the table says which numbers were used, and finds the seed by which clients are hashed.
func (d *differ) compareReserved() error {
	keys := [][]byte{wire.AppendNumber(nil, reservedIDs), wire.AppendNumber(nil, reservedSeed)}
	have, err := d.get(sReserved, keys)
	if err != nil || !d.there[sReserved] {
		return err
	}
	for _, k := range keys {
		data, ok := have[string(k)]
		switch {
		case !ok:
			err = d.Tell(lb.Key{}, d.object(sReserved, k), "a number", "")
		case nlconn.Order.Uint32(k) == reservedSeed:
			d.rules.seed = nlconn.Order.Uint32(data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compareStructure compares chains with their rules, and the maps that lead to them. Chains of classes and shapes that no row has any more
// may stay, see needClass.
func (d *differ) compareStructure() error {
	hooks, rules := map[string]wire.Hook{}, map[string][]walk.Rule{}
	verdicts := [setCount]map[string]wire.Verdict{}
	err := wire.Undisturbed(d.ctx, func() error {
		clear(hooks)
		return d.EachChain(d.ctx, func(name string, h wire.Hook) { hooks[name] = h })
	})
	if err == nil {
		err = wire.Undisturbed(d.ctx, func() error {
			clear(rules)
			return d.EachRule(d.ctx, func(chain string, body []byte) { rules[chain] = append(rules[chain], walk.RuleOf(body)) })
		})
	}
	for i := range setCount {
		if err == nil && d.sets[i].Verdict && d.there[i] {
			err = wire.Undisturbed(d.ctx, func() error {
				verdicts[i] = map[string]wire.Verdict{}
				return d.EachElement(d.ctx, d.sets[i].Name, func(el []byte) {
					verdicts[i][string(wire.ElementKey(el))] = wire.VerdictOf(nlconn.Attribute(el, unix.NFTA_SET_ELEM_DATA))
				})
			})
		}
	}
	if err != nil {
		return err
	}
	needed, _ := (&change{ruleset: d.rules, st: d.needs}).structure()
	may := newState(0)
	maps.Copy(may.classes, d.needs.classes)
	maps.Copy(may.shapes, d.needs.shapes)
	for _, i := range []setIndex{sFilterClasses, sNATClasses} {
		for key := range verdicts[i] {
			if c := class(nlconn.Order.Uint32([]byte(key))); c.valid() {
				may.classes[c] = true
			}
		}
	}
	for _, scope := range []lb.Scope{lb.Cluster, lb.Local} {
		for key := range verdicts[shapesOf(scope)] {
			if s := parseShape(scope, nlconn.Order.Uint32([]byte(key))); s.valid() {
				may.shapes[s] = true
			}
		}
	}
	chains, want := (&change{ruleset: d.rules, st: may}).structure()
	for _, c := range chains {
		must := slices.ContainsFunc(needed, func(n rule.Chain) bool { return n.Name == c.Name })
		h, there := hooks[c.Name]
		delete(hooks, c.Name)
		if !there && !must {
			continue
		}
		tell := func(object, want, have string) error { return d.Tell(lb.Key{}, object, want, have) }
		if err := walk.Compare(c, there, h, rules[c.Name], tell); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(hooks)) {
		if err := d.Tell(lb.Key{}, "chain "+name, "", hooks[name].State()); err != nil {
			return err
		}
	}
	_, must := (&change{ruleset: d.rules, st: d.needs}).structure()
	for i := range setCount {
		if !d.sets[i].Verdict || !d.there[i] {
			continue
		}
		if err := d.compareVerdicts(i, verdicts[i], want[i], must[i]); err != nil {
			return err
		}
	}
	return nil
}

// compareVerdicts compares a map of verdicts with what it may have and what it must.
func (d *differ) compareVerdicts(i setIndex, have, may, must map[string]wire.Verdict) error {
	for _, key := range slices.Sorted(maps.Keys(have)) {
		want, ok := may[key]
		if ok && want == have[key] {
			continue
		}
		text := ""
		if ok {
			text = want.String()
		}
		if err := d.Tell(lb.Key{}, d.object(i, []byte(key)), text, have[key].String()); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(must)) {
		if _, ok := have[key]; ok {
			continue
		}
		if err := d.Tell(lb.Key{}, d.object(i, []byte(key)), must[key].String(), ""); err != nil {
			return err
		}
	}
	return nil
}

// compareBytes looks at the set by which rules compare addresses.
func (d *differ) compareBytes() error {
	if !d.there[sEqualBytes] {
		return nil
	}
	var keys [][]byte
	for n := range 256 {
		keys = append(keys, wire.AppendOctet(wire.AppendOctet(nil, byte(n)), byte(n)))
	}
	have, err := d.get(sEqualBytes, keys)
	for _, k := range keys {
		if _, ok := have[string(k)]; !ok && err == nil {
			err = d.tellElement(lb.Key{}, sEqualBytes, k, k, nil)
		}
	}
	return err
}
