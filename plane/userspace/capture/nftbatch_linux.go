package capture

import (
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nftwire"
)

// batch collects one transaction about the table.
type batch struct {
	*ruleset
	nftwire.Transaction
	dels, adds [setCount]*nftwire.Elements
}

func (r *ruleset) batch(table string) *batch {
	return &batch{ruleset: r, Transaction: nftwire.Transaction{Family: r.proto, Table: table}}
}

func (b *batch) addSet(i setIndex) {
	d, e := &b.sets[i], &b.Head
	at := b.Begin(e, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, unix.NFTA_SET_TABLE, "set "+d.name)
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

// structure stages all that the table has besides elements.
func (b *batch) structure(chains []chain) {
	b.AddTable()
	for i := range setCount {
		b.addSet(i)
	}
	for _, ch := range chains {
		b.AddChain(ch.name, ch.hook)
	}
}

func (b *batch) addRules(c chain) {
	for _, r := range c.rules {
		b.AddRule(c.name, r.exprs, userdata.AppendString(nil, userdata.TypeComment, r.comment))
	}
}

func commentOf(data []byte) string {
	text, _ := userdata.GetString(data, userdata.TypeComment)
	return text
}

func (b *batch) put(el element) {
	d := &b.sets[el.set]
	e := b.ToAdd(&b.adds[el.set], d.name)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	value(e, unix.NFTA_SET_ELEM_KEY, el.rec[:d.keyLen()])
	if d.data != nil {
		value(e, unix.NFTA_SET_ELEM_DATA, el.rec[d.keyLen():])
	}
	e.EndNest(at)
}

func (b *batch) remove(el element) {
	d := &b.sets[el.set]
	e := b.ToRemove(&b.dels[el.set], d.name)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	value(e, unix.NFTA_SET_ELEM_KEY, el.rec[:d.keyLen()])
	e.EndNest(at)
}

func value(e *nftwire.Encoder, attr uint16, v string) {
	n := e.Nest(attr)
	e.Bytes(unix.NFTA_DATA_VALUE, []byte(v))
	e.EndNest(n)
}

// buffers ends the batch and returns what to send; nil if nothing is staged.
func (b *batch) buffers() (bufs [][]byte, last uint32) { return b.Buffers(b.dels[:], b.adds[:]) }
