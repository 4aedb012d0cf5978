package hooks

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/follow"
	"kube-proxy/nodetrace/internal/nft"
	"kube-proxy/nodetrace/internal/xt"
)

// Snapshot is the packet filter of a network namespace for one IP family. It is not safe for
// concurrent use.
type Snapshot struct {
	family lb.Family
	sock   *wire.Socket
	node   *node
	sets   *sets
	xt     *xt.Any
	tables map[tableID]*nft.Any
	bases  []base
	nft    xtables.Saved         // what iptables-nft-save prints, once it was needed
	budget int                   // of rules of nftables that may still be read
	unread map[Hook]*follow.Rule // stands for rules of iptables-legacy that cannot be read
	why    string                // they cannot
	notes  follow.Said
	path   []string
}

type tableID struct {
	family byte
	name   string
}

// base is a base chain of any program.
type base struct {
	wire.Hook
	family  byte
	table   tableID // of nftables
	name    string  // of the table, as rules have it
	chain   string
	drops   bool
	devices []string
	legacy  *legacyTable // nil for nftables
}

// Open opens the packet filter of the calling thread's network namespace. Close it.
func Open(ctx context.Context, family lb.Family) (_ *Snapshot, err error) {
	s := &Snapshot{family: family, budget: maxRules, tables: map[tableID]*nft.Any{}}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.node, err = inspectAround(ctx); err != nil {
		return nil, fmt.Errorf("read the node's packet filter: %w", err)
	}
	if s.sock, err = wire.Open(); err != nil {
		return nil, fmt.Errorf("read the node's packet filter: %w", err)
	}
	s.sets = &sets{ctx: ctx}
	s.xt = xt.NewAny(s.sets)
	if err = wire.Undisturbed(ctx, func() error { return s.readBases(ctx) }); err != nil {
		return nil, fmt.Errorf("list the base chains of nftables: %w", err)
	}
	s.readLegacy(ctx)
	slices.SortStableFunc(s.bases, func(a, b base) int { return cmp.Compare(a.Priority, b.Priority) })
	return s, nil
}

// Close closes the sockets.
func (s *Snapshot) Close() {
	if s.node != nil {
		s.node.conn.Close()
	}
	if s.sock != nil {
		s.sock.Close()
	}
	if s.sets != nil && s.sets.conn != nil {
		s.sets.conn.Close()
	}
}

// Notes say what of the packet filter was not read, and why.
func (s *Snapshot) Notes() []string { return s.notes.Lines }

// maxRules is how many rules of nftables are read.
const maxRules = 20_000

// maxPath bounds the lines of Path.
const maxPath = 200

// Path returns the rules that packets matched since Open, a line each.
func (s *Snapshot) Path() []string { return s.path }

func (s *Snapshot) proto() byte {
	if s.family == lb.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// readBases reads the base chains of all tables of nftables that packets of the family may meet.
func (s *Snapshot) readBases(ctx context.Context) error {
	s.bases = nil
	tables := map[tableID]tableState{}
	for _, family := range []byte{unix.NFPROTO_INET, s.proto(), unix.NFPROTO_NETDEV, unix.NFPROTO_BRIDGE} {
		request := wire.Request(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, family)
		err := s.sock.Ask(ctx, request, func(body []byte) {
			id := tableID{family, nlconn.CStr(nlconn.Attribute(body, unix.NFTA_TABLE_NAME))}
			flags := nlconn.BE32(nlconn.Attribute(body, unix.NFTA_TABLE_FLAGS))
			tables[id] = tableState{nlconn.BE64(nlconn.Attribute(body, nftaTableHandle)),
				flags&unix.NFT_TABLE_F_DORMANT != 0}
		})
		if err != nil {
			return err
		}
		request = wire.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, family)
		err = s.sock.Ask(ctx, request, func(body []byte) {
			id := tableID{family, nlconn.CStr(nlconn.Attribute(body, unix.NFTA_CHAIN_TABLE))}
			if b, ok := baseOf(id, body); ok && !tables[id].dormant {
				s.bases = append(s.bases, b)
			}
		})
		if err != nil {
			return err
		}
	}
	// Of two chains of one priority, the kernel runs the younger one first. Handles of tables grow.
	slices.SortStableFunc(s.bases, func(a, b base) int {
		return cmp.Compare(tables[a.table].handle, tables[b.table].handle)
	})
	slices.Reverse(s.bases)
	return nil
}

