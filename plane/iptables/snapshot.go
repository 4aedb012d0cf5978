package iptables

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
)

// snapshot is what iptables-save prints of our chains, and of what leads to them.
type snapshot struct {
	chains map[chainID]digest
	// jumps are the rules of built-in chains that lead to ours, and those of KUBE-FIREWALL, which is not ours alone.
	jumps map[jump]bool
	// rules is the content of the chains, if it is asked for by being not nil.
	rules map[chainID][]string
}

// ours reports whether the plane made the chain, or would.
func ours(id chainID) bool {
	switch id.name {
	case canary:
		return true
	case services, nodePorts:
		return id.table != mangle
	case externalServices, externalNodePorts, proxyFirewall, nodeFirewall, forward:
		return id.table == filter
	case postrouting, markMasq, markOffCluster:
		return id.table == nat
	}
	return isDynamic(id)
}

// snapshot lists the kernel's tables.
func (t *tool) snapshot(ctx context.Context, withRules bool) (*snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out, err := t.run.Run(ctx, nil, t.program+"-save")
	if err != nil {
		return nil, fmt.Errorf("list the rules: %w", err)
	}
	s := &snapshot{chains: map[chainID]digest{}, jumps: map[jump]bool{}}
	if withRules {
		s.rules = map[chainID][]string{}
	}
	if err := s.read(string(out)); err != nil {
		return nil, fmt.Errorf("list the rules: %s-save: %w", t.program, err)
	}
	return s, nil
}

// read takes the output of iptables-save. Only our chains are kept, whatever else there is.
func (s *snapshot) read(out string) error {
	var tab table = tables
	known := map[string]*maphash.Hash{}
	finish := func() {
		for name, h := range known {
			s.chains[chainID{tab, name}] = digest(h.Sum64())
		}
		clear(known)
	}
	n := 0
	for line := range strings.Lines(out) {
		n++
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "", line[0] == '#', line == "COMMIT":
		case line[0] == '*':
			finish()
			tab = tables
			for t := range tables {
				if line[1:] == t.String() {
					tab = t
				}
			}
		case line[0] != ':' && !strings.HasPrefix(line, "-A "):
			return fmt.Errorf("line %d: %.80q is neither a chain nor a rule", n, line)
		case tab == tables: // a table where we have nothing
		case line[0] == ':':
			name, _, _ := strings.Cut(line[1:], " ")
			if id := (chainID{tab, strings.Clone(name)}); ours(id) {
				h := new(maphash.Hash)
				h.SetSeed(seed)
				known[id.name] = h
			}
		default:
			name, rule, _ := strings.Cut(line[3:], " ")
			s.rule(chainID{tab, name}, rule, known[name])
		}
	}
	finish()
	return nil
}

func (s *snapshot) rule(id chainID, rule string, h *maphash.Hash) {
	if h == nil || id.name == nodeFirewall {
		if strings.Contains(rule, "-j KUBE-") || rule == martian {
			s.jumps[jump{chainID{id.table, strings.Clone(id.name)}, strings.Clone(rule)}] = true
		}
		return
	}
	h.WriteString(rule)
	h.WriteByte('\n')
	if s.rules != nil {
		id.name = strings.Clone(id.name)
		s.rules[id] = append(s.rules[id], strings.Clone(rule))
	}
}
