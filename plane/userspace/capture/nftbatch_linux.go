package capture

import (
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/wire"
)

// batch collects one transaction about the table.
type batch struct {
	*ruleset
	wire.Transaction
	dels, adds [setCount]*wire.Elements
}

func (r *ruleset) batch(table string) *batch {
	return &batch{ruleset: r, Transaction: wire.Transaction{Family: r.proto, Table: table}}
}

// structure stages all that the table has besides elements.
func (b *batch) structure(chains []chain) {
	b.AddTable()
	for i := range setCount {
		b.AddSet(&b.sets[i], uint32(i)+1)
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
	e := b.ToAdd(&b.adds[el.set], d.Name)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	value(e, unix.NFTA_SET_ELEM_KEY, el.rec[:d.KeyLen()])
	if d.Data != nil {
		value(e, unix.NFTA_SET_ELEM_DATA, el.rec[d.KeyLen():])
	}
	e.EndNest(at)
}

func (b *batch) remove(el element) {
	d := &b.sets[el.set]
	e := b.ToRemove(&b.dels[el.set], d.Name)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	value(e, unix.NFTA_SET_ELEM_KEY, el.rec[:d.KeyLen()])
	e.EndNest(at)
}

func value(e *wire.Encoder, attr uint16, v string) {
	n := e.Nest(attr)
	e.Bytes(unix.NFTA_DATA_VALUE, []byte(v))
	e.EndNest(n)
}

// buffers ends the batch and returns what to send; nil if nothing is staged.
func (b *batch) buffers() (bufs [][]byte, last uint32) { return b.Buffers(b.dels[:], b.adds[:]) }
