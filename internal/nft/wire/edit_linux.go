package wire

import (
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// elements are messages about elements of one set: each message has as many elements as its list
// may hold, in buffers that double up to a megabyte.
type elements struct {
	full          [][]byte
	cur           Encoder
	message, list int // offsets of the open message and its list; list 0 if none is open
}

const bufferLimit = 1 << 20

// Add adds an element to a set, as a record.
func (t *Transaction) Add(set int, rec []byte) { t.AddFor(set, rec, 0) }

// AddFor adds an element that ends after a time, in a set of such elements; 0 is no end.
func (t *Transaction) AddFor(set int, rec []byte, life time.Duration) {
	d := &t.sets[set]
	e := t.element(&t.added[set], d.Name, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	value := e.key(d, rec)
	if d.Data != nil {
		n := e.Nest(unix.NFTA_SET_ELEM_DATA)
		e.Bytes(unix.NFTA_DATA_VALUE, value)
		e.EndNest(n)
	}
	if life > 0 {
		e.U64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(life.Milliseconds()))
	}
	e.EndNest(at)
}

// AddVerdict adds an element to a verdict map.
func (t *Transaction) AddVerdict(set int, key []byte, v Verdict) {
	d := &t.sets[set]
	e := t.element(&t.added[set], d.Name, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	e.key(d, key)
	n := e.Nest(unix.NFTA_SET_ELEM_DATA)
	m := e.Nest(unix.NFTA_DATA_VERDICT)
	e.U32(unix.NFTA_VERDICT_CODE, uint32(int32(v.Kind)))
	if v.Chain != "" {
		e.Str(unix.NFTA_VERDICT_CHAIN, v.Chain)
	}
	e.EndNest(m)
	e.EndNest(n)
	e.EndNest(at)
}

// Remove removes an element from a set, given as a record; it ignores the data.
func (t *Transaction) Remove(set int, rec []byte) {
	d := &t.sets[set]
	e := t.element(&t.removed[set], d.Name, unix.NFT_MSG_DELSETELEM, 0)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	e.key(d, rec)
	e.EndNest(at)
}

// key writes the key of a record and returns the rest.
func (e *Encoder) key(d *Set, rec []byte) []byte {
	k := d.KeyLen()
	n := e.Nest(unix.NFTA_SET_ELEM_KEY)
	e.Bytes(unix.NFTA_DATA_VALUE, rec[:k])
	e.EndNest(n)
	return rec[k:]
}

// element returns the writer for an element, with an open message that has room for one more.
func (t *Transaction) element(of **elements, set string, typ, flags uint16) *Encoder {
	if *of == nil {
		*of = &elements{cur: Encoder{netlink.Encoder{B: make([]byte, 0, 128)}}} // enough for one element
	}
	e := *of
	if e.list != 0 && len(e.cur.B)-e.list > netlink.AttrLimit-512 {
		e.close()
	}
	if e.list != 0 {
		return &e.cur
	}
	if len(e.cur.B) > bufferLimit-netlink.AttrLimit-1024 {
		e.full = append(e.full, e.cur.B)
		if n := len(t.spare); n > 0 {
			e.cur.B, t.spare = t.spare[n-1], t.spare[:n-1]
		} else {
			e.cur.B = make([]byte, 0, bufferLimit)
		}
	}
	e.message = t.begin(&e.cur, typ, flags, unix.NFTA_SET_ELEM_LIST_TABLE, "elements of "+set)
	e.cur.Str(unix.NFTA_SET_ELEM_LIST_SET, set)
	e.list = e.cur.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	return &e.cur
}

func (e *elements) close() {
	if e.list != 0 {
		e.cur.EndNest(e.list)
		e.cur.EndMessage(e.message)
		e.list = 0
	}
}

// reuse empties the sent elements and keeps their buffer for the next ones. It returns spare with
// the full buffers appended.
func (e *elements) reuse(spare [][]byte) [][]byte {
	for _, b := range e.full {
		spare = append(spare, b[:0])
	}
	e.full, e.cur.B, e.list = e.full[:0], e.cur.B[:0], 0
	return spare
}
