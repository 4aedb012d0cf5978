package redirect

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/rollback"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Chains of iptables; the first four have upstream's names of this mode.
const (
	portals      = "KUBE-PORTALS-CONTAINER"  // nat: service addresses to listeners
	portalsHost  = "KUBE-PORTALS-HOST"       // nat: the same for packets of this node, except the proxy's own
	nodePorts    = "KUBE-NODEPORT-CONTAINER" // nat: NodePorts to listeners
	guard        = "KUBE-NODEPORT-NON-LOCAL" // filter: only redirected packets reach a listener
	refused      = "KUBE-PORTALS-REFUSED"    // filter: refuses packets to service addresses
	refusedHost  = "KUBE-PORTALS-REFUSED-H"  // filter: the same for packets of this node, except the proxy's own
	refusedPorts = "KUBE-NODEPORT-REFUSED"   // filter: the same for NodePorts
	listPrefix   = "KUBE-PORTALS-SRC-"       // nat, filter: source ranges
)

// The trees, in the order of the layout.
const (
	inPortals = iota
	inNodePorts
	inGuard
	inRefused
	inRefusedPorts
	treeCount
)

func layoutOf(cfg Config) xtables.Layout {
	l := xtables.Layout{Family: cfg.Family, Writes: cfg.Writes, Ours: oursOfIPTables, Trees: []xtables.Tree{
		inPortals:      {Table: "nat", Root: portals, Prefix: "KUBE-PORTALS-C-"},
		inNodePorts:    {Table: "nat", Root: nodePorts, Prefix: "KUBE-NODEPORT-C-", Ports: true},
		inGuard:        {Table: "filter", Root: guard, Prefix: "KUBE-NODEPORT-L-", Ports: true},
		inRefused:      {Table: "filter", Root: refused, Prefix: "KUBE-PORTALS-N-"},
		inRefusedPorts: {Table: "filter", Root: refusedPorts, Prefix: "KUBE-NODEPORT-N-", Ports: true},
	}}
	jump := func(table, to, match, note string, from ...string) {
		for _, f := range from {
			l.Jumps = append(l.Jumps, xtables.ChainRule{Table: table, Chain: f,
				Rule: match + fmt.Sprintf("-m comment --comment %q -j %s", note, to)})
		}
	}
	const isNew = "-m conntrack --ctstate NEW "
	jump("nat", portals, "", "handle ClusterIPs; NOTE: this must be before the NodePort rules", "PREROUTING")
	jump("nat", portalsHost, "", "handle ClusterIPs; NOTE: this must be before the NodePort rules", "OUTPUT")
	jump("filter", guard, "", "ports of the proxy: for who was led there", "INPUT")
	jump("filter", refused, isNew, "service addresses that are refused", "INPUT", "FORWARD")
	jump("filter", refusedHost, isNew, "service addresses that are refused", "OUTPUT")
	return l
}

func oursOfIPTables(table, name string) bool {
	switch table {
	case "nat":
		return name == nodePorts || name == "KUBE-NODEPORT-HOST" || strings.HasPrefix(name, "KUBE-PORTALS-") ||
			strings.HasPrefix(name, "KUBE-NODEPORT-C-")
	case "filter":
		return name == guard || name == refusedPorts || strings.HasPrefix(name, "KUBE-NODEPORT-L-") ||
			strings.HasPrefix(name, "KUBE-PORTALS-") || strings.HasPrefix(name, "KUBE-NODEPORT-N-")
	}
	return false
}

// IPTables redirects by chains of iptables, for hosts without nftables. A frontend is a few rules
// of a tree; a change writes the chains on the path to it. Ports and addresses without Service are
// untouched, as in mode iptables (SV-62, SV-63).
type IPTables struct {
	*byRules
	cfg  Config
	keep *xtables.Manager

	node      lb.Node
	address   netip.Addr
	leads     map[lb.Key]Entry
	listeners map[lb.Key]int // number of routes that use the port of a listener, a key without an address
	lists     map[string]int // number of entries that use a list, by its chain
}

