//go:build linux

package xtables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"kube-proxy/internal/rollback"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/ownwrites"
)

// Keeper keeps the chains of another mode than this one, by the same programs and in the same way: it remembers a digest of each
// chain, writes those that differ in one restore, finds the rules of a row by a tree (docs/adr/0011), and mends what others
// change. What the chains hold, who has it says; rules must be written as iptables-save prints them.
//
// Its methods must be called by one goroutine at a time, on a thread in the network namespace of the node.
type Keeper struct {
	tool   *Tool
	layout Layout
	ours   Fingerprinter // nil if there is none
	seen   Fingerprint
	listed time.Time

	set    bool
	trees  []*Dispatcher
	kernel map[ChainID]Digest
	fixed  map[ChainID][]string // chains that are no trees
	prints map[ChainID]Printed
	sent   uint64
	// failures is how many restores failed.
	failures uint64

	held held
}

// held is what was listed last for who looks. The programs take longer than all else, and the kernel tells by a number whether anything of
// nftables has changed since.
type held struct {
	mu           sync.Mutex
	changes      Fingerprinter
	at           Fingerprint
	jumps, rules []ChainRule
}

// Layout is what a Keeper keeps whatever the rows are.
type Layout struct {
	Family lb.Family
	Trees  []Tree
	// Jumps are rules of built-in chains.
	Jumps []ChainRule
	// Ours reports whether a chain of a table is of the mode; those that nobody asks for any more are deleted.
	Ours func(table, chain string) bool
	// Writes is shared by the planes of this process in one network namespace. Nil means that there is no other.
	Writes *ownwrites.Ledger
	// Backend is the variant of iptables; Auto takes the one that the node uses.
	Backend Backend
}

// Tree is a chain that finds rows by the destination; with many rows it has branches.
type Tree struct {
	Table, Root string
	// Prefix begins the names of branches.
	Prefix string
	// Ports: keys have no address, as those of NodePorts.
	Ports bool
}

// ChainRule is a rule of a chain, which it names.
type ChainRule struct{ Table, Chain, Rule string }

// Rows is a change of what a Keeper keeps.
type Rows struct {
	// Entries are, for each tree in their order, the rules of keys; none for a key that goes.
	Entries []map[lb.Key][]string
	// Chains are other chains, by table and name; nil for one that goes.
	Chains map[[2]string][]string
}

// Frame is what the trees have besides rows, in their order: the first rules and the last of the root.
type Frame struct{ Head, Tail []string }

// NewKeeper finds the programs. It changes nothing. Errors wrap plane.ErrUnsupported where there is no usable iptables.
func NewKeeper(l Layout) (*Keeper, error) {
	t, err := UsableTool(nil, l.Family, l.Backend)
	if err != nil {
		return nil, err
	}
	return &Keeper{tool: t, layout: l, ours: NewFingerprinter(l.Family, t.Backend, cmp.Or(l.Writes, &ownwrites.Ledger{}))}, nil
}

// Close gives back what the Keeper holds of this process. The rules stay in force.
func (k *Keeper) Close() error {
	k.held.mu.Lock()
	defer k.held.mu.Unlock()
	if k.held.changes != nil {
		k.held.changes.Close()
		k.held.changes, k.held.at = nil, Fingerprint{}
	}
	if k.ours != nil {
		k.ours.Close()
		k.ours = nil
	}
	return nil
}

// Tool returns the programs that the Keeper runs.
func (k *Keeper) Tool() *Tool { return k.tool }

// Have is [Programs.Have].
func (k *Keeper) Have(matches, targets []string) error {
	return (&Programs{k.tool}).Have(matches, targets)
}

// FullyRandom reports whether this iptables knows --random-fully.
func (k *Keeper) FullyRandom() bool { return k.tool.Version.AtLeast(Version{1, 6, 2}) }

// Backend returns the variant of iptables that the Keeper writes with.
func (k *Keeper) Backend() Backend { return k.tool.Backend }

// Sent is how many rules were written.
func (k *Keeper) Sent() uint64 { return k.sent }

// Failures is how many restores failed.
func (k *Keeper) Failures() uint64 { return k.failures }

// MatchKey is the match of a destination, without that of the address where a key has none.
func MatchKey(key lb.Key) (dst, ports string) {
	if key.Addr.IsValid() {
		dst = fmt.Sprintf("-d %s/%d ", key.Addr, key.Addr.BitLen())
	}
	return dst, fmt.Sprintf("-p %s -m %s --dport %d ", key.Proto, key.Proto, key.Port)
}

// keptChains is what iptables-save prints of the chains of the mode.
type keptChains struct {
	chains map[ChainID]Digest
	rules  map[ChainID][]string // only if they were asked for
	jumps  map[Jump]bool
	// handles are those of rules that iptables cannot delete.
	handles map[Jump][]uint64
}

