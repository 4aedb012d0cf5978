//go:build linux

package iptables

import (
	"bytes"
	"hash/maphash"
	"io"
	"net/netip"
	"slices"
	"strconv"

	"kube-proxy/lb"
)

// snapshot is what iptables-save prints of our chains, and of what leads to them.
type snapshot struct {
	chains map[chainID]digest
	// jumps are the rules of built-in chains that lead to ours, and those of KUBE-FIREWALL, which is not ours alone.
	jumps map[jump]bool
	// served are the keys of rules by which nat leads to chains of service ports.
	served map[lb.Key]bool
	// kubelet: there are chains of the kubelet, so that rules of KUBE-FIREWALL are its own as well.
	kubelet bool
	// bare: the digests of chains are of rules without comments.
	bare bool
	// unlistable are the tables that are there but cannot be printed.
	unlistable [tables]bool
}

func newSnapshot() *snapshot {
	return &snapshot{chains: map[chainID]digest{}, jumps: map[jump]bool{}, served: map[lb.Key]bool{}}
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

// content is a chain while its rules are read.
type content struct {
	hash  maphash.Hash
	rules int32
}

// read takes the output of iptables-save. Only our chains are kept, whatever else there is.
func (s *snapshot) read(r io.Reader) error {
	contents := map[chainID]*content{}
	for line, err := range readSaved(r) {
		if err != nil {
			return err
		}
		t, known := tableNamed(line.table)
		if !known || t >= tables {
			continue
		}
		switch line.kind {
		case savedUnlistable:
			s.unlistable[t] = true
		case savedChain:
			if id := (chainID{t, string(line.chain)}); ours(id) {
				c := &content{}
				c.hash.SetSeed(seed)
				contents[id] = c
			} else {
				s.kubelet = s.kubelet || isKubelets(id)
			}
		case savedRule:
			s.rule(t, line.chain, line.rest, contents[chainID{t, string(line.chain)}])
		}
	}
	for id, c := range contents {
		s.chains[id] = digest{c.hash.Sum64(), c.rules}
	}
	return nil
}

// rule takes a rule of a chain, which is ours if c is not nil.
func (s *snapshot) rule(t table, name, rule []byte, c *content) {
	if c == nil || string(name) == nodeFirewall {
		if bytes.Contains(rule, []byte("-j KUBE-")) || string(rule) == blockLocalnet {
			s.jumps[jump{chainID{t, string(name)}, string(rule)}] = true
		}
		return
	}
	if s.bare {
		c.hash.WriteString(WithoutComments(string(rule)))
	} else {
		c.hash.Write(rule)
	}
	c.hash.WriteByte('\n')
	c.rules++
	if t == nat && dispatches(name) {
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