// NewIPTables finds the programs, on a thread in the network namespace of the node. It changes
// nothing. Errors wrap plane.ErrUnsupported without a usable iptables.
func NewIPTables(cfg Config) (*IPTables, error) {
	c := &IPTables{cfg: cfg}
	var err error
	c.keep, err = xtables.NewManager(layoutOf(cfg))
	if err != nil {
		return nil, err
	}
	unguarded := c.keep.Have([]string{"socket"}, nil)
	c.byRules, err = watchAddresses(rule.IPOf(cfg.Family).Proto, unguarded)
	if err != nil {
		c.keep.Close()
		return nil, err
	}
	return c, nil
}

// Name is part of [Redirector].
func (c *IPTables) Name() string { return "iptables" }

// ChangedBy is part of plane.Witness.
func (c *IPTables) ChangedBy() string { return c.keep.ChangedBy() }

// Close is part of [Redirector].
func (c *IPTables) Close() error { return errors.Join(c.keep.Close(), c.close()) }

// lead returns the rules of an entry in nat and in filter.
func (c *IPTables) lead(l Entry) (nat, filter []string) {
	if len(l.Sources) > 0 {
		to := xtables.MatchKey(l.Key, "") + "-j " + listChain(l.Sources)
		nat, filter = append(nat, to), append(filter, to)
	}
	for _, r := range l.Routes {
		for _, s := range xtables.Sources(r.From, c.node.Pods) {
			m := xtables.MatchKey(l.Key, s.Before) + s.After
			switch {
			case r.Port != 0 && (l.Key.IsNodePort() || !c.address.IsValid()):
				nat = append(nat, m+fmt.Sprintf("-j DNAT --to-destination :%d", r.Port))
			case r.Port != 0:
				nat = append(nat, m+"-j DNAT --to-destination "+netip.AddrPortFrom(c.address, r.Port).String())
			case r.Do == lb.Drop:
				nat, filter = append(nat, m+"-j ACCEPT"), append(filter, m+"-j DROP")
			default:
				nat, filter = append(nat, m+"-j ACCEPT"), append(filter, c.reject(m, l.Key.Proto))
			}
		}
	}
	return nat, filter
}

// reject refuses packets as a port without listener does.
func (c *IPTables) reject(match string, p lb.Proto) string {
	with := "icmp-port-unreachable"
	switch {
	case p == lb.TCP:
		with = "tcp-reset"
	case c.cfg.Family == lb.IPv6:
		with = "icmp6-port-unreachable"
	}
	return match + "-j REJECT --reject-with " + with
}

// listChain names the chain of a list of sources, which entries with the same list share.
func listChain(sources []netip.Prefix) string {
	sum := sha256.Sum256([]byte(fmt.Sprint(sources)))
	return listPrefix + base32.StdEncoding.EncodeToString(sum[:])[:11]
}

// list returns the chain of a list, in nat and in filter. It returns packets of these sources.
func list(sources []netip.Prefix) (nat, filter []string) {
	for _, p := range sources {
		nat = append(nat, xtables.FromPrefix(p)+"-j RETURN")
	}
	return append(slices.Clone(nat), "-j ACCEPT"), append(slices.Clone(nat), "-j DROP")
}

// frames are the rules of the trees besides entries.
func (c *IPTables) frames() []xtables.Frame {
	f := make([]xtables.Frame, treeCount)
	here := func(to string) []string {
		return xtables.NodePortRules(c.cfg.Family, c.node.NodePorts, c.cfg.LocalhostNodePorts,
			"-m addrtype --dst-type LOCAL -j "+to)
	}
	f[inPortals].Tail = here(nodePorts)
	f[inGuard].Head = c.passGuard()
	// Packets of the proxy to this node itself come in again, by lo and with its mark.
	f[inRefused] = xtables.Frame{Head: append(c.own("-i lo "), redirected+"-j RETURN"), Tail: here(refusedPorts)}
	return f
}

// redirected matches packets that were redirected.
const redirected = "-m conntrack --ctstate DNAT "

