package capture

import (
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nftwire"
)

const policyAccept = 1 // NF_ACCEPT

// batch collects one transaction: the table, sets and chains; rules; elements that are removed, then those that are added.
type batch struct {
	*ruleset
	table             string
	seq               uint32
	head, rules, tail nftwire.Encoder
	dels, adds        [setCount]*elements
	generation        uint32
	about             []about
}

// about says what the messages from a number on are about.
type about struct {
	seq  uint32
	what string
}

func (c *NFTables) batch() *batch { return &batch{ruleset: c.rules, table: TableName} }

func (b *batch) next(what string) uint32 {
	b.seq++
	b.about = append(b.about, about{b.seq, what})
	return b.seq
}

func (b *batch) whatIs(seq uint32) string {
	what := "the batch"
	for _, a := range b.about {
		if a.seq <= seq {
			what = a.what
		}
	}
	return what
}

func (b *batch) message(e *nftwire.Encoder, typ, flags uint16, tableAttr uint16, what string) int {
	at := e.Message(typ, flags, b.proto, b.next(what))
	e.Str(tableAttr, b.table)
	return at
}

func (b *batch) addTable() {
	at := b.message(&b.head, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFTA_TABLE_NAME, "table "+b.table)
	b.head.EndMessage(at)
}

func (b *batch) deleteTable() {
	at := b.message(&b.head, unix.NFT_MSG_DELTABLE, 0, unix.NFTA_TABLE_NAME, "table "+b.table)
	b.head.EndMessage(at)
}

func (b *batch) addSet(i setIndex) {
	d, e := &b.sets[i], &b.head
	at := b.message(e, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, unix.NFTA_SET_TABLE, "set "+d.name)
	e.Str(unix.NFTA_SET_NAME, d.name)
	e.U32(unix.NFTA_SET_ID, uint32(i)+1)
	e.U32(unix.NFTA_SET_FLAGS, d.flags())
	e.U32(unix.NFTA_SET_KEY_TYPE, nftType(d.key))
	e.U32(unix.NFTA_SET_KEY_LEN, uint32(d.keyLen()))
	if d.data != nil {
		e.U32(unix.NFTA_SET_DATA_TYPE, nftType(d.data))
		e.U32(unix.NFTA_SET_DATA_LEN, uint32(d.dataLen()))
	}
	e.Bytes(unix.NFTA_SET_USERDATA, d.userdata())
	e.EndMessage(at)
}

func (b *batch) addChain(c chain) {
	e := &b.head
	at := b.message(e, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFTA_CHAIN_TABLE, "chain "+c.name)
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

// structure stages all that the table has besides elements.
func (b *batch) structure(chains []chain) {
	b.addTable()
	for i := range setCount {
		b.addSet(i)
	}
	for _, ch := range chains {
		b.addChain(ch)
	}
}

// deleteMissing stages the end of a chain that is not there, which the kernel refuses when it has taken all before.
func (b *batch) deleteMissing() {
	at := b.message(&b.tail, unix.NFT_MSG_DELCHAIN, 0, unix.NFTA_CHAIN_TABLE, "no chain")
	b.tail.Str(unix.NFTA_CHAIN_NAME, "no-such-chain")
	b.tail.EndMessage(at)
}

func (b *batch) flushChain(name string) {
	at := b.message(&b.rules, unix.NFT_MSG_DELRULE, 0, unix.NFTA_RULE_TABLE, "chain "+name)
	b.rules.Str(unix.NFTA_RULE_CHAIN, name)
	b.rules.EndMessage(at)
}

func (b *batch) addRules(c chain) {
	e := &b.rules
	for _, r := range c.rules {
		at := b.message(e, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.NFTA_RULE_TABLE, "rule of chain "+c.name)
		e.Str(unix.NFTA_RULE_CHAIN, c.name)
		e.Bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, r.exprs)
		e.Bytes(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, userdata.TypeComment, r.comment))
		e.EndMessage(at)
	}
}

func commentOf(data []byte) string {
	text, _ := userdata.GetString(data, userdata.TypeComment)
	return text
}

// elements writes element messages of one set, as many elements in each as its list may hold, in buffers of a megabyte at most.
type elements struct {
	full          [][]byte
	cur           nftwire.Encoder
	message, list int // where the open message and its list begin; list 0 when none is open
}

const bufferLimit = 1 << 20

func (b *batch) list(group *[setCount]*elements, set setIndex, typ, flags uint16) *nftwire.Encoder {
	if group[set] == nil {
		group[set] = &elements{}
	}
	e := group[set]
	if e.list != 0 && len(e.cur.B)-e.list > nftwire.AttrLimit-512 {
		e.close()
	}
	if e.list == 0 {
		if len(e.cur.B) > bufferLimit-nftwire.AttrLimit-1024 {
			e.full, e.cur.B = append(e.full, e.cur.B), nil
		}
		name := b.sets[set].name
		e.message = b.message(&e.cur, typ, flags, unix.NFTA_SET_ELEM_LIST_TABLE, "elements of "+name)
		e.cur.Str(unix.NFTA_SET_ELEM_LIST_SET, name)
		e.list = e.cur.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	}
	return &e.cur
}

func (e *elements) close() {
	if e.list != 0 {
		e.cur.EndNest(e.list)
		e.cur.EndMessage(e.message)
		e.list = 0
	}
}

func (b *batch) put(el element) {
	e, d := b.list(&b.adds, el.set, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE), &b.sets[el.set]
	at := e.Nest(unix.NFTA_LIST_ELEM)
	value(e, unix.NFTA_SET_ELEM_KEY, el.rec[:d.keyLen()])
	if d.data != nil {
		value(e, unix.NFTA_SET_ELEM_DATA, el.rec[d.keyLen():])
	}
	e.EndNest(at)
}

func (b *batch) remove(el element) {
	e := b.list(&b.dels, el.set, unix.NFT_MSG_DELSETELEM, 0)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	value(e, unix.NFTA_SET_ELEM_KEY, el.rec[:b.sets[el.set].keyLen()])
	e.EndNest(at)
}

func value(e *nftwire.Encoder, attr uint16, v string) {
	n := e.Nest(attr)
	e.Bytes(unix.NFTA_DATA_VALUE, []byte(v))
	e.EndNest(n)
}

// buffers closes the batch and returns what to send, and its size; nil if nothing is staged.
func (b *batch) buffers() (bufs [][]byte, last uint32, size int) {
	bufs = make([][]byte, 1, 8) // the first is the batch's begin
	put := func(x []byte) {
		if len(x) > 0 {
			bufs = append(bufs, x)
			size += len(x)
		}
	}
	put(b.head.B)
	put(b.rules.B)
	for _, group := range []*[setCount]*elements{&b.dels, &b.adds} {
		for _, e := range group {
			if e == nil {
				continue
			}
			e.close()
			for _, x := range e.full {
				put(x)
			}
			put(e.cur.B)
		}
	}
	put(b.tail.B)
	if len(bufs) == 1 {
		return nil, 0, 0
	}
	bufs, last = nftwire.Batch(bufs, b.seq, b.generation)
	return bufs, last, size
}
