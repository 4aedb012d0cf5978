//go:build linux

package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

// Rule is a rule in the kernel, of any program.
type Rule struct {
	// Text is the rule as iptables -S prints it, without "-A CHAIN ".
	Text string
	// Unread: the text is incomplete. It has "…" for the missing part, or "(not read: …)" at its
	// end.
	Unread bool
	// Handle is nf_tables' number of the rule in its chain, 0 for the legacy back end.
	Handle uint64
}

// ChainState is a chain as the kernel holds it.
type ChainState struct {
	Rules []Rule
	// Hooked is set for a built-in chain. Drops is set if its policy is DROP.
	Hooked, Drops bool
}

// Holding reads chains of a family from the kernel.
type Holding interface {
	// Chain returns a chain; nil if it does not exist.
	Chain(id ChainID) (*ChainState, error)
	// Names returns the names of a table's chains, sorted.
	Names(t Table) ([]string, error)
	// Generation is a number that changes with every change of a rule, 0 if unknown.
	Generation() (uint32, error)
	Close()
}

// OpenHolding opens a reader of the back end's chains, in the network namespace of the calling
// thread. It creates no tables. With the legacy back end it reads the output of iptables-save.
func (t *Tool) OpenHolding(ctx context.Context) (Holding, error) {
	if t.Backend == Legacy {
		if !LegacyInUse(t.Family) { // listing its tables would create them
			return Saved{}, nil
		}
		return t.Saved(ctx, math.MaxInt)
	}
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		return nil, err
	}
	return &nftHolding{nf: nf, family: t.Family}, nil
}

// Saved is the output of iptables-save: the chains of any table, by the names of both.
type Saved map[string]map[string]*ChainState

// Saved reads the output of iptables-save. It fails if that has more than most chains and rules.
func (t *Tool) Saved(ctx context.Context, most int) (Saved, error) {
	all, n := Saved{}, 0
	err := t.Lines(ctx, func(line SavedLine) {
		n++
		if n > most {
			return
		}
		if all[line.Table] == nil {
			all[line.Table] = map[string]*ChainState{}
		}
		if line.Kind == SavedChain {
			all[line.Table][string(line.Chain)] = &ChainState{Hooked: !bytes.HasPrefix(line.Rest, []byte("-")),
				Drops: bytes.HasPrefix(line.Rest, []byte("DROP"))}
		} else if c := all[line.Table][string(line.Chain)]; c != nil {
			c.Rules = append(c.Rules, Rule{Text: string(line.Rest)})
		}
	})
	if err == nil && n > most {
		err = fmt.Errorf("%s lists more than %d rules", t.Program, most)
	}
	return all, err
}

func (s Saved) Chain(id ChainID) (*ChainState, error) { return s[id.Table.String()][id.Name], nil }
func (s Saved) Names(t Table) ([]string, error)       { return slices.Sorted(maps.Keys(s[t.String()])), nil }

// The kernel has no sign of a rule that was replaced by another.
func (s Saved) Generation() (uint32, error) { return 0, nil }
func (s Saved) Close()                      {}

// nftHolding reads one chain at a time from nf_tables, by netlink. Its cost is that of the rules in
// the chain; the programs list the names of all chains first (docs/adr/0056).
type nftHolding struct {
	nf     *kernel.Netfilter
	family lb.Family
	chains map[string][]string // names by table, once requested
}

func (h *nftHolding) Close() { h.nf.Close() }

func (h *nftHolding) Generation() (uint32, error) { return h.nf.Generation() }

func (h *nftHolding) Names(t Table) ([]string, error) {
	if h.chains == nil {
		all, err := h.nf.Chains(nfproto(h.family))
		if err != nil {
			return nil, fmt.Errorf("list the chains of nf_tables: %w", err)
		}
		h.chains = map[string][]string{}
		for _, c := range all {
			h.chains[c.Table] = append(h.chains[c.Table], c.Name)
		}
		for _, names := range h.chains {
			slices.Sort(names)
		}
	}
	return h.chains[t.String()], nil
}

func (h *nftHolding) Chain(id ChainID) (*ChainState, error) {
	c := &ChainState{}
	if IsBuiltIn(id.Name) {
		there, err := h.base(id, c)
		if err != nil || !there {
			return nil, err
		}
	}
	of := func(e *netlink.Encoder) {
		e.Str(unix.NFTA_RULE_TABLE, id.Table.String())
		e.Str(unix.NFTA_RULE_CHAIN, id.Name)
	}
	rules, err := h.nf.Ask(wire.MsgType(unix.NFT_MSG_GETRULE), unix.NLM_F_DUMP, nfproto(h.family), of)
	if err != nil {
		return nil, fmt.Errorf("read chain %s of table %s: %w", id.Name, id.Table, err)
	}
	c.Rules = make([]Rule, 0, len(rules))
	for _, r := range rules {
		c.Rules = append(c.Rules, ReadNFT(h.family, r))
	}
	return c, nil
}

// base reads the policy of a built-in chain, and whether the chain exists.
func (h *nftHolding) base(id ChainID, c *ChainState) (there bool, err error) {
	answers, err := h.nf.Ask(wire.MsgType(unix.NFT_MSG_GETCHAIN), 0, nfproto(h.family), func(e *netlink.Encoder) {
		e.Str(unix.NFTA_CHAIN_TABLE, id.Table.String())
		e.Str(unix.NFTA_CHAIN_NAME, id.Name)
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read chain %s of table %s: %w", id.Name, id.Table, err)
	}
	for _, a := range answers {
		hook, accepts := wire.HookOf(a)
		c.Hooked, c.Drops = hook != wire.Hook{}, !accepts
	}
	return len(answers) > 0, nil
}
