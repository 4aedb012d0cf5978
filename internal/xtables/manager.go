//go:build linux

package xtables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"kube-proxy/internal/rollback"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
	"kube-proxy/plane/selfwrites"
)

// Manager maintains the chains of a mode other than iptables. It remembers a digest of each chain,
// writes those that differ in one restore, finds the rules of a frontend by a tree (docs/adr/0011),
// and repairs changes of other programs. Its user renders the rules exactly as iptables-save prints
// them.
//
// Its methods must be called by one goroutine at a time, on a thread in the network namespace of
// the node.
type Manager struct {
	*Writer
	layout Layout

	set     bool
	trees   []*Dispatcher
	applied Applied
	fixed   map[ChainID][]string // chains other than trees

	held held
}

// held is the last listing for queries. The programs are slow, and the generation of nftables shows
// whether it is still current.
type held struct {
	mu           sync.Mutex
	changes      fingerprinter
	at           fingerprint
	jumps, rules []ChainRule
}

// Layout is what a Manager maintains independently of the frontends.
type Layout struct {
	Family lb.Family
	Trees  []Tree
	// Jumps are rules of built-in chains.
	Jumps []ChainRule
	// Ours reports whether a chain of a table belongs to the mode; unneeded ones are deleted.
	Ours func(table, chain string) bool
	// Writes is shared by the planes of this process in one network namespace. Nil means that this
	// plane is the only one.
	Writes *selfwrites.Ledger
	// Backend is the variant of iptables; Auto selects the one that the node uses.
	Backend Backend
}

// Tree is a chain that finds frontends by the destination; with many frontends it has branches.
type Tree struct {
	Table, Root string
	// Prefix begins the names of branches.
	Prefix string
	// Ports is set if keys have no address, as for NodePorts.
	Ports bool
}

// Rows is a change of the entries and chains of a Manager.
type Rows struct {
	// Entries are the rules of keys, for each tree in order; no rules for a deleted key.
	Entries []map[lb.Key][]string
	// Chains are other chains, by table and name; nil for a deleted one.
	Chains map[[2]string][]string
}

// Frame is the rules of a tree's root besides its entries: the first ones and the last ones.
type Frame struct{ Head, Tail []string }

// NewManager finds the programs. It changes nothing. Errors wrap plane.ErrUnsupported without a
// usable iptables.
func NewManager(l Layout) (*Manager, error) {
	t, err := UsableTool(nil, l.Family, l.Backend)
	if err != nil {
		return nil, err
	}
	k := &Manager{layout: l}
	k.Writer = NewWriter(t, k.isOurs, l.Writes)
	return k, nil
}

func (k *Manager) isOurs(id ChainID) bool { return k.layout.Ours(id.Table.String(), id.Name) }

// Close releases the Manager's resources in this process. The rules stay in force.
func (k *Manager) Close() error {
	k.held.mu.Lock()
	defer k.held.mu.Unlock()
	if k.held.changes != nil {
		k.held.changes.close()
		k.held.changes, k.held.at = nil, fingerprint{}
	}
	return k.Writer.Close()
}

// Rules returns the rules of the mode's chains, as they are in the kernel.
func (k *Manager) Rules(ctx context.Context) ([]ChainRule, error) {
	_, all, err := k.Held(ctx)
	return all, err
}

// Held returns the jumps of the Layout that are in the kernel, in its order, and the rules of the
// mode's chains. The caller must not change them. Held may be called by any goroutine at any time,
// on a thread in the network namespace of the node. It runs programs only if the rules may have
// changed: with the legacy back end always, because the kernel does not report its changes
// reliably.
func (k *Manager) Held(ctx context.Context) (jumps, rules []ChainRule, err error) {
	h := &k.held
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changes == nil && k.Backend != Legacy {
		h.changes = newFingerprinter(k.layout.Family, k.Backend, &selfwrites.Ledger{})
	}
	at := fingerprint{}
	if h.changes != nil {
		at, err = h.changes.now()
		if err != nil {
			at = fingerprint{}
		}
	}
	if at != (fingerprint{}) && at == h.at {
		return h.jumps, h.rules, nil
	}
	jumps, rules, err = k.listHeld(ctx)
	if err != nil {
		return nil, nil, err
	}
	h.at, h.jumps, h.rules = at, jumps, rules
	return jumps, rules, nil
}

