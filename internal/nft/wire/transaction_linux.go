package wire

import (
	"fmt"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Transaction collects messages about the objects of one table, which take effect atomically. They
// are sent in the order that the kernel needs: the table, sets and chains; rules; removed elements,
// then added ones; deleted objects last.
type Transaction struct {
	Family byte   // NFPROTO_*, which is AF_* as well
	Table  string // the table of the objects
	// Generation, if not 0: the transaction fails unless the ruleset still has that generation.
	Generation uint32

	sets              []Set
	head, rules, tail Encoder     // all messages except those of elements
	removed, added    []*elements // by set; nil without elements, because a change touches few
	spare             [][]byte    // empty buffers for reuse
	seq               uint32
	about             []aboutMessage
}

// NewTransaction returns an empty transaction for a table that has these sets.
func NewTransaction(family byte, table string, sets []Set) *Transaction {
	both := make([]*elements, 2*len(sets))
	return &Transaction{Family: family, Table: table, sets: sets, removed: both[:len(sets)], added: both[len(sets):]}
}

// Again empties a sent transaction for reuse with the same buffers.
func (t *Transaction) Again() {
	next := NewTransaction(t.Family, t.Table, t.sets)
	next.spare = t.spare
	for i, e := range t.added {
		if e != nil {
			next.spare = e.reuse(next.spare)
			next.added[i] = e
		}
	}
	*t = *next
}

// aboutMessage names the object of the messages from a sequence number on, for errors.
type aboutMessage struct {
	seq  uint32
	what string
}

// Last returns the sequence number of the last message so far, which is also their number.
func (t *Transaction) Last() uint32 { return t.seq }

// next returns the number of another message, about the object what.
func (t *Transaction) next(what string) uint32 {
	t.seq++
	if n := len(t.about); n == 0 || t.about[n-1].what != what {
		t.about = append(t.about, aboutMessage{t.seq, what})
	}
	return t.seq
}

// whatIs names the object of the message with that number.
func (t *Transaction) whatIs(seq uint32) string {
	what := "the batch"
	for _, a := range t.about {
		if a.seq <= seq {
			what = a.what
		}
	}
	return what
}

// begin begins a message about an object of the table. tableAttr is the attribute that names the
// table.
func (t *Transaction) begin(e *Encoder, typ, flags, tableAttr uint16, what string) int {
	at := e.Message(typ, flags, t.Family, t.next(what))
	e.Str(tableAttr, t.Table)
	return at
}

// object appends a message that names the table and, if name is not "", one of its objects.
func (t *Transaction) object(e *Encoder, typ, flags, tableAttr, nameAttr uint16, name string) {
	at := t.begin(e, typ, flags, tableAttr, "table "+t.Table+" "+name)
	if name != "" {
		e.Str(nameAttr, name)
	}
	e.EndMessage(at)
}

// AddTable creates the table, if it does not exist.
func (t *Transaction) AddTable() {
	t.object(&t.head, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFTA_TABLE_NAME, 0, "")
}

// AddOwnedTable creates a table that the kernel deletes when the socket closes, however its process
// ends, and that no other socket can change. Kernels before 5.12 refuse it, as does a kernel that
// has the table.
func (t *Transaction) AddOwnedTable() {
	const owner = 2 // NFT_TABLE_F_OWNER
	at := t.begin(&t.head, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		unix.NFTA_TABLE_NAME, "table "+t.Table)
	t.head.U32(unix.NFTA_TABLE_FLAGS, owner)
	t.head.EndMessage(at)
}

// DeleteTable deletes the table with its content.
func (t *Transaction) DeleteTable() {
	t.object(&t.head, unix.NFT_MSG_DELTABLE, 0, unix.NFTA_TABLE_NAME, 0, "")
}

// Hook is the place of a base chain; the zero Hook is that of a regular chain, which is only jumped
// to.
type Hook struct {
	Type     string // filter or nat
	Num      uint32 // NF_INET_*
	Priority int32
}

var hookNames = map[uint32]string{unix.NF_INET_PRE_ROUTING: "prerouting", unix.NF_INET_LOCAL_IN: "input",
	unix.NF_INET_FORWARD: "forward", unix.NF_INET_LOCAL_OUT: "output", unix.NF_INET_POST_ROUTING: "postrouting"}

// String formats the hook as nft does, without the policy: "type filter hook prerouting priority
// -110".
func (h Hook) String() string {
	return fmt.Sprintf("type %s hook %s priority %d", h.Type, hookNames[h.Num], h.Priority)
}

// State describes a hook for comparisons of chains; that of a regular chain is [IsThere].
func (h Hook) State() string {
	if h == (Hook{}) {
		return IsThere
	}
	return h.String()
}

const policyAccept = 1 // NF_ACCEPT

// AddChain creates a chain without rules, whose policy accepts.
func (t *Transaction) AddChain(name string, h Hook) {
	e := &t.head
	at := t.begin(e, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFTA_CHAIN_TABLE, "chain "+name)
	e.Str(unix.NFTA_CHAIN_NAME, name)
	if h != (Hook{}) {
		n := e.Nest(unix.NFTA_CHAIN_HOOK)
		e.U32(unix.NFTA_HOOK_HOOKNUM, h.Num)
		e.U32(unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
		e.EndNest(n)
		e.U32(unix.NFTA_CHAIN_POLICY, policyAccept)
		e.Str(unix.NFTA_CHAIN_TYPE, h.Type)
	}
	e.EndMessage(at)
}

// HookOf reads the hook of a chain from the body of a message about it, and whether its policy
// accepts; that of a regular chain does.
func HookOf(body []byte) (h Hook, accepts bool) {
	hook := netlink.Attribute(body, unix.NFTA_CHAIN_HOOK)
	if hook == nil {
		return h, true
	}
	return Hook{
		Type:     netlink.CStr(netlink.Attribute(body, unix.NFTA_CHAIN_TYPE)),
		Num:      netlink.BE32(netlink.Attribute(hook, unix.NFTA_HOOK_HOOKNUM)),
		Priority: int32(netlink.BE32(netlink.Attribute(hook, unix.NFTA_HOOK_PRIORITY))),
	}, netlink.BE32(netlink.Attribute(body, unix.NFTA_CHAIN_POLICY)) == policyAccept
}

// AddRule appends a rule to a chain, with expressions in the kernel's format.
func (t *Transaction) AddRule(chain string, expressions []byte, comment string) {
	e := &t.rules
	at := t.begin(e, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.NFTA_RULE_TABLE, "rule of chain "+
		chain)
	e.Str(unix.NFTA_RULE_CHAIN, chain)
	e.Bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, expressions)
	e.Bytes(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, userdata.TypeComment, comment))
	e.EndMessage(at)
}

