//go:build linux

package xtables

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/plane"
	"kube-proxy/plane/selfwrites"
)

// Writer runs and counts the restores of one family's chains for a user. It notices whether another
// program has changed rules since it listed them: nftables counts transactions, ours are
// subtracted, and the kernel returns the size of a legacy table.
//
// Its methods must be called by one goroutine at a time, on a thread in the network namespace of
// the node; others may read Stats.
type Writer struct {
	*Tool
	Counts
	// ours reports whether a chain belongs to the user.
	ours    func(ChainID) bool
	changes fingerprinter // nil if the kernel supports none
	witness *wire.Monitor // nil unless the back end is nft
	writes  *selfwrites.Ledger
	seen    fingerprint // of the last listing and our writes since
	// ListedAt is the time of the last complete listing.
	ListedAt time.Time
	prints   map[ChainID]printed
	unread   map[Jump]bool // rules of foreign chains that are printed differently from how they were written
}

// printed is a chain as it was written, and as iptables-save prints it.
type printed struct{ written, as Digest }

// NewWriter returns a Writer for the chains that ours selects. writes is shared by all Writers of
// this process in one network namespace; nil means that this is the only one.
func NewWriter(t *Tool, ours func(ChainID) bool, writes *selfwrites.Ledger) *Writer {
	w := &Writer{Tool: t, ours: ours, writes: cmp.Or(writes, &selfwrites.Ledger{})}
	if t.Real() {
		w.changes = newFingerprinter(t.Family, t.Backend, w.writes)
		w.watch()
	}
	return w
}

// watch starts to learn who changes our chains, and rules of those that lead to them. The kernel
// reports that of nftables alone. Without it, an audit finds the same.
func (w *Writer) watch() {
	if w.Backend == Legacy {
		return
	}
	ours := func(table, chain string) bool {
		t, known := TableNamed(table)
		return known && t < Tables && (chain == "" || slices.Contains(builtIn, chain) || w.ours(ChainID{t, chain}))
	}
	m, err := wire.Watch(nil, nfproto(w.Family), ours, func(uint16, []byte) {}, func() {}, func() {})
	if err == nil {
		w.witness = m
		w.writes.Join(m)
	}
}

// ChangedBy is part of plane.Witness.
func (w *Writer) ChangedBy() string {
	if w.witness == nil {
		return ""
	}
	return w.witness.ChangedBy()
}

// Close releases the Writer's resources in this process. The rules stay in force.
func (w *Writer) Close() error {
	if m := w.witness; m != nil {
		w.witness = nil
		w.writes.Leave(m)
		m.Close()
	}
	if w.changes != nil {
		w.changes.close()
		w.changes = nil
	}
	return nil
}

// Restore runs iptables-restore on a batch, unless it is empty. The error wraps plane.ErrStateLost
// if a part may be in force.
func (w *Writer) Restore(ctx context.Context, b *Batch) error {
	if len(b.Sections)+len(b.handles) == 0 {
		return nil
	}
	err := w.handOver(b.transactions(), func(note func(*Section), count io.Writer) error {
		for _, s := range b.Sections {
			note(s)
		}
		text := b.Text()
		count.Write(text)
		return w.restoreBatch(ctx, text, b)
	})
	if err != nil && partly(ctx, b, err) {
		return fmt.Errorf("%w: a part may be in force: %w", err, plane.ErrStateLost)
	}
	return err
}

// handOver makes a change of so many transactions, and counts it. change calls note with each
// section, and writes its text to count.
func (w *Writer) handOver(transactions int, change func(note func(*Section), count io.Writer) error) (err error) {
	var text counted
	var chains int
	var rules Written
	run := func() error { return change(func(s *Section) { chains += len(s.Write); rules.add(s) }, &text) }
	if w.changes == nil {
		err = run()
	} else {
		w.seen, err = w.changes.own(w.seen, transactions, run)
	}
	w.Count(func(s *Stats) {
		s.Restores++
		s.Bytes += uint64(text)
		s.Chains += uint64(chains)
		s.Last.plus(rules)
		if err != nil {
			s.Failures++
		}
	})
	return err
}

// counted counts the bytes written to it.
type counted uint64

func (c *counted) Write(b []byte) (int, error) {
	*c += counted(len(b))
	return len(b), nil
}

// RestoreAll passes all batches to one iptables-restore, which reads while they are rendered.
// declare names the chains of nat in them. After an error of iptables, no part of nat is in force.
func (w *Writer) RestoreAll(ctx context.Context, declare []string, batches <-chan *Batch) error {
	first, ok := <-batches
	if !ok {
		return nil
	}
	return w.handOver(int(Tables), func(note func(*Section), count io.Writer) error {
		return w.restore(ctx, func(out io.Writer) error {
			return stream(ctx, io.MultiWriter(out, count), note, declare, first, batches)
		})
	})
}