// read lists the chains, and takes note that it did.
func (k *Keeper) read(ctx context.Context) (*keptChains, error) {
	if k.ours != nil {
		var err error
		if k.seen, err = k.ours.Now(); err != nil {
			k.seen = Fingerprint{}
		}
	}
	k.listed = time.Now()
	return k.list(ctx, false)
}

// list lists the chains, and changes nothing of the Keeper.
func (k *Keeper) list(ctx context.Context, texts bool) (*keptChains, error) {
	s := &keptChains{chains: map[ChainID]Digest{}, rules: map[ChainID][]string{}, jumps: map[Jump]bool{}, handles: map[Jump][]uint64{}}
	contents := map[ChainID]*Content{}
	err := k.tool.Lines(ctx, func(line SavedLine) {
		t, known := TableNamed(line.Table)
		if !known || t >= Tables {
			return
		}
		id := ChainID{t, string(line.Chain)}
		c := contents[id]
		switch {
		case line.Kind == SavedChain && k.layout.Ours(t.String(), id.Name):
			contents[id] = NewContent()
		case line.Kind != SavedRule:
		case c == nil:
			j := Jump{id, string(line.Rest)}
			if line.Handle != 0 {
				j = k.layout.asWritten(j)
				s.handles[j] = append(s.handles[j], line.Handle)
			}
			s.jumps[j] = true
		default:
			c.Add(string(line.Rest), line.Handle == 0)
			if texts {
				s.rules[id] = append(s.rules[id], string(line.Rest))
			}
		}
	})
	for id, c := range contents {
		s.chains[id] = c.Digest()
	}
	return s, err
}

// asWritten returns a rule of the kernel as the layout has it: iptables may print a comment otherwise, and nf_tables none.
func (l *Layout) asWritten(j Jump) Jump {
	for _, want := range l.Jumps {
		if want.Table == j.From.Table.String() && want.Chain == j.From.Name && WithoutComments(want.Rule) == WithoutComments(j.Rule) {
			return Jump{j.From, want.Rule}
		}
	}
	return j
}

// Rules returns the rules of the mode's chains, as they are in the kernel.
func (k *Keeper) Rules(ctx context.Context) ([]ChainRule, error) {
	_, all, err := k.Held(ctx)
	return all, err
}

// Held returns the rules of built-in chains that lead to the mode's, of those of the Layout and in its order, and the rules of the mode's
// chains. Nobody may write to them. It may be called by any goroutine at any time, on a thread in the network namespace of the node; programs
// run only where something may have changed since: with the legacy back end always, of which the kernel does not tell that surely.
func (k *Keeper) Held(ctx context.Context) (jumps, rules []ChainRule, err error) {
	h := &k.held
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changes == nil && k.tool.Backend != Legacy {
		h.changes = NewFingerprinter(k.layout.Family, k.tool.Backend, &ownwrites.Ledger{})
	}
	at := Fingerprint{}
	if h.changes != nil {
		if at, err = h.changes.Now(); err != nil {
			at = Fingerprint{}
		}
	}
	if at != (Fingerprint{}) && at == h.at {
		return h.jumps, h.rules, nil
	}
	if jumps, rules, err = k.listHeld(ctx); err != nil {
		return nil, nil, err
	}
	h.at, h.jumps, h.rules = at, jumps, rules
	return jumps, rules, nil
}

func (k *Keeper) listHeld(ctx context.Context) (jumps, rules []ChainRule, err error) {
	s, err := k.list(ctx, true)
	if err != nil {
		return nil, nil, fmt.Errorf("iptables: %w", err)
	}
	for _, j := range k.layout.Jumps {
		if table, _ := TableNamed(j.Table); s.jumps[Jump{ChainID{table, j.Chain}, j.Rule}] {
			jumps = append(jumps, j)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.rules), CompareID) {
		for _, r := range s.rules[id] {
			rules = append(rules, ChainRule{id.Table.String(), id.Name, r})
		}
	}
	return jumps, rules, nil
}

// inOrder is the order of tables in a restore, which the kernel takes one after the other. The filter table comes first: it refuses what is
// not translated. Nat comes last: where its chains translate no more, those of mangle must lead packets already (mode ipvs after iptables).
func inOrder(a, b *Section) int {
	place := [...]int{Filter: 0, Mangle: 1, NAT: 2, Raw: 3}
	return cmp.Compare(place[a.Table], place[b.Table])
}

// ErrRefused is the error of what iptables does not take, and of which nothing is in force.
var ErrRefused = errors.New("iptables refuses it")

