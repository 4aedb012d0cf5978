//go:build linux

package iptables

import (
	"kube-proxy/internal/xtables"
	"slices"
)

// Stats count what the plane has done.
type Stats struct {
	Restores uint64 // runs of iptables-restore
	Failures uint64 // of them (MT-09)
	// PartialFailures is how many Applies failed; a failed Reset is not among them (MT-10).
	PartialFailures uint64
	Bytes           uint64 // handed to iptables-restore
	Chains          uint64 // written
	Saves           uint64 // runs of iptables-save
	// Stuck are the chains that could not be deleted, because rules of others lead to them, each as "nat KUBE-SVC-…".
	// They are empty. It is not changed any more once it is handed out.
	Stuck []string
	// Unlike is how many chains, and rules in chains of others, iptables-save prints otherwise than they were written, as audits
	// have found. Nobody changed them, and nothing is to be mended.
	Unlike int
	// Owned is how many rules of ours there are (MT-11), Last how many the last Apply or Reset wrote (MT-12), those in
	// chains of others that lead to ours included.
	Owned, Last Written
}

// Written counts rules by table.
type Written struct{ Filter, NAT int }

// add counts the rules of a section.
func (w *Written) add(s *xtables.Section) {
	switch s.Table {
	case xtables.Filter:
		w.Filter += s.Rules()
	case xtables.NAT:
		w.NAT += s.Rules()
	}
}

func (w *Written) plus(o Written) {
	w.Filter += o.Filter
	w.NAT += o.NAT
}

// Stats returns what has been done so far. It may be called at any time from any goroutine.
func (p *Plane) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

func (p *Plane) count(f func(*Stats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.stats)
}

// stuck notes that chains cannot be deleted.
func (p *Plane) stuck(ids ...xtables.ChainID) {
	p.count(func(s *Stats) {
		s.Stuck = slices.Clone(s.Stuck)
		for _, id := range ids {
			s.Stuck = append(s.Stuck, id.Table.String()+" "+id.Name)
		}
		slices.Sort(s.Stuck)
		s.Stuck = slices.Compact(s.Stuck)
	})
}

// newSync has the rules counted from now on (MT-12).
func (p *Plane) newSync() { p.count(func(s *Stats) { s.Last = Written{} }) }

// owned notes how many rules there are.
func (p *Plane) owned() {
	n := Written{p.st.rules[xtables.Filter], p.st.rules[xtables.NAT]}
	for j := range p.st.jumps {
		switch j.From.Table {
		case xtables.Filter:
			n.Filter++
		case xtables.NAT:
			n.NAT++
		}
	}
	p.count(func(s *Stats) { s.Owned = n })
}
