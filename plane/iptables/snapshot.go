//go:build linux

package iptables

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"strconv"

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

// list asks for all rules. What others do from now on is noticed.
func (p *Plane) list(ctx context.Context) (*snapshot, error) {
	p.round = nil
	served := map[lb.Key]bool{}
	have, err := p.List(ctx, func(id xtables.ChainID, rule []byte) {
		if name := []byte(id.Name); id.Table == xtables.NAT && dispatches(name) {
			if k, ok := servedBy(name, rule); ok {
				served[k] = true
			}
		}
	})
	return &snapshot{have, served}, err
}

// dispatches reports whether rules of that chain of nat lead from a destination to the chain of a service port.
func dispatches(name []byte) bool {
	return string(name) == xtables.Services || bytes.HasPrefix(name, []byte(xtables.AddressBranch)) || isNodePorts(name)
}

func isNodePorts(name []byte) bool {
	return string(name) == xtables.NodePorts || bytes.HasPrefix(name, []byte(xtables.NodePortBranch))
}

// servedBy returns the key whose packets a rule of such a chain, ours or upstream's, sends to the chain of a service port.
func servedBy(name, rule []byte) (k lb.Key, ok bool) {
	if from, to := bytes.IndexByte(rule, '"'), bytes.LastIndexByte(rule, '"'); from < to { // a comment may say anything
		rule = slices.Concat(rule[:from], rule[to+1:])
	}
	words := bytes.Fields(rule)
	for i := 0; i+1 < len(words); i++ {
		var err error
		switch word, value := string(words[i]), string(words[i+1]); word {
		case "!":
			return k, false
		case "-d":
			if isNodePorts(name) { // those of 127.0.0.1 stand beside the others
				continue
			}
			var p netip.Prefix
			if p, err = netip.ParsePrefix(value); err == nil && p.IsSingleIP() {
				k.Addr = p.Addr()
			}
		case "-p":
			k.Proto, err = lb.ParseProto(value)
		case "--dport":
			var n uint64
			n, err = strconv.ParseUint(value, 10, 16) // a range is that of a branch
			k.Port = uint16(n)
		case "-j":
			ok = xtables.IsDynamic(xtables.ChainID{Table: xtables.NAT, Name: value}) && !dispatches(words[i+1])
		}
		if err != nil {
			return k, false
		}
	}
	return k, ok && k.Port != 0 && k.Addr.IsValid() != isNodePorts(name)
}
