//go:build linux

package xtables

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
)

// ChainState is a chain as the kernel holds it.
type ChainState struct {
	Rules []Rule
	// hooked: packets begin here. drops: those that come to the end of such a chain are dropped.
	Hooked, drops bool
}

// Holding reads chains of a family from the kernel.
type Holding interface {
	// Chain returns a chain, nil if there is none.
	Chain(id ChainID) (*ChainState, error)
	// Names returns the names of a table's chains.
	Names(t Table) (map[string]bool, error)
	// generation is a number that changes with every change of any rule, or 0 where nothing tells.
	generation() (uint32, error)
	Close()
}

// nftHolding asks nf_tables for one chain at a time, by netlink: its cost is that of the rules in it, whatever else there is. The program
// lists the names of all chains first (docs/adr/0056).
type nftHolding struct {
	nf     *kernel.Netfilter
	family lb.Family
	chains map[string]map[string]bool // names by table, once they were asked for
}

func (h *nftHolding) Close() { h.nf.Close() }

func (h *nftHolding) generation() (uint32, error) { return h.nf.Generation() }

func (h *nftHolding) Names(t Table) (map[string]bool, error) {
	if h.chains == nil {
		all, err := h.nf.Chains(nfproto(h.family))
		if err != nil {
			return nil, fmt.Errorf("list the chains of nf_tables: %w", err)
		}
		h.chains = map[string]map[string]bool{}
		for _, c := range all {
			if h.chains[c.Table] == nil {
				h.chains[c.Table] = map[string]bool{}
			}
			h.chains[c.Table][c.Name] = true
		}
	}
	return h.chains[t.String()], nil
}

func (h *nftHolding) Chain(id ChainID) (*ChainState, error) {
	c := &ChainState{}
	if IsBuiltIn(id.Name) {
		there, err := h.base(id, c)
		if err != nil || !there {
			return nil, err
		}
	}
	const getRule = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE
	rules, err := h.nf.Ask(getRule, unix.NLM_F_DUMP, nfproto(h.family), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_RULE_TABLE, id.Table.String())
		ae.String(unix.NFTA_RULE_CHAIN, id.Name)
	})
	if err != nil {
		return nil, fmt.Errorf("read chain %s of table %s: %w", id.Name, id.Table, err)
	}
	c.Rules = make([]Rule, 0, len(rules))
	for _, r := range rules {
		read, err := readNFT(h.family, r)
		if err != nil {
			return nil, fmt.Errorf("read a rule of chain %s of table %s: %w", id.Name, id.Table, err)
		}
		c.Rules = append(c.Rules, read)
	}
	return c, nil
}

// base reads how a chain ends in which packets begin, and whether there is one.
func (h *nftHolding) base(id ChainID, c *ChainState) (there bool, err error) {
	const getChain = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN
	answers, err := h.nf.Ask(getChain, 0, nfproto(h.family), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_CHAIN_TABLE, id.Table.String())
		ae.String(unix.NFTA_CHAIN_NAME, id.Name)
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	for _, a := range answers {
		err = errors.Join(err, kernel.Attributes(a, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_CHAIN_HOOK:
				c.Hooked = true
			case unix.NFTA_CHAIN_POLICY:
				c.drops = ad.Uint32() == 0 // NF_DROP
			}
		}))
	}
	if err != nil {
		return false, fmt.Errorf("read chain %s of table %s: %w", id.Name, id.Table, err)
	}
	return len(answers) > 0, nil
}

// nftReader turns the expressions of a rule of nf_tables back into what iptables was given. There is one register.
type nftReader struct {
	ruleBuilder
	family lb.Family
	// loaded is what the register holds.
	loaded nftValue
}

// nftValue is something of a packet.
type nftValue struct {
	meta         bool
	key          uint32 // of meta
	base         uint32 // of a payload
	offset, size uint32
	mask         []byte // nil for all of it
}

// readNFT reads a rule from a message about it.
func readNFT(f lb.Family, body []byte) (Rule, error) {
	r := &nftReader{family: f}
	err := kernel.Attributes(body, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_RULE_HANDLE {
			r.handle = ad.Uint64()
		}
		if ad.Type() != unix.NFTA_RULE_EXPRESSIONS {
			return
		}
		ad.Nested(func(list *netlink.AttributeDecoder) error {
			for list.Next() {
				list.Nested(func(e *netlink.AttributeDecoder) error {
					r.expression(e)
					return nil
				})
			}
			return nil
		})
	})
	return r.done(), err
}

// attributes are those of one expression, by their type.
type attributes map[uint16][]byte

func attributesOf(b []byte) attributes {
	all := attributes{}
	kernel.Attributes(b, func(ad *netlink.AttributeDecoder) { all[ad.Type()] = ad.Bytes() })
	return all
}

func (a attributes) number(typ uint16) uint32 {
	if len(a[typ]) != 4 {
		return 0
	}
	return network.Uint32(a[typ])
}

// value is the content of a nested NFTA_DATA_VALUE.
func (a attributes) value(typ uint16) []byte { return attributesOf(a[typ])[unix.NFTA_DATA_VALUE] }