// tableState is what a table says of its chains.
type tableState struct {
	handle  uint64
	dormant bool // its chains are not in force
}

// nftaTableHandle is NFTA_TABLE_HANDLE.
const nftaTableHandle = 4

// baseOf reads a base chain; ok is false for another chain.
func baseOf(id tableID, body []byte) (b base, ok bool) {
	hook, accepts := wire.HookOf(body)
	return base{
		Hook: hook, family: id.family, table: id, name: wire.Table{Family: id.family, Name: id.name}.Title(),
		chain: nlconn.CStr(nlconn.Attribute(body, unix.NFTA_CHAIN_NAME)), drops: !accepts, devices: devicesOf(body),
	}, hook != wire.Hook{}
}

// devicesOf returns the devices of a base chain at ingress or egress.
func devicesOf(body []byte) (all []string) {
	const devices = 4 // NFTA_HOOK_DEVS
	hook := nlconn.Attribute(body, unix.NFTA_CHAIN_HOOK)
	nlconn.Attributes(nlconn.Attribute(hook, devices), func(_ uint16, name []byte) bool {
		all = append(all, nlconn.CStr(name))
		return true
	})
	if one := nlconn.CStr(nlconn.Attribute(hook, unix.NFTA_HOOK_DEV)); one != "" && len(all) == 0 {
		all = append(all, one)
	}
	return all
}

// legacyTable is a table of iptables-legacy.
type legacyTable struct {
	name   string
	chains map[string][]*follow.Rule
}

// legacyHooks are the hooks at which the tables of iptables-legacy are, with their priorities.
var legacyHooks = map[string]map[Hook]int32{
	"raw":      {Prerouting: -300, Output: -300},
	"mangle":   {Prerouting: -150, Input: -150, Forward: -150, Output: -150, Postrouting: -150},
	"nat":      {Prerouting: -100, Input: 100, Output: -100, Postrouting: 100},
	"filter":   {Input: 0, Forward: 0, Output: 0},
	"security": {Input: 50, Forward: 50, Output: 50},
}

// readLegacy reads the rules of iptables-legacy, if this network namespace has any.
func (s *Snapshot) readLegacy(ctx context.Context) {
	if !xtables.LegacyInUse(s.family) {
		return
	}
	tool, err := xtables.FindTool(xtables.System{}, s.family, xtables.Legacy)
	var all xtables.Saved
	if err == nil {
		all, err = tool.Saved(ctx, maxSaved)
	}
	if err != nil {
		s.why = fmt.Sprintf("the rules of iptables-legacy are not evaluated: %v", err)
		s.unread = map[Hook]*follow.Rule{}
		filled, asked := xtables.LegacyFilled(s.family)
		for h := Prerouting; h <= Postrouting; h++ {
			if name := filled[h]; name != "" || asked != nil {
				s.unread[h] = &follow.Rule{Table: strings.TrimSpace("table "+name) + " of iptables-legacy",
					Chain: strings.ToUpper(h.String()), Number: -1, Text: "is not evaluated"}
			}
		}
		return
	}
	for table, chains := range all {
		t := &legacyTable{"table " + table + " of iptables-legacy", map[string][]*follow.Rule{}}
		for chain, c := range chains {
			for i, r := range c.Rules {
				t.chains[chain] = append(t.chains[chain], &follow.Rule{Table: t.name,
					Chain: chain, Number: i + 1, Text: r.Text})
			}
			for hook, priority := range legacyHooks[table] {
				if strings.EqualFold(chain, hook.String()) {
					kind := map[bool]string{true: "nat", false: "filter"}[table == "nat"]
					s.bases = append(s.bases, base{Hook: wire.Hook{Type: kind,
						Num: uint32(hook), Priority: priority}, family: s.proto(),
						name: t.name, chain: chain, drops: c.Drops, legacy: t})
				}
			}
		}
	}
}

// maxSaved is how many rules of iptables-save are read.
const maxSaved = 200_000

func (s *Snapshot) note(format string, args ...any) { s.notes.Say(fmt.Sprintf(format, args...)) }

// table returns the walker of a table of nftables.
func (s *Snapshot) table(id tableID) *nft.Any {
	t := s.tables[id]
	if t == nil {
		t = nft.NewAny(s.sock, id.family, id.name, s.node, func(as *follow.Rule, body []byte,
			flows []follow.Flow) ([]follow.Met, []follow.Flow, error) {
			return s.extended(id, as, body, flows)
		}, &s.budget)
		s.tables[id] = t
	}
	return t
}

