package nftables

import (
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// The kernel walks a hash table from its beginning for each 32 KiB of a dump, so the time to dump a map grows
// with the square of its size: a second for 200,000 elements, half a minute for a million. A map of more than
// bigMap elements is read by asking for each key instead.
const bigMap = 150_000

// askAtOnce is how many elements one request names; the answers, one message each, must fit into the
// socket's receive buffer.
const askAtOnce = 256

// readBig reads the backends of all sets that set-shapes knows, if there are many, and reports whether it did.
// Backends that belong to no set are not found this way; no packet can reach them.
func (p *Plane) readBig(s *snapshot) (bool, error) {
	shapes := s.records[sSetShapes]
	total := 0
	each := func(f func(id uint32, sh shape)) {
		for i := range shapes.Len() {
			rec := shapes.at(i)
			if sh := parseShape(lb.Cluster, order.Uint32(rec[4:])); sh.seconds == 0 {
				f(order.Uint32(rec), sh)
			}
		}
	}
	each(func(_ uint32, sh shape) { total += int(sh.size) })
	if total <= p.bigMap {
		return false, nil
	}
	s.records[sBackends].b = make([]byte, 0, total*s.records[sBackends].n)
	q := query{p: p, set: sBackends, found: func(el []byte) { s.element(sBackends, &p.rules.sets[sBackends], el) }}
	each(func(id uint32, sh shape) {
		for slot := range sh.size {
			q.ask(appendNum(appendNum(nil, id), slot))
		}
	})
	return true, q.finish()
}

// query asks for single elements of a set.
type query struct {
	p     *Plane
	set   setIndex
	found func(el []byte) // called for each element that is there

	keys [][]byte
	err  error
}

// ask adds a key; now and then the kernel is asked.
func (q *query) ask(key []byte) {
	q.keys = append(q.keys, key)
	if len(q.keys) == askAtOnce {
		q.flush()
	}
}

func (q *query) finish() error {
	q.flush()
	return q.err
}

// flush sends the keys. The kernel stops at the first that is not there; those behind it are asked for again.
func (q *query) flush() {
	for len(q.keys) > 0 && q.err == nil {
		answered := 0
		err := q.p.sock.ask(q.request(), func(body []byte) {
			attributes(attribute(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, el []byte) bool {
				answered++
				q.found(el)
				return true
			})
		})
		switch {
		case err == nil:
			answered = len(q.keys)
		case errors.Is(err, unix.ENOENT) && answered < len(q.keys):
			answered++
		default:
			q.err = err
		}
		q.keys = q.keys[answered:]
	}
	q.keys = q.keys[:0]
}

func (q *query) request() []byte {
	d := &q.p.rules.sets[q.set]
	q.p.sock.seq++
	var e encoder
	at := e.message(unix.NFT_MSG_GETSETELEM, unix.NLM_F_ACK, q.p.proto, q.p.sock.seq)
	e.str(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	e.str(unix.NFTA_SET_ELEM_LIST_SET, d.name)
	list := e.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for _, k := range q.keys {
		n := e.nest(unix.NFTA_LIST_ELEM)
		e.elementKey(d, k)
		e.endNest(n)
	}
	e.endNest(list)
	e.endMessage(at)
	return e.b
}

// auditWindow is how many backends one full audit compares where there are too many to compare all.
const auditWindow = 20_000

// auditSome compares the backends of some sets, others each time, and stages what differs.
func (p *Plane) auditSome(c *change) (int, error) {
	ids := make(map[uint32]*set, len(p.st.sets))
	for _, s := range p.st.sets {
		if s.members == nil {
			ids[s.id] = s
		}
	}
	sorted := slices.Sorted(maps.Keys(ids))
	first, _ := slices.BinarySearch(sorted, p.audited+1)
	n := p.rules.sets[sBackends].recordLen()
	is, want := slab{n: n}, slab{n: n}
	q := query{p: p, set: sBackends, found: func(el []byte) { is.b = p.rules.sets[sBackends].record(is.b, el) }}
	for _, id := range sorted[first:] {
		s := ids[id]
		for i := range s.slots {
			s.slot(i, nil, func(_ setIndex, rec []byte) { want.b = append(want.b, rec...) })
			q.ask(appendNum(appendNum(nil, id), uint32(i)))
		}
		p.audited = id
		if want.Len() >= auditWindow {
			break
		}
	}
	if len(sorted) == 0 || p.audited == sorted[len(sorted)-1] {
		p.audited = 0
	}
	if err := q.finish(); err != nil {
		return 0, err
	}
	return c.mendSet(sBackends, is, want), nil
}