func (r *nftReader) expression(e *netlink.AttributeDecoder) {
	name, data := "", attributes{}
	for e.Next() {
		switch e.Type() {
		case unix.NFTA_EXPR_NAME:
			name = e.String()
		case unix.NFTA_EXPR_DATA:
			data = attributesOf(e.Bytes())
		}
	}
	ok := true
	switch name {
	case "counter":
	case "meta":
		_, writes := data[unix.NFTA_META_SREG]
		ok = !writes
		r.loaded = nftValue{meta: true, key: data.number(unix.NFTA_META_KEY)}
	case "payload":
		_, writes := data[unix.NFTA_PAYLOAD_SREG]
		ok = !writes
		r.loaded = nftValue{base: data.number(unix.NFTA_PAYLOAD_BASE), offset: data.number(unix.NFTA_PAYLOAD_OFFSET), size: data.number(unix.NFTA_PAYLOAD_LEN)}
	case "bitwise":
		r.loaded.mask = data.value(unix.NFTA_BITWISE_MASK)
		ok = len(bytes.Trim(data.value(unix.NFTA_BITWISE_XOR), "\x00")) == 0 && r.loaded.mask != nil
	case "cmp":
		op, value := data.number(unix.NFTA_CMP_OP), data.value(unix.NFTA_CMP_DATA)
		ok = op <= unix.NFT_CMP_NEQ && r.is(value, value, op == unix.NFT_CMP_NEQ)
	case "range":
		const op, from, to = 2, 3, 4 // NFTA_RANGE_*
		ok = r.loaded.mask == nil && r.is(data.value(from), data.value(to), data.number(op) == unix.NFT_CMP_NEQ)
	case "immediate":
		ok = r.immediate(attributesOf(attributesOf(data[unix.NFTA_IMMEDIATE_DATA])[unix.NFTA_DATA_VERDICT]))
	case "match", "target": // NFTA_MATCH_* and NFTA_TARGET_* are the same
		extension, revision, info := cstr(data[unix.NFTA_MATCH_NAME]), uint8(data.number(unix.NFTA_MATCH_REV)), data[unix.NFTA_MATCH_INFO]
		if name == "match" {
			r.readMatch(r.family, extension, revision, info)
		} else {
			r.readTarget(r.family, extension, revision, info)
		}
	default:
		ok = false
	}
	if !ok {
		r.cannot(name + " of nf_tables")
	}
}

// immediate reads a verdict.
func (r *nftReader) immediate(v attributes) bool {
	chain := cstr(v[unix.NFTA_VERDICT_CHAIN])
	switch int32(v.number(unix.NFTA_VERDICT_CODE)) {
	case unix.NFT_JUMP:
		r.leads(chain, false)
	case unix.NFT_GOTO:
		r.leads(chain, true)
	case unix.NFT_RETURN:
		r.returns()
	case 0, 1: // NF_DROP, NF_ACCEPT
		r.ends(v.number(unix.NFTA_VERDICT_CODE) == 1)
	default:
		return false
	}
	return len(v) > 0
}

// is adds the condition that what is loaded lies between two values, which may be the same.
func (r *nftReader) is(low, high []byte, no bool) bool {
	v := r.loaded
	if len(low) == 0 || len(low) != len(high) {
		return false
	}
	same := bytes.Equal(low, high)
	switch {
	case v.meta && same:
		return r.isMeta(v, low, no)
	case v.meta:
		return false
	case v.base == unix.NFT_PAYLOAD_NETWORK_HEADER && same:
		return r.isAddress(v, low, no)
	case v.base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && v.size == 2 && len(low) == 2 && v.mask == nil && v.offset <= 2:
		name := protoNames[r.number]
		if name != "tcp" && name != "udp" && name != "sctp" {
			return false
		}
		r.port(name, v.offset == 2, network.Uint16(low), network.Uint16(high), no)
		return true
	}
	return false
}

func (r *nftReader) isMeta(v nftValue, value []byte, no bool) bool {
	switch v.key {
	case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME:
		name := cstr(value)
		r.through(v.key == unix.NFT_META_IIFNAME, name, len(name) == len(value) && len(value) < 16, no)
		return v.mask == nil
	case unix.NFT_META_L4PROTO:
		r.protocol(value[0], no)
		return v.mask == nil
	case unix.NFT_META_MARK:
		if len(value) != 4 || v.mask != nil && len(v.mask) != 4 {
			return false
		}
		mask := uint32(1<<32 - 1)
		if v.mask != nil {
			mask = native.Uint32(v.mask)
		}
		r.marked(native.Uint32(value), mask, no)
		return true
	}
	return false
}

// isAddress reads a comparison with the first octets of an address.
func (r *nftReader) isAddress(v nftValue, value []byte, no bool) bool {
	src, dst, size := uint32(12), uint32(16), 4
	if r.family == lb.IPv6 {
		src, dst, size = 8, 24, 16
	}
	if v.offset != src && v.offset != dst || int(v.size) != len(value) || len(value) > size {
		return false
	}
	mask := v.mask
	if mask == nil {
		mask = bytes.Repeat([]byte{0xff}, len(value))
	}
	whole := func(b []byte) []byte { return append(bytes.Clone(b), make([]byte, size-len(b))...) }
	p, ok := prefixOf(whole(value), whole(mask))
	if !ok {
		return false
	}
	r.between(p, v.offset == src, no)
	return true
}

func (b *ruleBuilder) between(p netip.Prefix, source, no bool) {
	if source {
		b.source(p, no)
	} else {
		b.destination(p, no)
	}
}
