//go:build linux

package nftables

import (
	"context"
	"fmt"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nftwire"
)

// batch collects one transaction. What it holds is sent in the order in which the kernel needs it: table,
// sets, chains, rules; elements that are deleted before those that are added; chains that are deleted last.
type batch struct {
	*ruleset
	table string // that the objects are in

	seq        uint32
	head       nftwire.Encoder     // the table, and sets and chains that are added
	rules      nftwire.Encoder     // rules that are flushed and added
	deletes    [setCount]*elements // nil where there are none: a change touches few of the sets
	adds       [setCount]*elements
	tail       nftwire.Encoder // chains and sets that are deleted
	about      []aboutMessage
	spare      [][]byte // empty buffers of an earlier use
	quiet      bool     // stage nothing: only the state is wanted
	generation uint32   // if not 0, the batch fails unless the ruleset is still of that generation
}

// aboutMessage says what the messages from a sequence number on are about, for errors.
type aboutMessage struct {
	seq  uint32
	what string
}

func (t *batch) next(what string) uint32 {
	t.seq++
	if n := len(t.about); n == 0 || t.about[n-1].what != what {
		t.about = append(t.about, aboutMessage{t.seq, what})
	}
	return t.seq
}

func (t *batch) whatIs(seq uint32) string {
	what := "the batch"
	for _, a := range t.about {
		if a.seq <= seq {
			what = a.what
		}
	}
	return what
}

// simple appends a message that names the table and, if name is not "", one of its objects.
func (t *batch) simple(e *nftwire.Encoder, typ, flags uint16, tableAttr, nameAttr uint16, name string) {
	at := e.Message(typ, flags, t.proto, t.next("table "+t.table+" "+name))
	e.Str(tableAttr, t.table)
	if name != "" {
		e.Str(nameAttr, name)
	}
	e.EndMessage(at)
}

func (t *batch) addTable() {
	t.simple(&t.head, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFTA_TABLE_NAME, 0, "")
}

func (t *batch) deleteTable() {
	t.simple(&t.head, unix.NFT_MSG_DELTABLE, 0, unix.NFTA_TABLE_NAME, 0, "")
}

func (t *batch) addSet(i setIndex) {
	d, e := &t.sets[i], &t.head
	at := e.Message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, t.proto, t.next("set "+d.name))
	e.Str(unix.NFTA_SET_TABLE, t.table)
	e.Str(unix.NFTA_SET_NAME, d.name)
	e.U32(unix.NFTA_SET_ID, uint32(i)+1)
	e.U32(unix.NFTA_SET_FLAGS, d.setFlags())
	e.U32(unix.NFTA_SET_KEY_TYPE, nftType(d.key))
	e.U32(unix.NFTA_SET_KEY_LEN, uint32(d.keyLen()))
	if d.verdict {
		e.U32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	} else if d.data != nil {
		e.U32(unix.NFTA_SET_DATA_TYPE, nftType(d.data))
		e.U32(unix.NFTA_SET_DATA_LEN, uint32(d.dataLen()))
	}
	if d.size != 0 {
		desc := e.Nest(unix.NFTA_SET_DESC)
		e.U32(unix.NFTA_SET_DESC_SIZE, d.size)
		e.EndNest(desc)
	}
	e.Bytes(unix.NFTA_SET_USERDATA, d.userdata())
	e.EndMessage(at)
}

// setFlags is what NFTA_SET_FLAGS holds.
func (d *setDef) setFlags() uint32 {
	flags := d.flags
	if d.data != nil || d.verdict {
		flags |= unix.NFT_SET_MAP
	}
	return flags
}

// userdata makes the nft program print integers as such, and shows the comment.
func (d *setDef) userdata() []byte {
	byteOrder := func(fields []field) uint32 {
		if hostOrder(fields) {
			return 1
		}
		return 2
	}
	u := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, byteOrder(d.key))
	if d.data != nil {
		u = userdata.AppendUint32(u, userdata.NFTNL_UDATA_SET_DATABYTEORDER, byteOrder(d.data))
	}
	if d.byExpression() {
		u = userdata.Append(u, userdata.NFTNL_UDATA_SET_KEY_TYPEOF, typeOf(d.key))
		if d.data != nil {
			u = userdata.Append(u, userdata.NFTNL_UDATA_SET_DATA_TYPEOF, typeOf(d.data))
		}
	}
	return userdata.AppendString(u, userdata.NFTNL_UDATA_SET_COMMENT, d.comment)
}

