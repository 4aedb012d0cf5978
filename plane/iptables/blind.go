package iptables

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// A table that has any rule which iptables cannot express, such as "ct state new accept" made with nft, is left out of what
// iptables-save prints, as a whole, while iptables-restore goes on to write it. To take it for empty would put another copy
// of each jump in front at each look. So what is in such a table is asked of the kernel: which chains there are, and which
// rules lead to ours. What our chains contain is not looked at: it counts as what was written, or as unknown at the start.

// blindTable returns the table that a comment of iptables-save says cannot be shown.
func blindTable(comment []byte) (table, bool) {
	for t := range tables {
		if bytes.HasPrefix(comment, []byte("# Table `"+t.String()+"' is incompatible")) {
			return t, true
		}
	}
	return 0, false
}

// unknown is the digest of a chain of unknown content: that of no chain.
var unknown = digest{sum: empty.sum + 1}

// complete adds what is in the tables that iptables did not show. known has what was written, if that is known.
func (s *snapshot) complete(f lb.Family, known map[chainID]digest) error {
	for t, blind := range s.blind {
		if !blind {
			continue
		}
		t := table(t)
		chains, err := dumpChains(f, t)
		if err != nil {
			return fmt.Errorf("list the chains of table %s, which iptables cannot: %w", t, err)
		}
		for _, name := range chains {
			id := chainID{t, name}
			if !ours(id) {
				continue
			}
			d, written := known[id]
			if !written {
				d = unknown
			}
			s.chains[id] = d
		}
		for _, j := range append(jumps(), martianJump) {
			if j.from.table != t || s.jumps[j] {
				continue
			}
			rules, err := dumpRules(f, j.from)
			if err != nil {
				return fmt.Errorf("list the rules of chain %s of table %s, which iptables cannot: %w", j.from.name, t, err)
			}
			s.jumps[j] = rules.has(j)
		}
	}
	return nil
}

// ruleDump is the rules of a chain as the kernel tells them.
type ruleDump [][]byte

// has reports whether there is a rule that leads to where a jump leads, or for the rule against martians one with its
// comment. Nobody else's rule has either.
func (d ruleDump) has(j jump) bool {
	sign := []byte("block incoming localnet connections")
	if j != martianJump {
		const verdictChain = 2 // NFTA_VERDICT_CHAIN
		sign = appendAttribute(nil, verdictChain, append([]byte(j.rule[strings.LastIndex(j.rule, " ")+1:]), 0))
	}
	for _, rule := range d {
		if bytes.Contains(rule, sign) {
			return true
		}
	}
	return false
}

// dumpRules lists the rules of a chain, none if there is no chain.
func dumpRules(f lb.Family, id chainID) (ruleDump, error) {
	attrs := appendAttribute(nil, unix.NFTA_RULE_TABLE, append([]byte(id.table.String()), 0))
	attrs = appendAttribute(attrs, unix.NFTA_RULE_CHAIN, append([]byte(id.name), 0))
	return dumpTables(f, unix.NFT_MSG_GETRULE, attrs)
}

// dumpChains returns the names of a table's chains.
func dumpChains(f lb.Family, t table) ([]string, error) {
	bodies, err := dumpTables(f, unix.NFT_MSG_GETCHAIN, nil)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, b := range bodies {
		if text(attribute(b, unix.NFTA_CHAIN_TABLE)) == t.String() {
			names = append(names, text(attribute(b, unix.NFTA_CHAIN_NAME)))
		}
	}
	return names, nil
}

func text(value []byte) string { return string(bytes.TrimRight(value, "\x00")) }

// dumpTables asks nf_tables for all objects of a kind, and returns their attributes.
func dumpTables(f lb.Family, kind uint16, attrs []byte) ([][]byte, error) {
	family := byte(unix.NFPROTO_IPV4)
	if f == lb.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	msgs, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var bodies [][]byte
	for _, m := range msgs {
		if len(m.Data) > 4 {
			bodies = append(bodies, m.Data[4:])
		}
	}
	return bodies, nil
}