func (k *Manager) listHeld(ctx context.Context) (jumps, rules []ChainRule, err error) {
	texts := map[ChainID][]string{}
	s, err := k.Snapshot(ctx, k.isOurs, func(id ChainID, rule []byte) { texts[id] = append(texts[id], string(rule)) })
	if err != nil {
		return nil, nil, fmt.Errorf("iptables: %w", err)
	}
	for i, j := range k.layout.jumps() {
		if _, there := s.Jumps[j.Bare()]; there {
			jumps = append(jumps, k.layout.Jumps[i])
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(texts), CompareID) {
		for _, r := range texts[id] {
			rules = append(rules, ChainRule{id.Table.String(), id.Name, r})
		}
	}
	return jumps, rules, nil
}

// jumps returns the rules of built-in chains.
func (l *Layout) jumps() (all []Jump) {
	for _, j := range l.Jumps {
		table, _ := TableNamed(j.Table)
		all = append(all, Jump{ChainID{table, j.Chain}, j.Rule})
	}
	return all
}

// writeOrder is the order of tables in a restore, which the kernel takes one after the other. The
// filter table comes first: it refuses untranslated packets. Nat comes last: when its chains stop
// translating, those of mangle must already work (mode ipvs after iptables).
var writeOrder = [...]Table{Filter, Mangle, NAT, Raw}

// ErrRefused means that iptables refused a restore, and that no part of it is in force.
var ErrRefused = errors.New("iptables refuses it")

// Reset makes the kernel hold exactly these chains, changing only what differs.
func (k *Manager) Reset(ctx context.Context, frames []Frame, rows Rows) error {
	have, err := k.List(ctx, nil)
	if err != nil {
		return fmt.Errorf("iptables: reset: %w", err)
	}
	k.set = false
	k.trees, k.fixed = k.layout.build(frames, rows)
	k.applied = NewApplied()
	for c := range wanted(k.trees, k.fixed) {
		k.applied.Note(c.ID, DigestOf(c.Rules))
	}
	if _, err := k.repair(ctx, have); err != nil {
		return fmt.Errorf("iptables: reset: %w", err)
	}
	k.set = true
	return nil
}

// build returns the trees and the other chains for all frontends.
func (l *Layout) build(frames []Frame, rows Rows) (trees []*Dispatcher, fixed map[ChainID][]string) {
	for i, t := range l.Trees {
		table, _ := TableNamed(t.Table)
		d := &Dispatcher{Table: table, Root: t.Root, Prefix: t.Prefix, Family: l.Family, Ports: t.Ports,
			Head: frames[i].Head, Tail: frames[i].Tail}
		d.Fill(entriesOf(rows.Entries[i]))
		trees = append(trees, d)
	}
	fixed = map[ChainID][]string{}
	for at, rules := range rows.Chains {
		if rules != nil {
			table, _ := TableNamed(at[0])
			fixed[ChainID{table, at[1]}] = rules
		}
	}
	return trees, fixed
}

// wanted yields all chains.
func wanted(trees []*Dispatcher, fixed map[ChainID][]string) iter.Seq[Wanted] {
	return func(yield func(Wanted) bool) {
		for id, rules := range fixed {
			if !yield(Wanted{Chain: Chain{id, rules}}) {
				return
			}
		}
		for _, d := range trees {
			for w := range d.Wanted() {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// Differences reports the differences between the kernel and the desired state. It may be called by
// any goroutine at any time, on a thread in the network namespace of the node.
func (k *Manager) Differences(ctx context.Context, frames []Frame, rows Rows, reporter *mode.Reporter) error {
	return k.Tool.Differences(ctx, k.layout.jumps(), wanted(k.layout.build(frames, rows)), k.isOurs, reporter)
}

// repair repairs the kernel and returns the number of differences.
func (k *Manager) repair(ctx context.Context, have *Snapshot) (n int, err error) {
	var b Batch
	byID := func(a, b Wanted) int { return CompareID(a.ID, b.ID) }
	for _, c := range slices.SortedFunc(wanted(k.trees, k.fixed), byID) {
		if is, known := have.Chains[c.ID]; !known || !k.Holds(c.ID, k.applied.Digests[c.ID], is) {
			n++
			b.Only(c.ID.Table).Put(c.Chain)
		}
	}
	leads := map[Jump]bool{}
	for _, j := range slices.Backward(k.layout.jumps()) { // each is inserted at the front
		leads[j.Bare()] = true
		if !k.HasJump(j, have) {
			n++
			s := b.Only(j.From.Table)
			s.Insert = append(s.Insert, j)
		}
	}
	var stale []ChainID // of an earlier version, or of another mode
	for id := range have.Chains {
		if _, wanted := k.applied.Digests[id]; !wanted {
			stale = append(stale, id)
		}
	}
	for bare, j := range have.Jumps {
		if !leads[bare] && slices.Contains(builtIn, j.From.Name) && isJump(j.Rule) &&
			k.isOurs(ChainID{j.From.Table, target(j.Rule)}) {
			n++
			b.remove(j, have.handles)
		}
	}
	slices.SortFunc(b.Sections, func(a, b *Section) int {
		return cmp.Compare(slices.Index(writeOrder[:], a.Table), slices.Index(writeOrder[:], b.Table))
	})
	if err := k.restore(ctx, &b); err != nil || len(stale) == 0 {
		return n, err
	}
	slices.SortFunc(stale, CompareID)
	stuck, err := Sweep(ctx, nil, stale, NFTLines, func(b *Batch) error { return k.restore(ctx, b) })
	return n + len(stale) - len(stuck), err // those that foreign rules jump to stay, empty
}

// restore hands a batch to iptables-restore. An error wraps ErrRefused if no part of the batch is
// in force, else plane.ErrStateLost.
func (k *Manager) restore(ctx context.Context, b *Batch) error {
	err := k.Restore(ctx, b)
	switch {
	case errors.Is(err, plane.ErrStateLost):
		k.set = false
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// Apply writes the chains that a change touches, in one restore.
func (k *Manager) Apply(ctx context.Context, rows Rows) error {
	if !k.set {
		return fmt.Errorf("iptables: apply: %w", plane.ErrNotSetUp)
	}
	c := &Change{Applied: &k.applied}
	c.Log = &rollback.Log{}
	defer func() { c.Log = nil }()
	var chains []Chain
	var gone []ChainID
	for at, rules := range rows.Chains {
		table, _ := TableNamed(at[0])
		id := ChainID{table, at[1]}
		if rules == nil {
			rollback.Delete(c.Log, k.fixed, id)
			gone = append(gone, id)
			continue
		}
		rollback.Put(c.Log, k.fixed, id, rules)
		chains = append(chains, Chain{id, rules})
	}
	slices.SortFunc(chains, func(a, b Chain) int { return CompareID(a.ID, b.ID) })
	slices.SortFunc(gone, CompareID)
	for _, t := range writeOrder {
		c.Write(t, chains...)
		for i, d := range k.trees {
			if d.Table == t {
				c.Dispatch(d, entriesOf(rows.Entries[i]))
			}
		}
		c.Drop(t, gone...)
	}
	if err := k.restore(ctx, &c.Batch); err != nil {
		c.Log.Undo()
		return fmt.Errorf("iptables: apply: %w", err)
	}
	return nil
}

// Probe rewrites a chain without a change. The chain has rules, so that the kernel commits it.
func (k *Manager) Probe(ctx context.Context) error {
	if !k.set {
		return fmt.Errorf("iptables: probe: %w", plane.ErrNotSetUp)
	}
	var b Batch
	smallest := Chain{}
	for id, rules := range k.fixed {
		if len(rules) > 0 && (smallest.Rules == nil || cmp.Or(cmp.Compare(len(rules), len(smallest.Rules)),
			CompareID(id, smallest.ID)) < 0) {
			smallest = Chain{id, rules}
		}
	}
	b.Section(smallest.ID.Table).Put(smallest)
	if err := k.restore(ctx, &b); err != nil {
		return fmt.Errorf("iptables: probe: %w", err)
	}
	return nil
}

// Audit compares all chains and jumps with the applied state and repairs them. It does so only if
// another program may have changed a rule since the last time or, with full, once an hour. It
// returns the number of differences.
func (k *Manager) Audit(ctx context.Context, full bool) (repaired int, err error) {
	if !k.set {
		return 0, fmt.Errorf("iptables: audit: %w", plane.ErrNotSetUp)
	}
	if !k.Due(full) {
		return 0, nil
	}
	have, err := k.List(ctx, nil)
	if err == nil {
		repaired, err = k.repair(ctx, have)
	}
	if err == nil && repaired > 0 {
		var odd int
		odd, err = k.Learn(ctx, k.applied.Digests, k.layout.jumps(), have)
		repaired -= odd
	}
	if err != nil {
		return repaired, fmt.Errorf("iptables: audit: %w", err)
	}
	return repaired, nil
}

func entriesOf(rules map[lb.Key][]string) []Entry {
	all := make([]Entry, 0, len(rules))
	for key, r := range rules {
		all = append(all, Entry{PathOf(key), r})
	}
	return all
}

func CompareID(a, b ChainID) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Name, b.Name))
}