// extended applies a rule of iptables-nft that has extensions, by its text.
func (s *Snapshot) extended(id tableID, as *follow.Rule, body []byte, flows []follow.Flow) ([]follow.Met,
	[]follow.Flow, error) {
	if !s.xt.Knows(as) {
		r := xtables.ReadNFT(s.family, body)
		if as.Text = r.Text; r.Unread {
			if text := s.savedRule(id.name, as); text != "" {
				as.Text = text
			}
		}
	}
	return s.xt.Meet(as, flows)
}

// savedWait is how long iptables-nft-save may take: it reads all tables.
const savedWait = time.Second

// savedRule returns a rule as iptables-nft-save prints it; "" if it does not.
func (s *Snapshot) savedRule(table string, as *follow.Rule) string {
	if s.nft == nil {
		s.nft = xtables.Saved{}
		tool, err := xtables.FindTool(xtables.System{}, s.family, xtables.NFT)
		if err == nil {
			ctx, cancel := context.WithTimeout(s.sets.ctx, savedWait)
			defer cancel()
			var all xtables.Saved
			if all, err = tool.Saved(ctx, maxSaved); err == nil {
				s.nft = all
			}
		}
		if err != nil {
			s.note("extensions of iptables-nft are not evaluated: %v", err)
		}
	}
	c := s.nft[table][as.Chain]
	if c == nil || as.Number > len(c.Rules) {
		return ""
	}
	return c.Rules[as.Number-1].Text
}

// sets answers matches on ipsets by asking the kernel.
type sets struct {
	ctx  context.Context
	conn *ipset.Conn
	down bool
}

// parts are how many parts of a packet the members of a type have: the address, the port, another
// address.
var parts = map[ipset.Type]string{"hash:ip": "a", "hash:net": "a", "bitmap:ip": "a", "hash:ip,port": "ap",
	"hash:net,port": "ap", "hash:net,net": "aa",
	"hash:ip,port,ip": "apa", "hash:ip,port,net": "apa", "hash:net,port,net": "apa", "bitmap:port": "p"}

// Knows is part of xt.Sets.
func (s *sets) Knows(set string) bool { return s.typeOf(set) != "" }

// maxMarks is how many members a set has at most that is listed for a mark.
const maxMarks = 65_536

// Marks is part of xt.Sets: for a packet, the set has one member at most.
func (s *sets) Marks(set string) bool {
	h := s.header(set)
	return s.Knows(set) && !strings.Contains(string(h.Type), "net") && h.Other == "" && h.Members <= maxMarks
}

func (s *sets) typeOf(set string) string { return parts[s.header(set).Type] }

// header is that of a set; without a type if it cannot be read.
func (s *sets) header(set string) (h ipset.Header) {
	if s.conn == nil && !s.down {
		conn, err := ipset.Open()
		s.conn, s.down = conn, err != nil
	}
	if s.down {
		return h
	}
	if is, err := s.conn.Header(s.ctx, set); err == nil {
		h = is
	}
	return h
}

// Has is part of xt.Sets.
func (s *sets) Has(set, by string, p xt.Packet) (bool, error) {
	return s.conn.Has(s.ctx, set, s.member(set, by, p))
}

// member is the packet as a member of a set.
func (s *sets) member(set, by string, p xt.Packet) (m ipset.Member) {
	sides := strings.Split(by, ",")
	for i, part := range s.typeOf(set) {
		side := p.To
		if i < len(sides) && sides[i] == "src" {
			side = p.From
		}
		switch {
		case part == 'p':
			m.Port, m.Proto = side.Port(), uint8(p.Proto)
		case i == 0:
			m.Addr = side.Addr()
		default:
			m.Net, _ = side.Addr().Prefix(side.Addr().BitLen())
		}
	}
	if !m.Addr.IsValid() {
		m.Proto = 0
	}
	return m
}

// MarkOf is part of xt.Sets. It lists the set: the kernel cannot return the mark of one member.
func (s *sets) MarkOf(set, by string, p xt.Packet) (value, mask uint32, err error) {
	want := s.member(set, by, p)
	_, err = s.conn.Members(s.ctx, set, func(is ipset.Member) {
		if is.Key() == want {
			value, mask = is.Mark, is.Mask
		}
	})
	return value, mask, err
}
