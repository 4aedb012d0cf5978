package nft

import (
	"context"
	"errors"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/trace"
)

// Any follows packets through the chains of any table, with the content that the kernel has when a
// packet first meets them. If it cannot evaluate an expression, it follows both ways, one of them
// doubtful ([follow.Flow.Doubt]).
type Any struct{ w *walk }

// ErrTooMany is the error for a chain that has more rules than may be read.
var ErrTooMany = errors.New("it has too many rules to evaluate")

// NewAny returns a walker for a table. extend applies rules with extensions of iptables. budget is
// the number of rules that may still be read; tables may share it.
func NewAny(sock *wire.Socket, family byte, table string, node Node, extend Extend, budget *int) *Any {
	w := newWalk(context.Background(), sock, rule.Table{Family: family, Name: table}, trace.Packet{})
	w.node, w.extend, w.budget = node, extend, budget
	return &Any{w}
}

// Title returns the table as nft names it.
func (a *Any) Title() string { return a.w.table.Title() }

// Pass sends flows through a chain. back are the flows that reached its end or returned, ended
// those that it decided.
func (a *Any) Pass(ctx context.Context, chain string, seen Seen, flows []follow.Flow) (back,
	ended []follow.Flow, err error) {
	a.w.ctx, a.w.seen = ctx, seen
	return follow.Chains{Ctx: ctx, Read: a.w.chain, Most: maxJumps}.Pass(chain, flows)
}

// Lines returns the lines about rules and elements that packets met, and clears them.
func (a *Any) Lines() []string {
	lines := a.w.said.Lines
	a.w.said = follow.Said{}
	return lines
}
