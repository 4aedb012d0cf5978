//go:build linux

package xtables

import (
	"context"
	"maps"
	"strings"
)

// Snapshot is the kernel's state of a user's chains and of the rules that jump to them.
type Snapshot struct {
	Chains map[ChainID]Digest
	// Jumps are the rules of other chains that jump to chains of a kube-proxy, and those of
	// KUBE-FIREWALL, which the kubelet shares. The keys have no comments, the values are as
	// printed.
	Jumps map[Jump]Jump
	// Used has those of Chains that foreign rules lead to, by -j or -g.
	Used map[ChainID]bool
	// Kubelet: the kubelet has chains here, so rules of KUBE-FIREWALL may be the kubelet's.
	Kubelet bool
	// handles are the handles of rules that iptables cannot delete.
	handles map[Jump][]uint64
}

// NewSnapshot returns an empty Snapshot.
func NewSnapshot() *Snapshot {
	return &Snapshot{Chains: map[ChainID]Digest{}, Jumps: map[Jump]Jump{}, Used: map[ChainID]bool{},
		handles: map[Jump][]uint64{}}
}

// Snapshot lists the rules, and keeps the chains that ours selects. each, if not nil, gets their
// rules.
func (t *Tool) Snapshot(ctx context.Context, ours func(ChainID) bool, each func(ChainID, []byte)) (*Snapshot, error) {
	s, contents := NewSnapshot(), map[ChainID]*Content{}
	err := t.Lines(ctx, func(line SavedLine) {
		table, known := TableNamed(line.Table)
		if !known || table >= Tables {
			return
		}
		id := ChainID{table, string(line.Chain)}
		c := contents[id]
		switch {
		case line.Kind == SavedChain && ours(id):
			contents[id] = NewContent()
		case line.Kind == SavedChain:
			s.Kubelet = s.Kubelet || isKubelets(id)
		case c == nil || id == firewall:
			s.AddJump(Rule{Text: string(line.Rest), Handle: line.Handle}, id)
		default:
			c.Add(string(line.Rest), line.Handle == 0)
			if each != nil {
				each(id, line.Rest)
			}
		}
	})
	for id, c := range contents {
		s.Chains[id] = c.Digest()
	}
	// Other programs name chains like a kube-proxy's, one for each of their pods.
	maps.DeleteFunc(s.Used, func(id ChainID, _ bool) bool { return contents[id] == nil })
	return s, err
}

// AddJump adds a rule of a foreign chain.
func (s *Snapshot) AddJump(r Rule, from ChainID) {
	j := Jump{from, r.Text}
	if strings.Contains(r.Text, "KUBE-") {
		s.Used[from.Table.Chain(target(r.Text))] = true
	}
	if !strings.Contains(r.Text, "-j KUBE-") && j.Bare() != BlockLocalnetJump.Bare() {
		return
	}
	s.Jumps[j.Bare()] = j
	if r.Handle != 0 {
		s.handles[j] = append(s.handles[j], r.Handle)
	}
}
