package redirect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/diff"
	"kube-proxy/plane/selfwrites"
)

// NFTables redirects by a table of its own in nftables. Its chains are always the same; frontends
// are elements of maps.
type NFTables struct {
	*byRules
	ip    rule.IP
	cfg   Config
	rules *ruleset
	sock  *wire.Socket
	ours  *selfwrites.Ledger
	st    *nftState // nil before the first Reset
	sent  uint64    // messages, without the frames of transactions

	// mon notices changes of our table by other programs. It only records that a change happened:
	// reading the table is cheap, and no other program should change it.
	mon     *wire.Monitor
	noticed atomic.Bool
}

// NewNFTables opens the sockets in the network namespace of the calling thread. It changes nothing.
// Errors wrap plane.ErrUnsupported if the kernel lacks nf_tables.
func NewNFTables(cfg Config) (*NFTables, error) {
	ip := rule.IPOf(cfg.Family)
	c := &NFTables{ip: ip, cfg: cfg, ours: cmp.Or(cfg.Writes, &selfwrites.Ledger{})}
	var err error
	c.sock, err = wire.Open()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, plane.ErrUnsupported)
	}
	// nft_socket is the only expression that a kernel may lack
	unguarded := c.able(context.Background(), true)
	if unguarded != nil {
		err = c.able(context.Background(), false)
	}
	if err != nil {
		c.sock.Close()
		return nil, fmt.Errorf("%w: %w", err, plane.ErrUnsupported)
	}
	c.rules = c.renderer(lb.Node{}, unguarded == nil)
	c.byRules, err = watchAddresses(ip.Proto, unguarded)
	if err == nil {
		missed := func() {
			c.noticed.Store(true)
			wake(c.drift)
		}
		note := func(uint16, []byte) { c.noticed.Store(true) }
		c.mon, err = wire.Watch(c.sock, ip.Proto, wire.Of(TableName), note, missed, missed)
		if err != nil {
			c.byRules.close()
		}
	}
	if err != nil {
		c.sock.Close()
		return nil, err
	}
	c.ours.Join(c.mon)
	return c, nil
}

// able checks that the kernel accepts all our rules, also those that match sockets.
func (c *NFTables) able(ctx context.Context, sockets bool) error {
	// to include every kind of rule
	everything := []netip.Prefix{netip.PrefixFrom(xtables.Loopback(c.ip.Family).Addr(), 1).Masked()}
	rules := c.renderer(lb.Node{NodePorts: everything, ServiceCIDRs: everything,
		Pods: lb.Detector{Prefixes: everything}}, sockets)
	t := rules.transaction(TableName + "-probe")
	chains := rules.chains()
	addTable(t, chains)
	for _, ch := range chains {
		ch.AddTo(t)
	}
	return c.sock.Takes(ctx, t)
}

// addTable stages the table with its chains and sets, without rules and elements.
func addTable(t *wire.Transaction, chains []rule.Chain) {
	t.AddTable()
	t.AddSets()
	for _, ch := range chains {
		t.AddChain(ch.Name, ch.Hook)
	}
}

// Name is part of [Redirector].
func (c *NFTables) Name() string { return "nftables" }

// ChangedBy is part of plane.Witness.
func (c *NFTables) ChangedBy() string { return c.mon.ChangedBy() }

// Close is part of [Redirector].
func (c *NFTables) Close() error {
	c.ours.Leave(c.mon)
	return errors.Join(c.byRules.close(), c.mon.Close(), c.sock.Close())
}

