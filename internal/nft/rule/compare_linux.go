package rule

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
)

// Table describes a table for a trace of its packets.
type Table struct {
	// Family is NFPROTO_IPV4 or NFPROTO_IPV6.
	Family byte
	Name   string
	// Chains are the wanted chains. A trace only uses which of them are base chains.
	Chains []Chain
	// Sets are the known sets. Keys of other sets are printed as bytes.
	Sets []wire.Set
	// EndsHere: a destination that the table sets is this node.
	EndsHere bool
}

// Report reports an object that differs; "" is the state of a missing object.
type Report func(object, want, have string) error

// CompareSets reports the differences of a table and its sets. It returns whether the table exists,
// so that the rest can be compared.
func CompareSets(t wire.Table, is *Kept, sets []wire.Set, report Report) bool {
	if !is.Present {
		// The reporter remembers that the callback returned false.
		_ = report(t.Title(), wire.IsThere, "")
		return false
	}
	if is.Dormant {
		_ = report(t.Title(), "in force", "dormant: none of its chains is in force")
	}
	for i, there := range is.There {
		have := ""
		if is.Others[i] {
			have = "of other types"
		}
		if !there {
			_ = report(sets[i].String(), wire.IsThere, have)
		}
	}
	for _, name := range is.Foreign {
		_ = report("set "+name, "", wire.IsThere)
	}
	return true
}

// CompareChains compares the chains of a table with the wanted ones, rule by rule. optional reports
// whether a wanted chain may be missing.
func CompareChains(ctx context.Context, t wire.Table, is *Kept, chains []Chain,
	optional func(name string) bool, report Report) error {
	rules := map[string][]kernelRule{}
	err := wire.Undisturbed(ctx, func() error {
		clear(rules)
		return t.EachRule(ctx, func(chain string, body []byte) {
			rules[chain] = append(rules[chain], kernelRuleOf(body))
		})
	})
	if err != nil {
		return err
	}
	foreign := maps.Clone(is.Chains)
	for _, c := range chains {
		k, there := is.Chains[c.Name]
		delete(foreign, c.Name)
		if !there && optional(c.Name) {
			continue
		}
		if err := compareChain(c, there, k.Hook, rules[c.Name], report); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(foreign)) {
		if err := report("chain "+name, "", foreign[name].Hook.State()); err != nil {
			return err
		}
	}
	return nil
}

// kernelRule is a rule as the kernel has it.
type kernelRule struct {
	comment string
	all     []Expression
}

func kernelRuleOf(body []byte) kernelRule {
	return kernelRule{wire.RuleComment(body), Expressions(netlink.Attribute(body, unix.NFTA_RULE_EXPRESSIONS))}
}

// compareChain compares a wanted chain with the kernel's. It calls report for each difference until
// that fails. there says whether the kernel has the chain; hook and rules are its content. A rule
// equals the wanted one if it does the same and its text is the same: any program can copy a
// comment.
func compareChain(c Chain, there bool, hook wire.Hook, rules []kernelRule, report Report) error {
	object := "chain " + c.Name
	if !there {
		return report(object, c.Hook.State(), "")
	}
	if hook != c.Hook {
		if err := report(object, c.Hook.State(), hook.State()); err != nil {
			return err
		}
	}
	for i := range max(len(c.Rules), len(rules)) {
		want, is := "", ""
		if i < len(c.Rules) {
			want = c.Rules[i].Text()
		}
		if i < len(rules) {
			is = fmt.Sprintf("comment %q", rules[i].comment)
		}
		if i < len(c.Rules) && i < len(rules) {
			does := Does(rules[i].all, Expressions(c.Rules[i].Expressions))
			if does && rules[i].comment == c.Rules[i].Comment {
				continue
			}
			if !does {
				is = "other expressions, " + is
			}
		}
		if err := report(fmt.Sprintf("rule %d of chain %s", i+1, c.Name), want, is); err != nil {
			return err
		}
	}
	return nil
}