// Reset makes the kernel hold exactly these chains, changing only what differs.
func (k *Keeper) Reset(ctx context.Context, frames []Frame, rows Rows) error {
	have, err := k.read(ctx)
	if err != nil {
		return fmt.Errorf("iptables: reset: %w", err)
	}
	k.set = false
	k.trees = nil
	for i, t := range k.layout.Trees {
		table, _ := TableNamed(t.Table)
		d := &Dispatcher{Table: table, Root: t.Root, Prefix: t.Prefix, Family: k.layout.Family, Nodes: map[string]*Node{"": {}},
			Head: frames[i].Head, Tail: frames[i].Tail}
		if !t.Ports {
			d.AddrNibbles = map[lb.Family]int{lb.IPv4: 8, lb.IPv6: 32}[k.layout.Family]
		}
		entries := entriesOf(rows.Entries[i])
		d.Set(entries)
		d.Update(PathsOf(entries))
		k.trees = append(k.trees, d)
	}
	k.fixed = map[ChainID][]string{}
	for at, rules := range rows.Chains {
		if rules != nil {
			table, _ := TableNamed(at[0])
			k.fixed[ChainID{table, at[1]}] = rules
		}
	}
	k.prints = nil
	k.kernel = map[ChainID]Digest{}
	for c := range k.chains {
		k.kernel[c.ID] = DigestOf(c.Rules)
	}
	if _, err := k.mend(ctx, have); err != nil {
		return fmt.Errorf("iptables: reset: %w", err)
	}
	k.set = true
	return nil
}

// chains yields all chains as they shall be.
func (k *Keeper) chains(yield func(Chain) bool) {
	for id, rules := range k.fixed {
		if !yield(Chain{id, rules}) {
			return
		}
	}
	for _, d := range k.trees {
		for at := range d.Upwards() {
			if !yield(d.Chain(at)) {
				return
			}
		}
	}
}

// mend writes what is not as it shall be, and returns how many things that were.
func (k *Keeper) mend(ctx context.Context, have *keptChains) (n int, err error) {
	var b Batch
	for c := range k.chains {
		is, known := have.chains[c.ID]
		want := k.kernel[c.ID]
		if !known || !is.Alike(want) && k.prints[c.ID] != (Printed{want, is}) {
			n++
			b.Only(c.ID.Table).Put(c)
		}
	}
	for i := len(k.layout.Jumps) - 1; i >= 0; i-- { // each is put in front
		j := k.layout.Jumps[i]
		table, _ := TableNamed(j.Table)
		if at := (Jump{ChainID{table, j.Chain}, j.Rule}); !have.jumps[at] {
			n++
			s := b.Only(table)
			s.Insert = append(s.Insert, at)
		}
	}
	var stale []ChainID // of an earlier version, or of another mode
	for id := range have.chains {
		if _, wanted := k.kernel[id]; !wanted {
			stale = append(stale, id)
		}
	}
	for j := range have.jumps {
		wanted := slices.Contains(k.layout.Jumps, ChainRule{j.From.Table.String(), j.From.Name, j.Rule})
		if !wanted && slices.Contains(builtIn, j.From.Name) && IsJump(j.Rule) && k.layout.Ours(j.From.Table.String(), target(j.Rule)) {
			n++
			b.remove(j, have.handles)
		}
	}
	for _, s := range b.Sections {
		slices.SortFunc(s.Write, func(a, b Chain) int { return CompareID(a.ID, b.ID) })
		for i, c := range s.Write {
			s.at[c.ID.Name] = i
		}
	}
	slices.SortFunc(b.Sections, inOrder)
	if err := k.restore(ctx, &b); err != nil || len(stale) == 0 {
		return n, err
	}
	slices.SortFunc(stale, CompareID)
	stuck, err := Sweep(ctx, nil, stale, NFTLines, func(b *Batch) error { return k.restore(ctx, b) })
	return n + len(stale) - len(stuck), err // those that rules of others lead to stay, empty
}