// Known is part of [Redirector].
func (c *NFTables) Known(ctx context.Context) ([]Entry, error) {
	snap, err := c.read(ctx)
	if err != nil || !snap.ours {
		return nil, err
	}
	leads := map[lb.Key]Entry{}
	for from := lb.Pods; from <= lb.Anywhere; from++ {
		for _, np := range []bool{false, true} {
			add := func(rec []byte, r Route) {
				k := parseKey(c.rules.set(ports(from, np)), rec)
				l := leads[k]
				l.Key, l.Routes = k, append(l.Routes, r)
				leads[k] = l
			}
			for rec := range snap.records[ports(from, np)].All() {
				add(rec, Route{From: from, Port: wire.ParsePort(rec[len(rec)-2:])})
			}
			for rec := range snap.records[refusals(from, np)].All() {
				add(rec, Route{From: from, Do: lb.Action(netlink.Order.Uint32(rec[len(rec)-4:]))})
			}
		}
	}
	return slices.SortedFunc(maps.Values(leads), func(a, b Entry) int { return a.Key.Compare(b.Key) }), nil
}

// Reset is part of [Redirector]. It replaces a table of another version in the same transaction.
// The monitor notices writes of other programs while it reads, and an audit repairs them.
func (c *NFTables) Reset(ctx context.Context, n lb.Node, want []Entry) (later []lb.Key, err error) {
	c.noticed.Store(false) // the read includes earlier foreign changes
	snap, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	address, err := c.choose(ctx, n.NodePorts)
	if err != nil {
		return nil, err
	}
	node := c.rules.node
	c.rules.node = n
	st := stateOf(want, snap, c.ip.AddrLen)
	st.address = address
	t := c.rules.transaction(TableName)
	c.repair(t, snap, st)
	if err := c.commit(ctx, t); err != nil {
		c.rules.node = node
		return nil, err
	}
	c.st = st
	return nil, nil
}

// repair stages the changes from the snapshot to the state, and returns the number of differences.
func (c *NFTables) repair(t *wire.Transaction, snap *snapshot, st *nftState) int {
	n := 0
	if !snap.ours {
		if snap.Present {
			t.DeleteTable()
		}
		addTable(t, c.rules.chains())
		snap = &snapshot{records: c.rules.noRecords()}
	}
	for _, ch := range c.rules.chains() {
		if is, there := snap.Chains[ch.Name]; is.Digest != ch.Digest() {
			n++
			if there {
				t.FlushChain(ch.Name)
			}
			ch.AddTo(t)
		}
	}
	want := st.records(c.rules)
	for i := range setCount {
		n += diff.Elements(snap.records[i], want[i], c.rules.sets[i].KeyLen(), func(is, want []byte) {
			if is != nil {
				t.Remove(i, is)
			}
			if want != nil {
				t.Add(i, want)
			}
		})
	}
	return n
}

// Apply is part of [Redirector]. It is one transaction, which only has elements.
func (c *NFTables) Apply(ctx context.Context, set []Entry, remove []lb.Key) error {
	log := &rollback.Log{}
	ch := c.st.change(log)
	for _, k := range remove {
		ch.put(Entry{Key: k})
	}
	for _, l := range set {
		ch.put(l)
	}
	ch.finish()
	t := c.rules.transaction(TableName)
	for e, add := range ch.staged {
		if add {
			t.Add(e.set, []byte(e.rec))
		} else {
			t.Remove(e.set, []byte(e.rec))
		}
	}
	if err := c.commit(ctx, t); err != nil {
		log.Undo()
		return err
	}
	return nil
}

// SetNode is part of [Redirector].
func (c *NFTables) SetNode(ctx context.Context, n lb.Node) error {
	before, t := c.rules.chains(), c.rules.transaction(TableName)
	address, err := c.choose(ctx, n.NodePorts)
	if err != nil {
		return err
	}
	was := c.rules.node
	c.rules.node = n
	for i, ch := range c.rules.chains() { // always the same ones
		if before[i].Digest() != ch.Digest() {
			t.FlushChain(ch.Name)
			ch.AddTo(t)
		}
	}
	if was := c.st.address; address != was {
		if was.IsValid() {
			t.Remove(sNodeAddresses, []byte(addressElement(c.ip.Proto, was).rec))
		}
		if address.IsValid() {
			t.Add(sNodeAddresses, []byte(addressElement(c.ip.Proto, address).rec))
		}
	}
	if err := c.commit(ctx, t); err != nil {
		c.rules.node = was
		return err
	}
	c.st.address = address
	return nil
}

