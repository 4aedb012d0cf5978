package nft

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/nodetrace/internal/follow"
)

// Rule is a rule as the kernel has it.
type Rule struct {
	Comment string
	all     []rule.Expression
	// Handle is the kernel's number of the rule.
	Handle uint64
	// body is the message, for a rule with extensions of iptables.
	body []byte
	as   *follow.Rule // set on first use
}

// RuleOf reads a rule from the body of a message about it.
func RuleOf(body []byte) Rule {
	r := Rule{Comment: wire.RuleComment(body),
		all:    rule.Expressions(nlconn.Attribute(body, unix.NFTA_RULE_EXPRESSIONS)),
		Handle: nlconn.BE64(nlconn.Attribute(body, unix.NFTA_RULE_HANDLE))}
	if slices.ContainsFunc(r.all, func(x rule.Expression) bool {
		_, is := x.(rule.Xtables)
		return is
	}) {
		r.body = bytes.Clone(body)
	}
	return r
}

// base is a base chain as the kernel has it.
type base struct {
	name string
	wire.Hook
	drops bool // its policy
}

// element is an element in the kernel; a set's element has nil data and no verdict.
type element struct {
	there   bool
	limited string // the name of an expression that may end the rule, "" for none
	data    string
	decides bool // by the verdict, in a verdict map
	verdict wire.Verdict
}

// readBases reads the base chains, and reports missing ones.
func (w *walk) readBases() error {
	for _, c := range w.t.Chains {
		name := c.Name
		if !c.IsBase() {
			continue
		}
		before := len(w.bases)
		err := w.table.ReadChain(w.ctx, name, func(body []byte) {
			h, accepts := wire.HookOf(body)
			w.bases = append(w.bases, base{name, h, !accepts})
		})
		if err != nil {
			return fmt.Errorf("chain %s: %w", name, err)
		}
		if len(w.bases) == before {
			w.say("no base chain %s", name)
		}
	}
	slices.SortStableFunc(w.bases, func(a, b base) int { return cmp.Compare(a.Priority, b.Priority) })
	return nil
}

// rules reads the rules of a chain.
func (w *walk) rules(chain string) ([]Rule, error) {
	if all, ok := w.chains[chain]; ok {
		return all, nil
	}
	var all []Rule
	if err := w.afford(chain); err != nil {
		return nil, fmt.Errorf("rules of chain %s: %w", chain, err)
	}
	err := wire.Undisturbed(w.ctx, func() error {
		all = nil
		return w.table.RulesOf(w.ctx, chain, func(body []byte) { all = append(all, RuleOf(body)) })
	})
	if err != nil {
		return nil, fmt.Errorf("rules of chain %s: %w", chain, err)
	}
	w.chains[chain] = all
	return all, nil
}

// afford subtracts the rules of a chain from the budget. The kernel counts them together with the
// jumps to the chain; of a chain with many of either the rules are listed.
func (w *walk) afford(chain string) error {
	if w.budget == nil {
		return nil
	}
	uses := 0
	err := w.table.ReadChain(w.ctx, chain, func(body []byte) {
		uses = int(nlconn.BE32(nlconn.Attribute(body, unix.NFTA_CHAIN_USE)))
	})
	switch {
	case err != nil:
		return err
	case uses > *w.budget:
		uses = 0
		err = w.table.RulesOf(w.ctx, chain, func([]byte) { uses++ })
	}
	switch {
	case err != nil:
		return err
	case uses > *w.budget:
		return ErrTooMany
	}
	*w.budget -= uses
	return nil
}

// fetch reads the elements of those keys that are not known yet.
func (w *walk) fetch(set string, keys []string) error {
	known := w.elements[set]
	if known == nil {
		known = map[string]element{}
		w.elements[set] = known
	}
	var ask [][]byte
	for _, k := range keys {
		if _, ok := known[k]; !ok {
			known[k] = element{}
			ask = append(ask, []byte(k))
		}
	}
	var err error
	if w.node == nil {
		err = w.table.Elements(w.ctx, set, ask, func(el []byte) { known[string(wire.ElementKey(el))] = elementOf(el) })
	} else {
		err = w.fetchAny(set, ask, known)
	}
	if err != nil {
		return fmt.Errorf("elements of %s: %w", set, err)
	}
	return nil
}

// fetchAny is fetch for a set that may have intervals, and an element for all other keys.
func (w *walk) fetchAny(set string, ask [][]byte, known map[string]element) error {
	for _, k := range ask {
		take := func(el []byte) { known[string(k)] = elementOf(el) }
		if err := w.table.Elements(w.ctx, set, [][]byte{k}, take); err != nil {
			return err
		}
		if !known[string(k)].there {
			if err := w.table.CatchAll(w.ctx, set, take); err != nil {
				return err
			}
		}
	}
	return nil
}

// nftaSetElemExpressions is NFTA_SET_ELEM_EXPRESSIONS, since Linux 5.11.
const nftaSetElemExpressions = 11

func elementOf(el []byte) element {
	data := nlconn.Attribute(el, unix.NFTA_SET_ELEM_DATA)
	e := element{there: true, data: string(nlconn.Attribute(data, unix.NFTA_DATA_VALUE))}
	e.limited = rule.Limiting(nlconn.Attribute(el, unix.NFTA_SET_ELEM_EXPR),
		nlconn.Attribute(el, nftaSetElemExpressions))
	if e.data == "" && data != nil {
		e.decides, e.verdict = true, wire.VerdictOf(data)
	}
	return e
}

// keyLen returns the number of bytes in a set's keys; 0 if the set does not exist.
func (w *walk) keyLen(set string) (int, error) {
	if d := setNamed(&w.t, set); d != nil {
		return d.KeyLen(), nil
	}
	k, known := w.foreign[set]
	if known {
		return k.size, nil
	}
	err := w.table.ReadSet(w.ctx, set, func(body []byte) {
		k.size = int(nlconn.BE32(nlconn.Attribute(body, unix.NFTA_SET_KEY_LEN)))
		k.intervals = nlconn.BE32(nlconn.Attribute(body, unix.NFTA_SET_FLAGS))&unix.NFT_SET_INTERVAL != 0
	})
	if err != nil {
		return 0, fmt.Errorf("set %s: %w", set, err)
	}
	w.foreign[set] = k
	return k.size, nil
}

// keys are what a set of another program has as keys.
type keys struct {
	size      int // of a key, in bytes
	intervals bool
}

// intervals reports whether a set has intervals; false before keyLen.
func (w *walk) intervals(set string) bool { return w.foreign[set].intervals }
