//go:build linux

package iptables

import (
	"context"
	"strings"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// snapshot is the kernel's content of our chains, and of the jumps to them.
type snapshot struct {
	*xtables.Snapshot
	// served are the keys of nat's rules that jump to chains of service ports.
	served map[lb.Key]bool
}

// hasBlock reports whether the rule of DP-10 exists.
func (s *snapshot) hasBlock() bool {
	_, there := s.Jumps[xtables.BlockLocalnetJump.Bare()]
	return there
}

// list lists all rules. It marks the point from which changes of other programs are noticed.
func (p *Plane) list(ctx context.Context) (*snapshot, error) {
	p.round = nil
	served := map[lb.Key]bool{}
	have, err := p.List(ctx, func(id xtables.ChainID, rule []byte) {
		if k, ok := servedBy(id, string(rule)); ok {
			served[k] = true
		}
	})
	return &snapshot{have, served}, err
}

// dispatches reports whether a chain of nat may have rules that jump to a service port by
// destination.
func dispatches(name string) bool {
	return name == xtables.Services || strings.HasPrefix(name, xtables.AddressBranch) || isNodePorts(name)
}

func isNodePorts(name string) bool {
	return name == xtables.NodePorts || strings.HasPrefix(name, xtables.NodePortBranch)
}

// servedBy returns the key for which a rule, ours or upstream's, jumps to a service port.
func servedBy(chain xtables.ChainID, rule string) (k lb.Key, ok bool) {
	if chain.Table != xtables.NAT || !dispatches(chain.Name) {
		return k, false
	}
	leads := false
	k, ok = xtables.MatchedKey(rule, func(option, value string) {
		if option == "-j" {
			leads = xtables.IsDynamic(xtables.NAT.Chain(value)) && !dispatches(value)
		}
	})
	return k, ok && leads && k.Addr.IsValid() != isNodePorts(chain.Name)
}