// passGuard are the rules that pass the guard: answers, and packets that were redirected to a
// socket of the proxy. That socket is transparent, which an unprivileged program cannot set. The
// kernel finds no sockets of SCTP.
func (c *IPTables) passGuard() []string {
	const answers, own = "-m conntrack --ctdir REPLY -j RETURN", "-m socket --transparent --nowildcard -j RETURN"
	if c.unguarded != nil {
		return []string{redirected + "-j RETURN", answers}
	}
	return []string{redirected + own, "-p sctp " + redirected + "-j RETURN", answers}
}

// own lets the proxy's own packets pass.
func (c *IPTables) own(match string) []string {
	if c.cfg.Mark == 0 {
		return nil
	}
	return []string{match + fmt.Sprintf("-m mark --mark %#x/%#x -j RETURN", c.cfg.Mark, c.cfg.Mark)}
}

// rowsChange is a change of the entries, and the rules that it needs.
type rowsChange struct {
	*IPTables
	xtables.Rows
	log *rollback.Log // nil for a state under construction
}

func (c *IPTables) change(log *rollback.Log) *rowsChange {
	ch := &rowsChange{c, xtables.Rows{Chains: map[[2]string][]string{}}, log}
	for range treeCount {
		ch.Entries = append(ch.Entries, map[lb.Key][]string{})
	}
	return ch
}

// put replaces the entry of its key; one without routes removes it.
func (c *rowsChange) put(l Entry) {
	was, known := c.leads[l.Key]
	switch {
	case len(l.Routes) > 0:
		rollback.Put(c.log, c.leads, l.Key, l)
	case known:
		rollback.Delete(c.log, c.leads, l.Key)
	default:
		return
	}
	c.share(l, 1)
	c.share(was, -1)
	nat, filter := inPortals, inRefused
	if l.Key.IsNodePort() {
		nat, filter = inNodePorts, inRefusedPorts
	}
	c.Entries[nat][l.Key], c.Entries[filter][l.Key] = c.lead(l)
}

// share counts an entry as one more or one less user of its listeners and its list of sources.
func (c *rowsChange) share(l Entry, by int) {
	for _, r := range l.Routes {
		if r.Port == 0 {
			continue
		}
		k := lb.Key{Port: r.Port, Proto: l.Key.Proto}
		switch n := count(c.log, c.listeners, k, by); {
		case n == 0:
			c.Entries[inGuard][k] = nil
		case n == by: // the first
			c.Entries[inGuard][k] = []string{c.reject(xtables.MatchKey(k, ""), k.Proto)}
		}
	}
	if len(l.Sources) > 0 {
		name := listChain(l.Sources)
		nat, filter := [2]string{"nat", name}, [2]string{"filter", name}
		switch n := count(c.log, c.lists, name, by); {
		case n == 0:
			c.Chains[nat], c.Chains[filter] = nil, nil
		case n == by:
			c.Chains[nat], c.Chains[filter] = list(l.Sources)
		}
	}
}

// count changes a number of users, and returns it.
func count[K comparable](log *rollback.Log, users map[K]int, k K, by int) int {
	n := users[k] + by
	if n == 0 {
		rollback.Delete(log, users, k)
	} else {
		rollback.Put(log, users, k, n)
	}
	return n
}

// Reset is part of [Redirector]. If iptables refuses it, Reset writes the entries of the previous
// process, and omits the others: one of them may be the cause, such as one of SCTP on a kernel
// without SCTP.
func (c *IPTables) Reset(ctx context.Context, n lb.Node, want []Entry) (later []lb.Key, err error) {
	address, err := c.choose(ctx, n.NodePorts)
	if err != nil {
		return nil, err
	}
	known, err := c.Known(ctx)
	if err != nil {
		return nil, err
	}
	c.node, c.address = n, address
	err = c.reset(ctx, want)
	served := map[lb.Key]bool{}
	for _, l := range known {
		served[l.Key] = true
	}
	for try := 0; try < 2 && errors.Is(err, xtables.ErrRefused); try++ {
		var now []Entry
		later = nil
		for _, l := range want {
			if served[l.Key] {
				now = append(now, l)
			} else {
				later = append(later, l.Key)
			}
		}
		err = c.reset(ctx, now)
		clear(served) // one of these may be the cause
	}
	return later, err
}

