//go:build linux

package xtables

import "kube-proxy/internal/rollback"

// Applied are the chains in the kernel as they were written.
type Applied struct {
	Digests map[ChainID]Digest
	// Rules is the number of rules of each table's chains.
	Rules [Raw + 1]int
	// Log records how to undo a change; nil for a state under construction.
	Log *rollback.Log
}

// NewApplied returns an Applied without chains.
func NewApplied() Applied { return Applied{Digests: map[ChainID]Digest{}} }

// Note records the digest of a chain that is written.
func (a *Applied) Note(id ChainID, d Digest) {
	a.Rules[id.Table] += int(d.Rules) - int(a.Digests[id].Rules)
	rollback.Put(a.Log, a.Digests, id, d)
}

// Forget records that a chain is deleted.
func (a *Applied) Forget(id ChainID) {
	a.Rules[id.Table] -= int(a.Digests[id].Rules)
	rollback.Delete(a.Log, a.Digests, id)
}

// Has reports whether a chain was written with these rules.
func (a *Applied) Has(c Chain) bool {
	is, known := a.Digests[c.ID]
	return known && is == DigestOf(c.Rules)
}

// Change collects one restore. It changes Applied immediately.
type Change struct {
	Batch
	*Applied
}

// Write adds the chains of a table that differ.
func (c *Change) Write(t Table, chains ...Chain) {
	for _, chain := range chains {
		if chain.ID.Table == t && !c.Has(chain) {
			c.Section(t).Put(chain)
			c.Note(chain.ID, DigestOf(chain.Rules))
		}
	}
}

// Drop deletes those of the chains that were written. No rule of ours may jump to them.
func (c *Change) Drop(t Table, ids ...ChainID) {
	for _, id := range ids {
		if _, known := c.Digests[id]; known && id.Table == t {
			c.Section(t).Delete(id)
			c.Forget(id)
		}
	}
}

// Dispatch sets entries of a dispatcher, and deletes entries without rules.
func (c *Change) Dispatch(d *Dispatcher, entries []Entry) {
	if len(entries) == 0 {
		return
	}
	undo, write, drop := d.Set(entries)
	rollback.Func(c.Log, func() { d.Set(undo) })
	for _, at := range drop {
		c.Drop(d.Table, ChainID{d.Table, d.Name(at)})
	}
	for _, at := range write {
		c.Write(d.Table, d.Chain(at))
	}
}
