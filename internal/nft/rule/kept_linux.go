package rule

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
)

// Kept is the kernel's content of a table, without elements.
type Kept struct {
	Present bool // the table exists
	Dormant bool // none of its chains is in force
	Chains  map[string]KeptChain
	There   []bool   // by set: it exists as described
	Others  []bool   // by set: one with its name and another description exists
	Foreign []string // sets with other names
}

// KeptChain is a chain as the kernel shows it.
type KeptChain struct {
	Hook   wire.Hook
	Digest string // see [Chain.Digest]
}

// Read reads a table that should have these sets.
func Read(ctx context.Context, t wire.Table, sets []wire.Set) (k Kept, err error) {
	k.Present, k.Dormant, err = t.State(ctx)
	if err != nil || !k.Present {
		return k, err
	}
	err = wire.Undisturbed(ctx, func() error { return k.readSets(ctx, t, sets) })
	if err == nil {
		err = wire.Undisturbed(ctx, func() error { return k.readChains(ctx, t) })
	}
	return k, err
}

func (k *Kept) readSets(ctx context.Context, t wire.Table, sets []wire.Set) error {
	k.There, k.Others, k.Foreign = make([]bool, len(sets)), make([]bool, len(sets)), nil
	return t.EachSet(ctx, func(name string, body []byte) {
		i := slices.IndexFunc(sets, func(d wire.Set) bool { return d.Name == name })
		switch {
		// Deleted with its rule.
		case netlink.BE32(netlink.Attribute(body, unix.NFTA_SET_FLAGS))&unix.NFT_SET_ANONYMOUS != 0:
		case i < 0:
			k.Foreign = append(k.Foreign, name)
		case sets[i].Matches(body):
			k.There[i] = true
		default:
			k.Others[i] = true
		}
	})
}

func (k *Kept) readChains(ctx context.Context, t wire.Table) error {
	k.Chains = map[string]KeptChain{}
	err := t.EachChain(ctx, func(name string, h wire.Hook) { k.Chains[name] = KeptChain{Hook: h} })
	if err != nil {
		return err
	}
	return t.EachRule(ctx, func(chain string, body []byte) {
		if c, ok := k.Chains[chain]; ok {
			c.Digest += wire.RuleComment(body) + "\n"
			k.Chains[chain] = c
		}
	})
}

// Serves reports whether the table is in force, with all sets, and has base chains at the hooks of
// chains.
func (k *Kept) Serves(chains []Chain) bool {
	return k.Present && !k.Dormant && !slices.Contains(k.There, false) &&
		!slices.ContainsFunc(chains, func(c Chain) bool { return k.Chains[c.Name].Hook != c.Hook })
}
