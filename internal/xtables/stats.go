//go:build linux

package xtables

import (
	"slices"
	"sync"
)

// Stats count the plane's operations.
type Stats struct {
	Restores uint64 // runs of iptables-restore
	Failures uint64 // of them (MT-09)
	// PartialFailures is the number of failed Applies, without failed Resets (MT-10).
	PartialFailures uint64
	Bytes           uint64 // handed to iptables-restore
	Chains          uint64 // written
	Saves           uint64 // runs of iptables-save
	// Stuck are the chains that could not be deleted because rules of other software jump to them,
	// each as "nat KUBE-SVC-…". They are empty. A returned slice does not change.
	Stuck []string
	// Unlike counts chains, and rules in foreign chains, that iptables-save prints differently from
	// how they were written. No program changed them, and audits do not repair them.
	Unlike int
	// Owned is the number of our rules (MT-11), Last that of the rules in the last Apply or Reset
	// (MT-12). Both include our rules in foreign chains.
	Owned, Last Written
}

// Written counts rules by table.
type Written struct{ Filter, NAT int }

// add counts the rules of a section.
func (w *Written) add(s *Section) {
	switch s.Table {
	case Filter:
		w.Filter += s.Rules()
	case NAT:
		w.NAT += s.Rules()
	}
}

func (w *Written) plus(o Written) {
	w.Filter += o.Filter
	w.NAT += o.NAT
}

// Counts holds Stats. They may be read at any time from any goroutine.
type Counts struct {
	mu    sync.Mutex
	stats Stats
}

// Stats returns the counts so far.
func (c *Counts) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Count changes the counts with a function.
func (c *Counts) Count(f func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.stats)
}

// Stuck records chains that cannot be deleted.
func (c *Counts) Stuck(ids ...ChainID) {
	c.Count(func(s *Stats) {
		s.Stuck = slices.Clone(s.Stuck)
		for _, id := range ids {
			s.Stuck = append(s.Stuck, id.Table.String()+" "+id.Name)
		}
		slices.Sort(s.Stuck)
		s.Stuck = slices.Compact(s.Stuck)
	})
}