// stream writes batches in order, and all their parts of nat as one section.
func stream(ctx context.Context, out io.Writer, note func(*Section), declare []string, first *Batch,
	batches <-chan *Batch) error {
	w := bufio.NewWriterSize(out, 64<<10)
	for _, s := range first.Sections {
		if s.Table != NAT {
			note(s)
			w.Write(s.appendText(nil))
		}
	}
	for _, c := range first.Only(NAT).Write {
		declare = append(declare, c.ID.Name)
	}
	// In reverse order, see [Section.appendText].
	slices.SortFunc(declare, func(a, b string) int { return cmp.Compare(b, a) })
	text := appendDeclared(NAT.appendTable(nil), slices.Compact(declare))
	var last []*Section
	for b := first; b != nil; b = <-batches {
		for _, s := range b.Sections {
			switch {
			case s.Table == NAT:
				note(s)
				text = s.appendRules(text)
			case b != first:
				last = append(last, s)
			}
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
		text = text[:0]
	}
	if err := ctx.Err(); err != nil { // batches may be missing, and a commit would empty their chains
		return err
	}
	w.WriteString(commit)
	for _, s := range last {
		note(s)
		w.Write(s.appendText(nil))
	}
	return w.Flush()
}

// List lists all rules. The Writer notices later changes of other programs. each, if not nil, gets
// the rules of our chains.
func (w *Writer) List(ctx context.Context, each func(ChainID, []byte)) (*Snapshot, error) {
	w.seen, w.ListedAt = w.current(), time.Now()
	w.Count(func(s *Stats) { s.Saves++ })
	return w.Tool.Snapshot(ctx, w.ours, each)
}

// current returns the fingerprint of all tables, zero if unknown.
func (w *Writer) current() fingerprint {
	if w.changes == nil {
		return fingerprint{}
	}
	now, err := w.changes.now()
	if err != nil {
		return fingerprint{}
	}
	return now
}

// Begin starts to notice changes of other programs, for callers that read the rules without List.
func (w *Writer) Begin() { w.seen = w.current() }

// Doubt makes the next audit list all rules.
func (w *Writer) Doubt() { w.seen, w.ListedAt = fingerprint{}, time.Time{} }

// listPeriod is the time after which an audit lists all rules even without a sign of change.
// Upstream's hourly sync repairs unnoticed changes as soon (DP-11).
const listPeriod = time.Hour

// Due reports whether an audit must list the rules: if another program may have changed any, and
// with full once an hour.
func (w *Writer) Due(full bool) bool {
	now := w.current()
	return full && time.Since(w.ListedAt) >= listPeriod || now == fingerprint{} || now != w.seen
}

// Holds reports whether a chain printed as is may equal the written one.
func (w *Writer) Holds(id ChainID, written, is Digest) bool {
	return is.alike(written) || w.prints[id] == printed{written, is}
}

// HasJump reports whether a rule of a foreign chain exists.
func (w *Writer) HasJump(j Jump, have *Snapshot) bool {
	_, there := have.Jumps[j.Bare()]
	return there || w.unread[j.Bare()]
}

// Learn lists the rules after a repair, and records chains and rules that are printed as before it.
// No program changed them: this iptables prints them differently, and every audit would repair them
// again. It returns their number.
func (w *Writer) Learn(ctx context.Context, wanted map[ChainID]Digest, jumps []Jump, before *Snapshot) (n int,
	err error) {
	ours := w.seen
	have, err := w.List(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("inspect the repaired objects: %w", err)
	}
	if ours != w.seen || w.seen != w.current() { // other programs wrote meanwhile: learn next time
		return 0, nil
	}
	for id, d := range wanted {
		if is, known := have.Chains[id]; known && !w.Holds(id, d, is) && is == before.Chains[id] {
			if w.prints == nil {
				w.prints = map[ChainID]printed{}
			}
			w.prints[id] = printed{d, is}
			n++
		}
	}
	for _, j := range jumps {
		if _, was := before.Jumps[j.Bare()]; !was && !w.HasJump(j, have) {
			if w.unread == nil {
				w.unread = map[Jump]bool{}
			}
			w.unread[j.Bare()] = true
			n++
		}
	}
	maps.DeleteFunc(w.prints, func(id ChainID, _ printed) bool { _, known := wanted[id]; return !known })
	w.Count(func(s *Stats) { s.Unlike = len(w.prints) + len(w.unread) })
	return n, nil
}
