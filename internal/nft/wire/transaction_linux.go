package wire

import (
	"fmt"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
)

// Transaction collects messages about the objects of one table, which take effect at one moment. They are sent in the order in which
// the kernel needs them: the table, sets and chains; rules; elements that are removed, then those that are added; what goes last.
type Transaction struct {
	Family byte   // NFPROTO_*, which is AF_* as well
	Table  string // that the objects are in
	// Head, Rules and Tail have all messages but those of elements.
	Head, Rules, Tail Encoder
	// Generation, if not 0: the transaction fails unless the ruleset is still of that generation.
	Generation uint32
	// Spare are empty buffers of an earlier use.
	Spare [][]byte

	seq   uint32
	about []aboutMessage
}

// aboutMessage says what the messages from a sequence number on are about, for errors.
type aboutMessage struct {
	seq  uint32
	what string
}

// Last is the sequence number of the last message so far, and so how many there are.
func (t *Transaction) Last() uint32 { return t.seq }

// Next returns the number of another message, which is about what.
func (t *Transaction) Next(what string) uint32 {
	t.seq++
	if n := len(t.about); n == 0 || t.about[n-1].what != what {
		t.about = append(t.about, aboutMessage{t.seq, what})
	}
	return t.seq
}

// WhatIs says what the message of that number is about.
func (t *Transaction) WhatIs(seq uint32) string {
	what := "the batch"
	for _, a := range t.about {
		if a.seq <= seq {
			what = a.what
		}
	}
	return what
}

// Begin begins a message about an object of the table. tableAttr is the attribute that names the table.
func (t *Transaction) Begin(e *Encoder, typ, flags, tableAttr uint16, what string) int {
	at := e.Message(typ, flags, t.Family, t.Next(what))
	e.Str(tableAttr, t.Table)
	return at
}

// object appends a message that names the table and, if name is not "", one of its objects.
func (t *Transaction) object(e *Encoder, typ, flags, tableAttr, nameAttr uint16, name string) {
	at := t.Begin(e, typ, flags, tableAttr, "table "+t.Table+" "+name)
	if name != "" {
		e.Str(nameAttr, name)
	}
	e.EndMessage(at)
}

// AddTable makes the table, if it is not there.
func (t *Transaction) AddTable() {
	t.object(&t.Head, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFTA_TABLE_NAME, 0, "")
}

// DeleteTable deletes the table with all that is in it.
func (t *Transaction) DeleteTable() {
	t.object(&t.Head, unix.NFT_MSG_DELTABLE, 0, unix.NFTA_TABLE_NAME, 0, "")
}

// Hook says where a base chain sits; the zero Hook is that of a chain which is only jumped to.
type Hook struct {
	Type     string // filter or nat
	Num      uint32 // NF_INET_*
	Priority int32
}

var hookNames = map[uint32]string{unix.NF_INET_PRE_ROUTING: "prerouting", unix.NF_INET_LOCAL_IN: "input", unix.NF_INET_FORWARD: "forward",
	unix.NF_INET_LOCAL_OUT: "output", unix.NF_INET_POST_ROUTING: "postrouting"}

// String says the hook as nft does, without the policy: "type filter hook prerouting priority -110".
func (h Hook) String() string {
	return fmt.Sprintf("type %s hook %s priority %d", h.Type, hookNames[h.Num], h.Priority)
}

// State says a hook for who compares chains; that of a chain that is only jumped to is [IsThere].
func (h Hook) State() string {
	if h == (Hook{}) {
		return IsThere
	}
	return h.String()
}

const policyAccept = 1 // NF_ACCEPT

// AddChain makes a chain without rules, which accepts what comes to its end.
func (t *Transaction) AddChain(name string, h Hook) {
	e := &t.Head
	at := t.Begin(e, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFTA_CHAIN_TABLE, "chain "+name)
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

// HookOf reads the hook of a chain from the body of a message about it. Of a chain that does not accept what comes to its end the type
// says so, so that it is none of ours.
func HookOf(body []byte) Hook {
	h, accepts := HookAndPolicy(body)
	if h != (Hook{}) && !accepts {
		h.Type += " with another policy"
	}
	return h
}

// HookAndPolicy reads the hook of a chain, and whether the chain accepts what comes to its end.
func HookAndPolicy(body []byte) (h Hook, accepts bool) {
	hook := nlconn.Attribute(body, unix.NFTA_CHAIN_HOOK)
	if hook == nil {
		return h, true
	}
	return Hook{
		Type:     nlconn.CStr(nlconn.Attribute(body, unix.NFTA_CHAIN_TYPE)),
		Num:      nlconn.BE32(nlconn.Attribute(hook, unix.NFTA_HOOK_HOOKNUM)),
		Priority: int32(nlconn.BE32(nlconn.Attribute(hook, unix.NFTA_HOOK_PRIORITY))),
	}, nlconn.BE32(nlconn.Attribute(body, unix.NFTA_CHAIN_POLICY)) == policyAccept
}

// AddRule appends a rule to a chain: its expressions and its userdata, as the kernel keeps them.
func (t *Transaction) AddRule(chain string, expressions, userdata []byte) {
	e := &t.Rules
	at := t.Begin(e, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.NFTA_RULE_TABLE, "rule of chain "+chain)
	e.Str(unix.NFTA_RULE_CHAIN, chain)
	e.Bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, expressions)
	e.Bytes(unix.NFTA_RULE_USERDATA, userdata)
	e.EndMessage(at)
}

