//go:build linux

package nftables

import (
	"maps"
	"slices"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/plane/internal/diff"
)

// Reset and the audits stage the differences between the kernel's table and the state in the same
// way. The structure means chains with their rules, and the verdict maps that refer to them; the
// rest are elements.

// repair stages all differences between a snapshot of our layout and the state: in the structure,
// and in the elements of the sets that which selects. It returns the number of objects that differ.
func (c *change) repair(snap *snapshot, which func(*wire.Set) bool) int {
	n := c.repairStructure(snap)
	var pending [setCount]*diff.Pending
	for i := range pending {
		if d := &c.sets[i]; which(d) && !d.Verdict && !d.Dynamic() {
			pending[i] = diff.Compare(snap.records[i], d.KeyLen(), c.repairElement(setIndex(i)))
		}
	}
	c.st.records(func(i setIndex, rec []byte) {
		if pending[i] != nil {
			pending[i].Want(rec)
		}
	})
	for _, p := range pending {
		if p != nil {
			n += p.End()
		}
	}
	return n
}

// repairSet stages the differences between the elements of one set.
func (c *change) repairSet(i setIndex, is, want diff.Records) int {
	return diff.Elements(is, want, c.sets[i].KeyLen(), c.repairElement(i))
}

// repairElement stages the difference of one element; nil means no element.
func (c *change) repairElement(i setIndex) func(is, want []byte) {
	return func(is, want []byte) {
		if is != nil {
			c.out.Remove(i, is)
		}
		if want != nil {
			c.out.Add(i, want)
		}
	}
}

// repairStructure stages the differences of chains, rules and verdict maps. It removes foreign
// sets, and chains that no class and no shape of the state needs.
func (c *change) repairStructure(snap *snapshot) int {
	n := len(snap.Foreign)
	for _, name := range snap.Foreign {
		c.out.DeleteSet(name)
	}
	chains, verdicts := c.structure()
	needed := make(map[string]bool, len(chains))
	for _, ch := range chains {
		needed[ch.Name] = true
		d := ch.Digest()
		if c.st.chains[ch.Name] != d {
			rollback.Put(c.log, c.st.chains, ch.Name, d)
		}
		is, there := snap.Chains[ch.Name]
		switch {
		case !there:
			c.out.AddChain(ch.Name, ch.Hook)
		case is.Digest == d:
			continue
		case is.Digest != "":
			c.out.FlushChain(ch.Name)
		}
		n++
		ch.AddTo(c.out)
	}
	for name, is := range snap.Chains {
		if needed[name] {
			continue
		}
		n++
		if is.Digest != "" {
			c.out.FlushChain(name)
		}
		c.out.DeleteChain(name)
		rollback.Delete(c.log, c.st.chains, name)
	}
	return n + c.mendVerdicts(snap.verdicts, verdicts)
}

// mendVerdicts stages the differences of verdict maps, and returns how many elements they concern.
func (c *change) mendVerdicts(is, want [setCount]map[string]wire.Verdict) (n int) {
	for i, want := range want {
		if want == nil {
			continue
		}
		n += diff.Named(is[i], want, func(key string, had, has bool) {
			if had {
				c.out.Remove(i, []byte(key))
			}
			if has {
				c.out.AddVerdict(i, []byte(key), want[key])
			}
		})
	}
	return n
}

// structure returns the chains that the state needs, in a fixed order, and the elements of verdict
// maps.
func (c *change) structure() ([]rule.Chain, [setCount]map[string]wire.Verdict) {
	verdicts := [setCount]map[string]wire.Verdict{
		sFilterClasses: {}, sNATClasses: {}, sClusterShapes: {}, sLocalShapes: {},
	}
	chains := c.skeleton()
	for _, cl := range slices.Sorted(maps.Keys(c.st.classes)) {
		more, filter, nat := c.classChains(cl)
		chains = append(chains, more...)
		verdicts[sFilterClasses][string(wire.AppendNumber(nil, uint32(cl)))] = filter
		verdicts[sNATClasses][string(wire.AppendNumber(nil, uint32(cl)))] = nat
	}
	for _, s := range slices.SortedFunc(maps.Keys(c.st.shapes), shape.compare) {
		chains = append(chains, c.balancer(s))
		verdicts[shapesOf(s.scope)][string(wire.AppendNumber(nil, s.number()))] = s.verdict()
	}
	return chains, verdicts
}

// restructure calls set, which changes the node or the classes and shapes of the state, and stages
// the resulting differences in the structure. It does not read the kernel.
func (c *change) restructure(set func()) {
	is := &snapshot{Kept: rule.Kept{Chains: make(map[string]rule.KeptChain, len(c.st.chains))}}
	for name, d := range c.st.chains {
		is.Chains[name] = rule.KeptChain{Digest: d}
	}
	_, is.verdicts = c.structure()
	set()
	c.repairStructure(is)
}
