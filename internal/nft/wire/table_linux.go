package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Table reads one table. Callers must not keep the bodies and elements that its methods pass to
// them. Lists end with netlink.ErrInterrupted if the ruleset changed meanwhile.
type Table struct {
	*Socket
	Family byte // NFPROTO_*
	Name   string
}

// list calls f for the table's objects in the answer: old kernels return other tables' objects too.
// attrs in addition to the table's name are as in [Request].
func (t Table) list(ctx context.Context, typ, table uint16, f func(body []byte), attrs ...any) error {
	attrs = append([]any{int(table), t.Name}, attrs...)
	return t.Ask(ctx, Request(typ, unix.NLM_F_DUMP, t.Family, attrs...), func(body []byte) {
		if netlink.CStr(netlink.Attribute(body, table)) == t.Name {
			f(body)
		}
	})
}

// State reports whether the table exists, and whether it is dormant, which means that none of its
// chains is in force.
func (t Table) State(ctx context.Context) (there, dormant bool, err error) {
	err = t.read(ctx, Request(unix.NFT_MSG_GETTABLE, 0, t.Family, unix.NFTA_TABLE_NAME, t.Name), func(body []byte) {
		there, dormant = true,
			netlink.BE32(netlink.Attribute(body, unix.NFTA_TABLE_FLAGS))&unix.NFT_TABLE_F_DORMANT != 0
	})
	return there, dormant, err
}

// Title returns the table as nft names it: "table ip6 kube-proxy".
func (t Table) Title() string { return "table " + familyNames[t.Family] + " " + t.Name }

var familyNames = map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_ARP: "arp",
	unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_IPV6: "ip6"}

// EachSet calls f for the sets, including the anonymous ones of rules.
func (t Table) EachSet(ctx context.Context, f func(name string, body []byte)) error {
	return t.list(ctx, unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE, func(body []byte) {
		f(netlink.CStr(netlink.Attribute(body, unix.NFTA_SET_NAME)), body)
	})
}

// EachChain calls f for the chains. If the policy of a chain does not accept, the type of its hook
// says so, and the hook equals none of ours.
func (t Table) EachChain(ctx context.Context, f func(name string, h Hook)) error {
	return t.list(ctx, unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, func(body []byte) {
		h, accepts := HookOf(body)
		if !accepts {
			h.Type += " with another policy"
		}
		f(netlink.CStr(netlink.Attribute(body, unix.NFTA_CHAIN_NAME)), h)
	})
}

// EachRule calls f for the rules, those of a chain in order.
func (t Table) EachRule(ctx context.Context, f func(chain string, body []byte)) error {
	return t.list(ctx, unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, func(body []byte) {
		f(netlink.CStr(netlink.Attribute(body, unix.NFTA_RULE_CHAIN)), body)
	})
}

// RulesOf calls f for the rules of one chain, in order.
func (t Table) RulesOf(ctx context.Context, chain string, f func(body []byte)) error {
	return t.list(ctx, unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, func(body []byte) {
		if netlink.CStr(netlink.Attribute(body, unix.NFTA_RULE_CHAIN)) == chain {
			f(body)
		}
	}, unix.NFTA_RULE_CHAIN, chain)
}

// ReadChain calls f with the body of a message about the chain, if it exists.
func (t Table) ReadChain(ctx context.Context, name string, f func(body []byte)) error {
	return t.read(ctx, Request(unix.NFT_MSG_GETCHAIN, 0, t.Family, unix.NFTA_CHAIN_TABLE, t.Name,
		unix.NFTA_CHAIN_NAME, name), f)
}

// ReadSet calls f with the body of a message about the set, if it exists.
func (t Table) ReadSet(ctx context.Context, name string, f func(body []byte)) error {
	return t.read(ctx, Request(unix.NFT_MSG_GETSET, 0, t.Family, unix.NFTA_SET_TABLE, t.Name, unix.NFTA_SET_NAME,
		name), f)
}

// read is Ask about an object that may not exist.
func (t Table) read(ctx context.Context, request []byte, f func(body []byte)) error {
	if err := t.Ask(ctx, request, f); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// EachElement calls f for the elements of a set.
func (t Table) EachElement(ctx context.Context, set string, f func(el []byte)) error {
	request := Request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, t.Family, unix.NFTA_SET_ELEM_LIST_TABLE, t.Name,
		unix.NFTA_SET_ELEM_LIST_SET, set)
	return t.Ask(ctx, request, func(body []byte) { ElementsIn(body, f) })
}

// Get returns the data of those elements with these keys that exist.
func (t Table) Get(ctx context.Context, d *Set, keys [][]byte) (map[string][]byte, error) {
	have, rec, n := make(map[string][]byte, len(keys)), []byte(nil), d.KeyLen()
	err := t.Elements(ctx, d.Name, keys, func(el []byte) {
		rec = d.Record(rec[:0], el)
		have[string(rec[:n])] = bytes.Clone(rec[n:])
	})
	if err != nil {
		return nil, fmt.Errorf("elements of %s: %w", d.Name, err)
	}
	return have, nil
}

// Undisturbed repeats a small read until no program changes the ruleset meanwhile. The read is so
// short that even a busy neighbour leaves a gap for it.
func Undisturbed(ctx context.Context, read func() error) error {
	var err error
	for range 100 {
		err = read()
		if !errors.Is(err, netlink.ErrInterrupted) || ctx.Err() != nil {
			return err
		}
	}
	return err
}