func (c *IPTables) reset(ctx context.Context, want []Entry) error {
	return c.keep.Reset(ctx, c.frames(), c.rowsOf(slices.Values(want)))
}

// rowsOf replaces all entries by these, and returns their rules and chains.
func (c *IPTables) rowsOf(want iter.Seq[Entry]) xtables.Rows {
	c.leads, c.listeners, c.lists = map[lb.Key]Entry{}, map[lb.Key]int{}, map[string]int{}
	rows := c.change(nil)
	own := c.own("")
	rows.Chains[[2]string{"nat", portalsHost}] = append(slices.Clone(own), "-j "+portals)
	rows.Chains[[2]string{"filter", refusedHost}] = append(own, "-j "+refused)
	for l := range want {
		rows.put(l)
	}
	return rows.Rows
}

// Apply is part of [Redirector].
func (c *IPTables) Apply(ctx context.Context, set []Entry, remove []lb.Key) error {
	log := &rollback.Log{}
	rows := c.change(log)
	for _, k := range remove {
		rows.put(Entry{Key: k})
	}
	for _, l := range set {
		rows.put(l)
	}
	err := c.keep.Apply(ctx, rows.Rows)
	if err != nil {
		log.Undo()
	}
	return err
}

// SetNode is part of [Redirector]. Nearly every rule may depend on the node.
func (c *IPTables) SetNode(ctx context.Context, n lb.Node) error {
	address, err := c.choose(ctx, n.NodePorts)
	if err != nil {
		return err
	}
	if n.Equal(c.node) && address == c.address {
		return nil
	}
	node, was := c.node, c.address
	c.node, c.address = n, address
	if err := c.reset(ctx, slices.Collect(maps.Values(c.leads))); err != nil {
		c.node, c.address = node, was
		return fmt.Errorf("%w: %w", err, plane.ErrStateLost)
	}
	return nil
}

// Probe is part of [Redirector].
func (c *IPTables) Probe(ctx context.Context) error { return c.keep.Probe(ctx) }

// Audit is part of [Redirector].
func (c *IPTables) Audit(ctx context.Context, full bool) (int, error) {
	if err := c.SetNode(ctx, c.node); err != nil { // another address of the node
		return 0, err
	}
	return c.keep.Audit(ctx, full)
}

// Known is part of [Redirector]. It omits refusals.
func (c *IPTables) Known(ctx context.Context) ([]Entry, error) {
	rules, err := c.keep.Rules(ctx)
	if err != nil {
		return nil, err
	}
	leads := map[lb.Key]Entry{}
	for _, r := range rules {
		if r.Table != "nat" {
			continue
		}
		if k, port, from, ok := parseLead(r.Rule); ok {
			l := leads[k]
			l.Key = k
			// there are many ways to recognise pods
			if !slices.ContainsFunc(l.Routes, func(r Route) bool { return r.From == from }) {
				l.Routes = append(l.Routes, Route{From: from, Port: port})
			}
			leads[k] = l
		}
	}
	return slices.SortedFunc(maps.Values(leads), func(a, b Entry) int { return a.Key.Compare(b.Key) }), nil
}

// parseLead parses a rule that redirects a key to a port.
func parseLead(rule string) (k lb.Key, port uint16, from lb.From, ok bool) {
	from = lb.Anywhere
	k, ok = xtables.MatchedKey(rule, func(option, value string) {
		switch option {
		case "-s", "-i":
			from = lb.Pods
		case "--src-type":
			from = lb.Host
		case "--to-destination":
			n, _ := strconv.ParseUint(value[strings.LastIndexByte(value, ':')+1:], 10, 16)
			port = uint16(n)
		}
	})
	return k, port, from, ok && port != 0
}