// DeleteRule deletes the rule of a chain that has the handle.
func (t *Transaction) DeleteRule(chain string, handle uint64) {
	e := &t.Rules
	at := t.Begin(e, unix.NFT_MSG_DELRULE, 0, unix.NFTA_RULE_TABLE, "rule of chain "+chain)
	e.Str(unix.NFTA_RULE_CHAIN, chain)
	e.U64(unix.NFTA_RULE_HANDLE, handle)
	e.EndMessage(at)
}

// FlushChain removes all rules of a chain.
func (t *Transaction) FlushChain(name string) {
	t.object(&t.Rules, unix.NFT_MSG_DELRULE, 0, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, name)
}

// DeleteChain deletes a chain, after all else.
func (t *Transaction) DeleteChain(name string) {
	t.object(&t.Tail, unix.NFT_MSG_DELCHAIN, 0, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, name)
}

// DeleteSet deletes a set, after all else.
func (t *Transaction) DeleteSet(name string) {
	t.object(&t.Tail, unix.NFT_MSG_DELSET, 0, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, name)
}

// Elements are messages about elements of one set: as many elements in a message as its list may hold, the messages in buffers that
// double up to a megabyte.
type Elements struct {
	full          [][]byte
	cur           Encoder
	message, list int // where the open message and its list begin; list 0 when none is open
}

const bufferLimit = 1 << 20

// ToAdd returns the writer for an element of a set that is added; *e are those of the set so far, nil for none.
func (t *Transaction) ToAdd(e **Elements, set string) *Encoder {
	return t.element(e, set, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
}

// ToRemove is ToAdd for an element that is removed.
func (t *Transaction) ToRemove(e **Elements, set string) *Encoder {
	return t.element(e, set, unix.NFT_MSG_DELSETELEM, 0)
}

// element returns the writer for an element, with an open message that has room for one more.
func (t *Transaction) element(of **Elements, set string, typ, flags uint16) *Encoder {
	if *of == nil {
		*of = &Elements{cur: Encoder{nlconn.Encoder{B: make([]byte, 0, 128)}}} // enough for one element
	}
	e := *of
	if e.list != 0 && len(e.cur.B)-e.list > nlconn.AttrLimit-512 {
		e.close()
	}
	if e.list != 0 {
		return &e.cur
	}
	if len(e.cur.B) > bufferLimit-nlconn.AttrLimit-1024 {
		e.full = append(e.full, e.cur.B)
		if n := len(t.Spare); n > 0 {
			e.cur.B, t.Spare = t.Spare[n-1], t.Spare[:n-1]
		} else {
			e.cur.B = make([]byte, 0, bufferLimit)
		}
	}
	e.message = t.Begin(&e.cur, typ, flags, unix.NFTA_SET_ELEM_LIST_TABLE, "elements of "+set)
	e.cur.Str(unix.NFTA_SET_ELEM_LIST_SET, set)
	e.list = e.cur.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	return &e.cur
}

func (e *Elements) close() {
	if e.list != 0 {
		e.cur.EndNest(e.list)
		e.cur.EndMessage(e.message)
		e.list = 0
	}
}

// Reuse empties the elements, which have been sent: they are written to the same buffers again, of which those that are full are
// returned. It does nothing for nil.
func (e *Elements) Reuse(spare [][]byte) [][]byte {
	if e == nil {
		return spare
	}
	for _, b := range e.full {
		spare = append(spare, b[:0])
	}
	e.full, e.cur.B, e.list = e.full[:0], e.cur.B[:0], 0
	return spare
}

// Buffers ends the transaction with the elements of all its sets, in their order and nil for none, and returns what [Socket.Commit] sends.
// It returns nil if there are no messages.
func (t *Transaction) Buffers(removed, added []*Elements) (bufs [][]byte, last uint32) {
	bufs = make([][]byte, 1, 8) // the first is the batch's begin
	put := func(b []byte) {
		if len(b) > 0 {
			bufs = append(bufs, b)
		}
	}
	put(t.Head.B)
	put(t.Rules.B)
	for _, group := range [][]*Elements{removed, added} {
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
	put(t.Tail.B)
	if len(bufs) == 1 {
		return nil, 0
	}
	return Batch(bufs, t.seq, t.Generation)
}
