package unanswered

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/selfwrites"
)

// TableName is the name of the table in both families.
const TableName = "kube-proxy-failover"

// Notices of an endpoint: at most perSecond, after a first burst.
const (
	perSecond = 2
	burst     = 5
)

// remembered is how long the rate of an endpoint is remembered; maxEndpoints bounds how many are.
const (
	remembered   = 5 * time.Second
	maxEndpoints = 65536
)

// Prefixes of the reports.
const (
	retransmitted = "retransmitted"
	unreachable   = "unreachable"
)

// The sets of the table.
const (
	sRates = iota
	sEnded
)

// layout is the content of the table for a family.
type layout struct {
	rule.IP
	sets []wire.Set
	// translated matches first packets of Services.
	translated rule.Statement
}

func newLayout(ip rule.IP, translated rule.Statement) *layout {
	endpoint := wire.Fields{ip.Addr, wire.PortField}
	return &layout{IP: ip, translated: translated, sets: []wire.Set{
		sRates: {Name: "rates", Key: endpoint, Size: maxEndpoints, Flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL,
			Timeout: remembered, Comment: "endpoints with unanswered packets"},
		sEnded: {Name: "ended", Key: slices.Concat(endpoint, endpoint), Size: maxEnded, Flags: unix.NFT_SET_TIMEOUT,
			Timeout: endedFor, Comment: "client, endpoint: connections to end"},
	}}
}

// hooks are where packets of this node and of others come before they are routed.
var hooks = []wire.Hook{
	{Type: "filter", Num: unix.NF_INET_PRE_ROUTING, Priority: priority},
	{Type: "filter", Num: unix.NF_INET_LOCAL_OUT, Priority: priority},
}

// Priorities: after conntrack and before translations, so that packets have their original
// addresses; and before conntrack.
const (
	priority = -150
	raw      = -300
)

// watching returns the chains that report to a group.
func (l *layout) watching(group uint16) []rule.Chain {
	const shared = "unanswered"
	report := func(prefix string, conditions ...rule.Statement) rule.Rule {
		return l.New("", append(conditions, rule.Limited(&l.sets[sRates], perSecond, burst, l.Endpoint()...),
			rule.LogTo(group, prefix))...)
	}
	chain := rule.Chain{Name: shared, Rules: []rule.Rule{
		report(retransmitted, rule.OverTCP, rule.NewConnection, rule.Retransmitted, rule.Opening, l.translated),
	}}
	for _, kind := range l.Unreachable() {
		chain.Rules = append(chain.Rules, report(unreachable, append([]rule.Statement{rule.ErrorOf}, kind...)...))
	}
	chains := []rule.Chain{chain}
	for i, name := range []string{"watch-prerouting", "watch-output"} {
		chains = append(chains, rule.Chain{Name: name, Hook: hooks[i],
			Rules: []rule.Rule{l.New("", rule.Starting, rule.Jump(shared))}})
	}
	return chains
}

// table writes the table of a family.
type table struct {
	*layout
	*wire.Socket
	ours *selfwrites.Ledger
}

// replace creates the table with these chains, in place of an existing one.
func (t *table) replace(ctx context.Context, chains []rule.Chain) error {
	err := t.change(ctx, func(out *wire.Transaction) {
		out.AddTable()
		out.DeleteTable()
		out.AddTable()
		out.AddSets()
		add(out, chains)
	})
	if err != nil {
		return fmt.Errorf("create the nftables table %s of %s: %w", TableName, t.Family, err)
	}
	return nil
}

func add(out *wire.Transaction, chains []rule.Chain) {
	for _, c := range chains {
		out.AddChain(c.Name, c.Hook)
	}
	for _, c := range chains {
		c.AddTo(out)
	}
}

func (t *table) change(ctx context.Context, stage func(*wire.Transaction)) error {
	out := wire.NewTransaction(t.Proto, TableName, t.sets)
	stage(out)
	_, err := t.Commit(ctx, t.ours, out)
	return err
}

// intact reports whether the kernel has the chains, with all their rules.
func (t *table) intact(ctx context.Context, chains []rule.Chain) (bool, error) {
	kernel := wire.Table{Socket: t.Socket, Family: t.Proto, Name: TableName}
	there, dormant, err := kernel.State(ctx)
	if err != nil || !there || dormant {
		return false, err
	}
	for _, c := range chains {
		digest := ""
		err := wire.Undisturbed(ctx, func() error {
			digest = ""
			return kernel.RulesOf(ctx, c.Name, func(body []byte) { digest += wire.RuleComment(body) + "\n" })
		})
		if errors.Is(err, unix.ENOENT) || err == nil && digest != c.Digest() {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// remove deletes the table, if it exists.
func (t *table) remove(ctx context.Context) error {
	err := t.change(ctx, func(out *wire.Transaction) { out.DeleteTable() })
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("delete the nftables table %s of %s: %w", TableName, t.Family, err)
}

// Remove deletes the table of a family that an earlier process left, in the calling thread's
// network namespace, and reports whether one existed.
func Remove(ctx context.Context, family lb.Family) (removed bool, err error) {
	s, err := wire.Open()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer s.Close()
	ip := rule.IPOf(family)
	there, _, err := wire.Table{Socket: s, Family: ip.Proto, Name: TableName}.State(ctx)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil // no such family, or no nf_tables
	}
	if err != nil || !there {
		return false, err
	}
	t := &table{layout: &layout{IP: ip}, Socket: s, ours: &selfwrites.Ledger{}}
	return true, t.remove(ctx)
}