// addChain creates the chain without its rules.
func (t *batch) addChain(c chain) {
	if t.quiet {
		return
	}
	e := &t.head
	at := e.Message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t.proto, t.next("chain "+c.name))
	e.Str(unix.NFTA_CHAIN_TABLE, t.table)
	e.Str(unix.NFTA_CHAIN_NAME, c.name)
	if h := c.hook; h != (hook{}) {
		n := e.Nest(unix.NFTA_CHAIN_HOOK)
		e.U32(unix.NFTA_HOOK_HOOKNUM, h.num)
		e.U32(unix.NFTA_HOOK_PRIORITY, uint32(h.priority))
		e.EndNest(n)
		e.U32(unix.NFTA_CHAIN_POLICY, policyAccept)
		e.Str(unix.NFTA_CHAIN_TYPE, h.typ)
	}
	e.EndMessage(at)
}

func (t *batch) addRules(c chain) {
	if t.quiet {
		return
	}
	e := &t.rules
	for _, r := range c.rules {
		at := e.Message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.proto, t.next("rule of chain "+c.name))
		e.Str(unix.NFTA_RULE_TABLE, t.table)
		e.Str(unix.NFTA_RULE_CHAIN, c.name)
		e.Bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, r.exprs)
		e.Bytes(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, userdata.TypeComment, r.comment))
		e.EndMessage(at)
	}
}

// flushChain removes all rules of a chain.
func (t *batch) flushChain(name string) {
	t.simple(&t.rules, unix.NFT_MSG_DELRULE, 0, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, name)
}

func (t *batch) deleteChain(name string) {
	t.simple(&t.tail, unix.NFT_MSG_DELCHAIN, 0, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, name)
}

func (t *batch) deleteSet(name string) {
	t.simple(&t.tail, unix.NFT_MSG_DELSET, 0, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, name)
}

// elements writes element messages of one set: as many elements in a message as its list may hold, the
// messages in buffers that double up to a megabyte.
type elements struct {
	full          [][]byte
	cur           nftwire.Encoder
	message, list int // where the open message and its list begin; list 0 when none is open
}

const bufferLimit = 1 << 20

// list returns the writer for the elements of a set, with an open message that has room for one more.
func (t *batch) list(group *[setCount]*elements, set setIndex, typ, flags uint16) *nftwire.Encoder {
	if group[set] == nil {
		group[set] = &elements{cur: nftwire.Encoder{B: make([]byte, 0, 128)}} // enough for one element
	}
	e := group[set]
	if e.list != 0 && len(e.cur.B)-e.list > nftwire.AttrLimit-512 {
		e.closeList()
	}
	if e.list != 0 {
		return &e.cur
	}
	if len(e.cur.B) > bufferLimit-nftwire.AttrLimit-1024 {
		e.full = append(e.full, e.cur.B)
		if n := len(t.spare); n > 0 {
			e.cur.B, t.spare = t.spare[n-1], t.spare[:n-1]
		} else {
			e.cur.B = make([]byte, 0, bufferLimit)
		}
	}
	name := t.sets[set].name
	e.message = e.cur.Message(typ, flags, t.proto, t.next("elements of "+name))
	e.cur.Str(unix.NFTA_SET_ELEM_LIST_TABLE, t.table)
	e.cur.Str(unix.NFTA_SET_ELEM_LIST_SET, name)
	e.list = e.cur.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	return &e.cur
}

func (e *elements) closeList() {
	if e.list != 0 {
		e.cur.EndNest(e.list)
		e.cur.EndMessage(e.message)
		e.list = 0
	}
}