// Probe is part of [Redirector]: it rewrites the rules of one small chain without a change.
func (c *NFTables) Probe(ctx context.Context) error {
	t := c.rules.transaction(TableName)
	for _, ch := range c.rules.chains() {
		if ch.Name == "refused" {
			t.FlushChain(ch.Name)
			ch.AddTo(t)
		}
	}
	return c.commit(ctx, t)
}

// Audit is part of [Redirector].
func (c *NFTables) Audit(ctx context.Context, full bool) (int, error) {
	if err := c.SetNode(ctx, c.rules.node); err != nil { // another address of the node
		return 0, err
	}
	noticed := c.noticed.Swap(false)
	if !noticed && !full {
		return 0, nil
	}
	n, err := c.audit(ctx, noticed)
	if err != nil && noticed {
		c.mon.Missed()
	}
	return n, err
}

func (c *NFTables) audit(ctx context.Context, noticed bool) (int, error) {
	for again := !noticed; ; again = false {
		snap, err := c.read(ctx)
		if err != nil {
			return 0, err
		}
		if !snap.ours {
			return 0, fmt.Errorf("another program removed or replaced table %s or a part of it: %w", TableName,
				plane.ErrStateLost)
		}
		t := c.rules.transaction(TableName)
		n := c.repair(t, snap, c.st)
		if n > 0 && again { // the list of a set that the kernel is just resizing may lack elements
			continue
		}
		if err := c.commit(ctx, t); err != nil {
			return 0, err
		}
		return n, nil
	}
}

// commit sends a transaction. Errors are those of [wire.Socket.Commit].
func (c *NFTables) commit(ctx context.Context, t *wire.Transaction) error {
	c.sent += uint64(t.Last())
	_, err := c.sock.Commit(ctx, c.ours, t)
	return err
}

// snapshot is the content of the kernel's table.
type snapshot struct {
	rule.Kept
	ours    bool // it is in force with exactly our sets and chains
	records [setCount]diff.Records
}

// read reads our table, again if another program changes it meanwhile. Frequent changes of other
// tables do no harm: reading small objects takes so little time that they leave a gap, and the
// monitor reports changes of our elements.
func (c *NFTables) read(ctx context.Context) (snap *snapshot, err error) {
	for range 10 {
		snap, err = c.structure(ctx)
		if err == nil && snap.ours {
			err = c.readElements(ctx, snap)
		}
		if !errors.Is(err, netlink.ErrInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", TableName, err)
	}
	return snap, nil
}

func (c *NFTables) table() wire.Table {
	return wire.Table{Socket: c.sock, Family: c.ip.Proto, Name: TableName}
}

// structure reads everything except elements.
func (c *NFTables) structure(ctx context.Context) (*snapshot, error) {
	is, err := rule.Read(ctx, c.table(), c.rules.sets[:])
	s, chains := &snapshot{Kept: is, records: c.rules.noRecords()}, c.rules.chains()
	s.ours = is.Serves(chains) && len(is.Foreign) == 0 && len(is.Chains) == len(chains)
	for _, ch := range chains {
		_, there := is.Chains[ch.Name]
		s.ours = s.ours && there
	}
	return s, err
}

func (c *NFTables) readElements(ctx context.Context, s *snapshot) error {
	for i := range setCount {
		d := &c.rules.sets[i]
		if !s.There[i] {
			continue
		}
		err := c.table().EachElement(ctx, d.Name, func(el []byte) {
			s.records[i].Bytes = d.Record(s.records[i].Bytes, el)
		})
		if err != nil && !(errors.Is(err, netlink.ErrInterrupted) && !c.noticed.Load()) {
			return err
		}
	}
	return nil
}
