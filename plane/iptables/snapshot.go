//go:build linux

package iptables

import (
	"context"
	"strings"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// snapshot is what the kernel holds of our chains, and of what leads to them.
type snapshot struct {
	*xtables.Snapshot
	// served are the keys of rules by which nat leads to chains of service ports.
	served map[lb.Key]bool
}

// hasBlock reports whether the rule of DP-10 is there.
func (s *snapshot) hasBlock() bool {
	_, there := s.Jumps[xtables.BlockLocalnetJump.Bare()]
	return there
}

// list lists all rules. Changes of other programs from now on will be noticed.
func (p *Plane) list(ctx context.Context) (*snapshot, error) {
	p.round = nil
	served := map[lb.Key]bool{}
	have, err := p.List(ctx, func(id xtables.ChainID, rule []byte) {
		if id.Table == xtables.NAT && dispatches(id.Name) {
			if k, ok := servedBy(id.Name, string(rule)); ok {
				served[k] = true
			}
		}
	})
	return &snapshot{have, served}, err
}

// dispatches reports whether rules of a chain of nat lead from a destination to a service port.
func dispatches(name string) bool {
	return name == xtables.Services || strings.HasPrefix(name, xtables.AddressBranch) || isNodePorts(name)
}

func isNodePorts(name string) bool {
	return name == xtables.NodePorts || strings.HasPrefix(name, xtables.NodePortBranch)
}

// servedBy returns the key that a rule of such a chain, ours or upstream's, leads to a service
// port.
func servedBy(name, rule string) (k lb.Key, ok bool) {
	leads := false
	k, ok = xtables.MatchedKey(rule, func(option, value string) {
		if option == "-j" {
			leads = xtables.IsDynamic(xtables.ChainID{Table: xtables.NAT, Name: value}) && !dispatches(value)
		}
	})
	return k, ok && leads && k.Addr.IsValid() != isNodePorts(name)
}
