//go:build linux

package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/rollback"
	"kube-proxy/plane/ownwrites"
)

// Keeper keeps the chains of another mode than this one, by the same programs and in the same way: it remembers a digest of each
// chain, writes those that differ in one restore, finds the rules of a row by a tree (docs/adr/0011), and mends what others
// change. What the chains hold, who has it says; rules must be written as iptables-save prints them.
//
// Its methods must be called by one goroutine at a time, on a thread in the network namespace of the node.
type Keeper struct {
	tool   *tool
	layout Layout
	ours   fingerprinter // nil if there is none
	seen   fingerprint
	looker *Looker // follows packets, and does nothing else
	listed time.Time

	set    bool
	trees  []*dispatcher
	kernel map[chainID]digest
	fixed  map[chainID][]string // chains that are no trees
	prints map[chainID]print
	sent   uint64
	// failures is how many restores failed.
	failures uint64

	held held
}

// held is what was listed last for who looks. The programs take longer than all else, and the kernel tells by a number whether anything of
// nftables has changed since.
type held struct {
	mu           sync.Mutex
	changes      fingerprinter
	at           fingerprint
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
	t, err := usableTool(nil, l.Family, l.Backend)
	if err != nil {
		return nil, err
	}
	return &Keeper{tool: t, layout: l, looker: newLooker(l.Family, t), ours: newFingerprinter(l.Family, t.backend, cmp.Or(l.Writes, &ownwrites.Ledger{}))}, nil
}

// Close gives back what the Keeper holds of this process. The rules stay in force.
func (k *Keeper) Close() error {
	k.held.mu.Lock()
	defer k.held.mu.Unlock()
	if k.held.changes != nil {
		k.held.changes.close()
		k.held.changes, k.held.at = nil, fingerprint{}
	}
	if k.ours != nil {
		k.ours.close()
		k.ours = nil
	}
	return nil
}

// Have is [Programs.Have].
func (k *Keeper) Have(matches, targets []string) error {
	return (&Programs{k.tool}).Have(matches, targets)
}

// FullyRandom reports whether this iptables knows --random-fully.
func (k *Keeper) FullyRandom() bool { return k.tool.version.atLeast(version{1, 6, 2}) }

// Backend returns the variant of iptables that the Keeper writes with.
func (k *Keeper) Backend() Backend { return k.tool.backend }

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
	chains map[chainID]digest
	rules  map[chainID][]string // only if they were asked for
	jumps  map[jump]bool
	// handles are those of rules that iptables cannot delete.
	handles map[jump][]uint64
}

// read lists the chains, and takes note that it did.
func (k *Keeper) read(ctx context.Context) (*keptChains, error) {
	if k.ours != nil {
		var err error
		if k.seen, err = k.ours.now(); err != nil {
			k.seen = fingerprint{}
		}
	}
	k.listed = time.Now()
	return k.list(ctx, false)
}

// list lists the chains, and changes nothing of the Keeper.
func (k *Keeper) list(ctx context.Context, texts bool) (*keptChains, error) {
	s := &keptChains{chains: map[chainID]digest{}, rules: map[chainID][]string{}, jumps: map[jump]bool{}, handles: map[jump][]uint64{}}
	contents := map[chainID]*content{}
	err := k.tool.lines(ctx, func(line savedLine) {
		t, known := tableNamed(line.table)
		if !known || t >= tables {
			return
		}
		id := chainID{t, string(line.chain)}
		c := contents[id]
		switch {
		case line.kind == savedChain && k.layout.Ours(t.String(), id.name):
			contents[id] = newContent()
		case line.kind != savedRule:
		case c == nil:
			j := jump{id, string(line.rest)}
			if line.handle != 0 {
				j = k.layout.asWritten(j)
				s.handles[j] = append(s.handles[j], line.handle)
			}
			s.jumps[j] = true
		default:
			c.add(string(line.rest), line.handle == 0)
			if texts {
				s.rules[id] = append(s.rules[id], string(line.rest))
			}
		}
	})
	for id, c := range contents {
		s.chains[id] = c.digest()
	}
	return s, err
}

