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
	chains map[xtables.ChainID]xtables.Digest
	// jumps are the rules of built-in chains that lead to ours, and those of KUBE-FIREWALL, which is not ours alone; without comments.
	jumps map[xtables.Jump]bool
	// served are the keys of rules by which nat leads to chains of service ports.
	served map[lb.Key]bool
	// kubelet: there are chains of the kubelet, so that rules of KUBE-FIREWALL are its own as well.
	kubelet bool
}

func newSnapshot() *snapshot {
	return &snapshot{chains: map[xtables.ChainID]xtables.Digest{}, jumps: map[xtables.Jump]bool{}, served: map[lb.Key]bool{}}
}

// takeSnapshot lists the rules. Only our chains are kept, whatever else there is.
func takeSnapshot(ctx context.Context, of *xtables.Tool) (*snapshot, error) {
	s, contents := newSnapshot(), map[xtables.ChainID]*xtables.Content{}
	err := of.Lines(ctx, func(line xtables.SavedLine) {
		t, known := xtables.TableNamed(line.Table)
		if !known || t >= xtables.Tables {
			return
		}
		id := xtables.ChainID{Table: t, Name: string(line.Chain)}
		switch {
		case line.Kind == xtables.SavedRule:
			s.rule(id, line, contents[id])
		case xtables.Ours(id):
			contents[id] = xtables.NewContent()
		default:
			s.kubelet = s.kubelet || xtables.IsKubelets(id)
		}
	})
	for id, c := range contents {
		s.chains[id] = c.Digest()
	}
	return s, err
}

// rule takes a rule of a chain, which is ours if c is not nil.
func (s *snapshot) rule(id xtables.ChainID, line xtables.SavedLine, c *xtables.Content) {
	rule := line.Rest
	if c == nil || id.Name == xtables.NodeFirewall {
		if j := (xtables.Jump{From: id, Rule: string(rule)}).Bare(); bytes.Contains(rule, []byte("-j KUBE-")) || j == xtables.BlockLocalnetJump.Bare() {
			s.jumps[j] = true
		}
		return
	}
	c.Add(string(rule), line.Handle == 0)
	if name := []byte(id.Name); id.Table == xtables.NAT && dispatches(name) {
		if k, ok := servedBy(name, rule); ok {
			s.served[k] = true
		}
	}
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