// again makes the batch, which has been sent, an empty one that writes its elements to the same buffers.
func (t *batch) again() {
	for _, e := range t.adds {
		if e == nil {
			continue
		}
		for _, b := range e.full {
			t.spare = append(t.spare, b[:0])
		}
		e.full, e.cur.B, e.list = e.full[:0], e.cur.B[:0], 0
	}
	*t = batch{ruleset: t.ruleset, table: t.table, adds: t.adds, spare: t.spare, quiet: t.quiet}
}

// add stages an element, as a record (see schema.go).
func (t *batch) add(set setIndex, rec []byte) {
	if t.quiet {
		return
	}
	e, d := t.list(&t.adds, set, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE), &t.sets[set]
	at := e.Nest(unix.NFTA_LIST_ELEM)
	value := appendElementKey(e, d, rec)
	if d.data != nil {
		n := e.Nest(unix.NFTA_SET_ELEM_DATA)
		e.Bytes(unix.NFTA_DATA_VALUE, value)
		e.EndNest(n)
	}
	e.EndNest(at)
}

// addVerdict stages an element of a verdict map.
func (t *batch) addVerdict(set setIndex, key []byte, v elementVerdict) {
	if t.quiet {
		return
	}
	e := t.list(&t.adds, set, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	appendElementKey(e, &t.sets[set], key)
	n := e.Nest(unix.NFTA_SET_ELEM_DATA)
	m := e.Nest(unix.NFTA_DATA_VERDICT)
	e.U32(unix.NFTA_VERDICT_CODE, uint32(int32(v.kind)))
	if v.chain != "" {
		e.Str(unix.NFTA_VERDICT_CHAIN, v.chain)
	}
	e.EndNest(m)
	e.EndNest(n)
	e.EndNest(at)
}

// remove stages the end of an element, as a record; its data is not looked at.
func (t *batch) remove(set setIndex, rec []byte) {
	if t.quiet {
		return
	}
	e := t.list(&t.deletes, set, unix.NFT_MSG_DELSETELEM, 0)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	appendElementKey(e, &t.sets[set], rec)
	e.EndNest(at)
}

// appendElementKey writes the key part of a record and returns the rest.
func appendElementKey(e *nftwire.Encoder, d *setDef, rec []byte) []byte {
	k := d.keyLen()
	n := e.Nest(unix.NFTA_SET_ELEM_KEY)
	e.Bytes(unix.NFTA_DATA_VALUE, rec[:k])
	e.EndNest(n)
	return rec[k:]
}

// buffers closes the batch and returns what to send, the sequence number of the last message, and how many
// messages there are between the frames. It returns nil if nothing is staged.
func (t *batch) buffers() (bufs [][]byte, last uint32) {
	bufs = make([][]byte, 1, 8) // the first is the batch's begin
	put := func(b []byte) {
		if len(b) > 0 {
			bufs = append(bufs, b)
		}
	}
	put(t.head.B)
	put(t.rules.B)
	for _, group := range []*[setCount]*elements{&t.deletes, &t.adds} {
		for _, e := range group {
			if e == nil {
				continue
			}
			e.closeList()
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
	return nftwire.Batch(bufs, t.seq, t.generation)
}

// commit sends the batch. Errors name the object. Those that can only mean that the kernel does not hold
// what we think wrap plane.ErrStateLost.
func (p *Plane) commit(ctx context.Context, t *batch) error {
	bufs, last := t.buffers()
	if bufs == nil {
		return nil
	}
	p.stats.Batches++
	p.stats.Messages += uint64(t.seq)
	size := 0
	for _, b := range bufs {
		size += len(b)
	}
	p.stats.Bytes += uint64(size)
	send := func() error { return p.sock.Commit(ctx, bufs, last) }
	var err error
	if size > nftwire.UnheardAbove {
		err = p.ours.WriteUnheard(func() (uint32, error) { return p.sock.Generation(ctx) }, send)
	} else {
		err = p.ours.Write(1, send)
	}
	if err == nil {
		return nil
	}
	p.stats.Failures++
	return fmt.Errorf("nftables %s: %w", p.fam, nftwire.Outcome(err, t.whatIs))
}
