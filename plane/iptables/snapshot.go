//go:build linux

package iptables

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"strconv"

	"kube-proxy/lb"
)

// snapshot is what the kernel holds of our chains, and of what leads to them.
type snapshot struct {
	chains map[chainID]digest
	// jumps are the rules of built-in chains that lead to ours, and those of KUBE-FIREWALL, which is not ours alone; without comments.
	jumps map[jump]bool
	// served are the keys of rules by which nat leads to chains of service ports.
	served map[lb.Key]bool
	// kubelet: there are chains of the kubelet, so that rules of KUBE-FIREWALL are its own as well.
	kubelet bool
}

func newSnapshot() *snapshot {
	return &snapshot{chains: map[chainID]digest{}, jumps: map[jump]bool{}, served: map[lb.Key]bool{}}
}

// takeSnapshot lists the rules. Only our chains are kept, whatever else there is.
func takeSnapshot(ctx context.Context, of *tool) (*snapshot, error) {
	s, contents := newSnapshot(), map[chainID]*content{}
	err := of.lines(ctx, func(line savedLine) {
		t, known := tableNamed(line.table)
		if !known || t >= tables {
			return
		}
		id := chainID{t, string(line.chain)}
		switch {
		case line.kind == savedRule:
			s.rule(id, line, contents[id])
		case ours(id):
			contents[id] = newContent()
		default:
			s.kubelet = s.kubelet || isKubelets(id)
		}
	})
	for id, c := range contents {
		s.chains[id] = c.digest()
	}
	return s, err
}

// rule takes a rule of a chain, which is ours if c is not nil.
func (s *snapshot) rule(id chainID, line savedLine, c *content) {
	rule := line.rest
	if c == nil || id.name == nodeFirewall {
		if j := (jump{id, string(rule)}).bare(); bytes.Contains(rule, []byte("-j KUBE-")) || j == blockLocalnetJump.bare() {
			s.jumps[j] = true
		}
		return
	}
	c.add(string(rule), line.handle == 0)
	if name := []byte(id.name); id.table == nat && dispatches(name) {
		if k, ok := servedBy(name, rule); ok {
			s.served[k] = true
		}
	}
}

// dispatches reports whether rules of that chain of nat lead from a destination to the chain of a service port.
func dispatches(name []byte) bool {
	return string(name) == services || bytes.HasPrefix(name, []byte(addressBranch)) || isNodePorts(name)
}

func isNodePorts(name []byte) bool {
	return string(name) == nodePorts || bytes.HasPrefix(name, []byte(nodePortBranch))
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
			ok = isDynamic(chainID{nat, value}) && !dispatches(words[i+1])
		}
		if err != nil {
			return k, false
		}
	}
	return k, ok && k.Port != 0 && k.Addr.IsValid() != isNodePorts(name)
}