// RuleComment returns the comment of a rule from the body of a message about it, "" without one.
// The kernel stores what any program wrote, and the reader of package userdata panics, or reads
// what follows, if an entry is longer than the data.
func RuleComment(body []byte) string {
	data := netlink.Attribute(body, unix.NFTA_RULE_USERDATA)
	for len(data) >= 2 { // a type and a length before each entry
		end := 2 + int(data[1])
		if end > len(data) {
			return ""
		}
		if userdata.Type(data[0]) == userdata.TypeComment {
			return netlink.CStr(data[2:end])
		}
		data = data[end:]
	}
	return ""
}

// DeleteRule deletes the rule of a chain that has the handle.
func (t *Transaction) DeleteRule(chain string, handle uint64) {
	e := &t.rules
	at := t.begin(e, unix.NFT_MSG_DELRULE, 0, unix.NFTA_RULE_TABLE, "rule of chain "+chain)
	e.Str(unix.NFTA_RULE_CHAIN, chain)
	e.U64(unix.NFTA_RULE_HANDLE, handle)
	e.EndMessage(at)
}

// FlushChain removes all rules of a chain.
func (t *Transaction) FlushChain(name string) {
	t.object(&t.rules, unix.NFT_MSG_DELRULE, 0, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, name)
}

// DeleteChain deletes a chain, at the end of the transaction.
func (t *Transaction) DeleteChain(name string) {
	t.object(&t.tail, unix.NFT_MSG_DELCHAIN, 0, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, name)
}

// DeleteSet deletes a set, at the end of the transaction.
func (t *Transaction) DeleteSet(name string) {
	t.object(&t.tail, unix.NFT_MSG_DELSET, 0, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, name)
}

// AddSets creates the missing sets of the table.
func (t *Transaction) AddSets() {
	for i := range t.sets {
		t.addSet(&t.sets[i], uint32(i)+1) // not 0, and unique in the transaction
	}
}

func (t *Transaction) addSet(d *Set, id uint32) {
	e := &t.head
	at := t.begin(e, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, unix.NFTA_SET_TABLE, "set "+d.Name)
	e.Str(unix.NFTA_SET_NAME, d.Name)
	e.U32(unix.NFTA_SET_ID, id)
	e.U32(unix.NFTA_SET_FLAGS, d.flags())
	e.U32(unix.NFTA_SET_KEY_TYPE, d.Key.nftType())
	e.U32(unix.NFTA_SET_KEY_LEN, uint32(d.KeyLen()))
	if d.Verdict {
		e.U32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	} else if d.Data != nil {
		e.U32(unix.NFTA_SET_DATA_TYPE, d.Data.nftType())
		e.U32(unix.NFTA_SET_DATA_LEN, uint32(d.DataLen()))
	}
	if d.Size != 0 {
		desc := e.Nest(unix.NFTA_SET_DESC)
		e.U32(unix.NFTA_SET_DESC_SIZE, d.Size)
		e.EndNest(desc)
	}
	if d.Timeout > 0 {
		e.U64(unix.NFTA_SET_TIMEOUT, uint64(d.Timeout.Milliseconds()))
	}
	e.Bytes(unix.NFTA_SET_USERDATA, d.userdata())
	e.EndMessage(at)
}

// Buffers ends the transaction and returns the arguments for [Socket.Commit]: nil without messages.
func (t *Transaction) Buffers() (bufs [][]byte, last uint32) {
	bufs = make([][]byte, 1, 8) // the first is the batch's begin
	put := func(b []byte) {
		if len(b) > 0 {
			bufs = append(bufs, b)
		}
	}
	put(t.head.B)
	put(t.rules.B)
	for _, group := range [][]*elements{t.removed, t.added} {
		for _, e := range group {
			if e == nil {
				continue
			}
			e.close()
			for _, b := range e.full {
				put(b)
			}
			put(e.cur.B)
		}
	}
	put(t.tail.B)
	if len(bufs) == 1 {
		return nil, 0
	}
	return Batch(bufs, t.seq, t.Generation)
}