// restore hands a batch to iptables-restore. An error wraps ErrRefused if nothing of it is in force, else plane.ErrStateLost.
func (k *Keeper) restore(ctx context.Context, b *Batch) error {
	if len(b.Sections)+len(b.handles) == 0 {
		return nil
	}
	for _, s := range b.Sections {
		k.sent += uint64(s.Rules() + len(s.Remove) + len(s.Drop))
	}
	k.sent += uint64(len(b.handles))
	change := func() error { return k.tool.restoreBatch(ctx, b) }
	var err error
	if k.ours == nil {
		err = change()
	} else {
		k.seen, err = k.ours.Own(k.seen, b.transactions(), change)
	}
	if err == nil {
		return nil
	}
	k.failures++
	if Partly(ctx, b, err) {
		k.set = false
		return fmt.Errorf("%w: a part may be in force: %w", err, plane.ErrStateLost)
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}

// Apply writes the chains that a change of rows touches, in one restore.
func (k *Keeper) Apply(ctx context.Context, rows Rows) error {
	if !k.set {
		return fmt.Errorf("iptables: apply: %w", plane.ErrNotSetUp)
	}
	log, b := &rollback.Log{}, &Batch{}
	write := func(c Chain) {
		want := DigestOf(c.Rules)
		if is, known := k.kernel[c.ID]; !known || is != want {
			b.Only(c.ID.Table).Put(c)
			rollback.Put(log, k.kernel, c.ID, want)
		}
	}
	drop := func(id ChainID) {
		if _, known := k.kernel[id]; known {
			b.Only(id.Table).Delete(id)
			rollback.Delete(log, k.kernel, id)
		}
	}
	var gone []ChainID
	for at, rules := range rows.Chains {
		table, _ := TableNamed(at[0])
		id := ChainID{table, at[1]}
		if rules == nil {
			rollback.Delete(log, k.fixed, id)
			gone = append(gone, id)
			continue
		}
		rollback.Put(log, k.fixed, id, rules)
		write(Chain{id, rules})
	}
	for i, d := range k.trees {
		changes := entriesOf(rows.Entries[i])
		if len(changes) == 0 {
			continue
		}
		before := d.Set(changes)
		rollback.Func(log, func() {
			slices.Reverse(before)
			d.Set(before)
			d.Update(PathsOf(before))
		})
		writes, drops := d.Update(PathsOf(changes))
		for _, at := range writes {
			write(d.Chain(at))
		}
		for _, at := range drops {
			drop(ChainID{d.Table, d.Name(at)})
		}
	}
	slices.SortFunc(gone, CompareID)
	for _, id := range gone {
		drop(id)
	}
	slices.SortFunc(b.Sections, inOrder)
	if err := k.restore(ctx, b); err != nil {
		log.Undo()
		return fmt.Errorf("iptables: apply: %w", err)
	}
	return nil
}

// Probe writes a chain anew, as it is: it has rules, so that the kernel commits it.
func (k *Keeper) Probe(ctx context.Context) error {
	if !k.set {
		return fmt.Errorf("iptables: probe: %w", plane.ErrNotSetUp)
	}
	var b Batch
	smallest := Chain{}
	for id, rules := range k.fixed {
		if len(rules) > 0 && (smallest.Rules == nil || cmp.Or(cmp.Compare(len(rules), len(smallest.Rules)), CompareID(id, smallest.ID)) < 0) {
			smallest = Chain{id, rules}
		}
	}
	b.Section(smallest.ID.Table).Put(smallest)
	if err := k.restore(ctx, &b); err != nil {
		return fmt.Errorf("iptables: probe: %w", err)
	}
	return nil
}

// Audit compares all chains and jumps with what was applied, if anybody else may have changed a rule since the last time, or with
// full an hour has gone by, and writes again what differs. It returns how many things did.
func (k *Keeper) Audit(ctx context.Context, full bool) (mended int, err error) {
	if !k.set {
		return 0, fmt.Errorf("iptables: audit: %w", plane.ErrNotSetUp)
	}
	if !(full && time.Since(k.listed) >= ListPeriod) && k.untouched() {
		return 0, nil
	}
	have, err := k.read(ctx)
	if err == nil {
		mended, err = k.mend(ctx, have)
	}
	if err != nil || mended == 0 {
		if err != nil {
			err = fmt.Errorf("iptables: audit: %w", err)
		}
		return 0, err
	}
	// What is printed as before was not changed: this iptables prints it otherwise than it is written.
	after, err := k.read(ctx)
	if err != nil {
		return mended, fmt.Errorf("iptables: audit: look at what was mended: %w", err)
	}
	for id, want := range k.kernel {
		is, known := after.chains[id]
		if known && !is.Alike(want) && is == have.chains[id] && k.prints[id] != (Printed{want, is}) {
			if k.prints == nil {
				k.prints = map[ChainID]Printed{}
			}
			k.prints[id] = Printed{want, is}
			mended--
		}
	}
	return mended, nil
}

func (k *Keeper) untouched() bool {
	if k.ours == nil || k.seen == (Fingerprint{}) {
		return false
	}
	now, err := k.ours.Now()
	return err == nil && now == k.seen
}

func entriesOf(rules map[lb.Key][]string) []Entry {
	all := make([]Entry, 0, len(rules))
	for key, r := range rules {
		all = append(all, Entry{PathOf(key), r})
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	return all
}

func CompareID(a, b ChainID) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Name, b.Name))
}

// ListPeriod is the time after which an Audit lists all rules though nobody seems to have changed any: what nothing
// notices is mended as soon as by upstream's hourly sync (DP-11).
const ListPeriod = time.Hour