// asWritten returns a rule of the kernel as the layout has it: iptables may print a comment otherwise, and nf_tables none.
func (l *Layout) asWritten(j jump) jump {
	for _, want := range l.Jumps {
		if want.Table == j.from.table.String() && want.Chain == j.from.name && WithoutComments(want.Rule) == WithoutComments(j.rule) {
			return jump{j.from, want.Rule}
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
	if h.changes == nil && k.tool.backend != Legacy {
		h.changes = newFingerprinter(k.layout.Family, k.tool.backend, &ownwrites.Ledger{})
	}
	at := fingerprint{}
	if h.changes != nil {
		if at, err = h.changes.now(); err != nil {
			at = fingerprint{}
		}
	}
	if at != (fingerprint{}) && at == h.at {
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
		if table, _ := tableNamed(j.Table); s.jumps[jump{chainID{table, j.Chain}, j.Rule}] {
			jumps = append(jumps, j)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.rules), compareID) {
		for _, r := range s.rules[id] {
			rules = append(rules, ChainRule{id.table.String(), id.name, r})
		}
	}
	return jumps, rules, nil
}

// inOrder is the order of tables in a restore, which the kernel takes one after the other. The filter table comes first: it refuses what is
// not translated. Nat comes last: where its chains translate no more, those of mangle must lead packets already (mode ipvs after iptables).
func inOrder(a, b *section) int {
	place := [...]int{filter: 0, mangle: 1, nat: 2, raw: 3}
	return cmp.Compare(place[a.table], place[b.table])
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
		table, _ := tableNamed(t.Table)
		d := &dispatcher{table: table, root: t.Root, prefix: t.Prefix, family: k.layout.Family, nodes: map[string]*node{"": {}},
			head: frames[i].Head, tail: frames[i].Tail}
		if !t.Ports {
			d.addrNibbles = map[lb.Family]int{lb.IPv4: 8, lb.IPv6: 32}[k.layout.Family]
		}
		entries := entriesOf(rows.Entries[i])
		d.set(entries)
		d.update(pathsOf(entries))
		k.trees = append(k.trees, d)
	}
	k.fixed = map[chainID][]string{}
	for at, rules := range rows.Chains {
		if rules != nil {
			table, _ := tableNamed(at[0])
			k.fixed[chainID{table, at[1]}] = rules
		}
	}
	k.prints = nil
	k.kernel = map[chainID]digest{}
	for c := range k.chains {
		k.kernel[c.id] = digestOf(c.rules)
	}
	if _, err := k.mend(ctx, have); err != nil {
		return fmt.Errorf("iptables: reset: %w", err)
	}
	k.set = true
	return nil
}

// chains yields all chains as they shall be.
func (k *Keeper) chains(yield func(chain) bool) {
	for id, rules := range k.fixed {
		if !yield(chain{id, rules}) {
			return
		}
	}
	for _, d := range k.trees {
		for at := range d.upwards() {
			if !yield(d.chain(at)) {
				return
			}
		}
	}
}

// mend writes what is not as it shall be, and returns how many things that were.
func (k *Keeper) mend(ctx context.Context, have *keptChains) (n int, err error) {
	var b batch
	for c := range k.chains {
		is, known := have.chains[c.id]
		want := k.kernel[c.id]
		if !known || !is.alike(want) && k.prints[c.id] != (print{want, is}) {
			n++
			b.only(c.id.table).put(c)
		}
	}
	for i := len(k.layout.Jumps) - 1; i >= 0; i-- { // each is put in front
		j := k.layout.Jumps[i]
		table, _ := tableNamed(j.Table)
		if at := (jump{chainID{table, j.Chain}, j.Rule}); !have.jumps[at] {
			n++
			s := b.only(table)
			s.insert = append(s.insert, at)
		}
	}
	var stale []chainID // of an earlier version, or of another mode
	for id := range have.chains {
		if _, wanted := k.kernel[id]; !wanted {
			stale = append(stale, id)
		}
	}
	for j := range have.jumps {
		wanted := slices.Contains(k.layout.Jumps, ChainRule{j.from.table.String(), j.from.name, j.rule})
		if !wanted && slices.Contains(builtIn, j.from.name) && isJump(j.rule) && k.layout.Ours(j.from.table.String(), target(j.rule)) {
			n++
			b.remove(j, have.handles)
		}
	}
	for _, s := range b.sections {
		slices.SortFunc(s.write, func(a, b chain) int { return compareID(a.id, b.id) })
		for i, c := range s.write {
			s.at[c.id.name] = i
		}
	}
	slices.SortFunc(b.sections, inOrder)
	if err := k.restore(ctx, &b); err != nil || len(stale) == 0 {
		return n, err
	}
	slices.SortFunc(stale, compareID)
	stuck, err := sweep(ctx, nil, stale, nftLines, func(b *batch) error { return k.restore(ctx, b) })
	return n + len(stale) - len(stuck), err // those that rules of others lead to stay, empty
}

// restore hands a batch to iptables-restore. An error wraps ErrRefused if nothing of it is in force, else plane.ErrStateLost.
func (k *Keeper) restore(ctx context.Context, b *batch) error {
	if len(b.sections)+len(b.handles) == 0 {
		return nil
	}
	for _, s := range b.sections {
		k.sent += uint64(s.rules() + len(s.remove) + len(s.drop))
	}
	k.sent += uint64(len(b.handles))
	change := func() error { return k.tool.restoreBatch(ctx, b) }
	var err error
	if k.ours == nil {
		err = change()
	} else {
		k.seen, err = k.ours.own(k.seen, b.transactions(), change)
	}
	if err == nil {
		return nil
	}
	k.failures++
	if partly(ctx, b, err) {
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
	log, b := &rollback.Log{}, &batch{}
	write := func(c chain) {
		want := digestOf(c.rules)
		if is, known := k.kernel[c.id]; !known || is != want {
			b.only(c.id.table).put(c)
			rollback.Put(log, k.kernel, c.id, want)
		}
	}
	drop := func(id chainID) {
		if _, known := k.kernel[id]; known {
			b.only(id.table).delete(id)
			rollback.Delete(log, k.kernel, id)
		}
	}
	var gone []chainID
	for at, rules := range rows.Chains {
		table, _ := tableNamed(at[0])
		id := chainID{table, at[1]}
		if rules == nil {
			rollback.Delete(log, k.fixed, id)
			gone = append(gone, id)
			continue
		}
		rollback.Put(log, k.fixed, id, rules)
		write(chain{id, rules})
	}
	for i, d := range k.trees {
		changes := entriesOf(rows.Entries[i])
		if len(changes) == 0 {
			continue
		}
		before := d.set(changes)
		rollback.Func(log, func() {
			slices.Reverse(before)
			d.set(before)
			d.update(pathsOf(before))
		})
		writes, drops := d.update(pathsOf(changes))
		for _, at := range writes {
			write(d.chain(at))
		}
		for _, at := range drops {
			drop(chainID{d.table, d.name(at)})
		}
	}
	slices.SortFunc(gone, compareID)
	for _, id := range gone {
		drop(id)
	}
	slices.SortFunc(b.sections, inOrder)
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
	var b batch
	smallest := chain{}
	for id, rules := range k.fixed {
		if len(rules) > 0 && (smallest.rules == nil || cmp.Or(cmp.Compare(len(rules), len(smallest.rules)), compareID(id, smallest.id)) < 0) {
			smallest = chain{id, rules}
		}
	}
	b.section(smallest.id.table).put(smallest)
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
	if !(full && time.Since(k.listed) >= listPeriod) && k.untouched() {
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
		if known && !is.alike(want) && is == have.chains[id] && k.prints[id] != (print{want, is}) {
			if k.prints == nil {
				k.prints = map[chainID]print{}
			}
			k.prints[id] = print{want, is}
			mended--
		}
	}
	return mended, nil
}

func (k *Keeper) untouched() bool {
	if k.ours == nil || k.seen == (fingerprint{}) {
		return false
	}
	now, err := k.ours.now()
	return err == nil && now == k.seen
}

func entriesOf(rules map[lb.Key][]string) []entry {
	all := make([]entry, 0, len(rules))
	for key, r := range rules {
		all = append(all, entry{path(key), r})
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	return all
}

func compareID(a, b chainID) int {
	return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.name, b.name))
}

// listPeriod is the time after which an Audit lists all rules though nobody seems to have changed any: what nothing
// notices is mended as soon as by upstream's hourly sync (DP-11).
const listPeriod = time.Hour
