package ipvs

import (
	"context"
	"fmt"
	"strings"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane/ownwrites"
)

// chainLayout says which chains are kept, whatever the rows are: no tree is among them. What the modes iptables and ipvs of whatever
// kube-proxy left is taken over, and removed where it is not needed.
func chainLayout(f lb.Family, backend xtables.Backend, writes *ownwrites.Ledger) xtables.Layout {
	l := xtables.Layout{Family: f, Ours: xtables.Leftover, Writes: writes, Backend: backend}
	for _, j := range chainJumps() {
		l.Jumps = append(l.Jumps, xtables.ChainRule{Table: j[0], Chain: j[1], Rule: j[2]})
	}
	return l
}

// chainKeeper keeps the chains in the kernel.
type chainKeeper struct {
	keep  *xtables.Keeper
	facts nodeFacts
}

// newChains finds the programs, on a thread in the network namespace of the node, for facts without a node. It changes nothing. Errors wrap plane.ErrUnsupported
// where there is no usable iptables.
func newChains(facts nodeFacts, backend xtables.Backend, writes *ownwrites.Ledger) (*chainKeeper, error) {
	k, err := xtables.NewKeeper(chainLayout(facts.family, backend, writes))
	if err != nil {
		return nil, err
	}
	facts.fullyRandom = k.FullyRandom()
	return &chainKeeper{keep: k, facts: facts}, nil
}

// rows are the chains of a node.
func (c *chainKeeper) rows(n lb.Node) xtables.Rows {
	facts := c.facts
	facts.node = n
	return xtables.Rows{Chains: chainRules(facts)}
}

// Reset makes the kernel hold exactly these chains, whatever modes of iptables left. The ipsets must be there, and what serves.
func (c *chainKeeper) Reset(ctx context.Context, n lb.Node) error {
	return c.keep.Reset(ctx, nil, c.rows(n))
}

// SetNode writes the chains that tell of what has changed.
func (c *chainKeeper) SetNode(ctx context.Context, n lb.Node) error {
	return c.keep.Apply(ctx, c.rows(n))
}

// Audit mends what others changed, and returns how many things that were.
func (c *chainKeeper) Audit(ctx context.Context, full bool) (mended int, err error) {
	return c.keep.Audit(ctx, full)
}

// Dump returns the rules of the chains in the kernel, as text.
func (c *chainKeeper) Dump(ctx context.Context) (string, error) {
	rules, err := c.keep.Rules(ctx)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, r := range rules {
		fmt.Fprintf(&b, "%s %s %s\n", r.Table, r.Chain, r.Rule)
	}
	return b.String(), nil
}

// Close gives back what the keeper holds of this process. The chains stay in force.
func (c *chainKeeper) Close() error { return c.keep.Close() }
