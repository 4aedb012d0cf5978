package redirect

import (
	"iter"
	"net/netip"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/rollback"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/diff"
	"kube-proxy/plane/internal/ranges"
)

// element is one of a set, as a record.
type element struct {
	set setIndex
	rec string
}

// nftState is what was applied.
type nftState struct {
	leads map[lb.Key]Entry
	// shared counts the leads that need an element of a shared set.
	shared map[element]int32
	lists  map[string]*sourceList // by content
	taken  map[uint32]bool        // numbers of lists
	last   uint32
	// address is where the proxy is reached; not valid if the node has none.
	address netip.Addr
}

func newNFTState() *nftState {
	return &nftState{leads: map[lb.Key]Entry{}, shared: map[element]int32{}, lists: map[string]*sourceList{}, taken: map[uint32]bool{}}
}

// sourceList is a list of source ranges; all keys with equal ranges share one.
type sourceList struct {
	number uint32
	ranges []netip.Prefix
	refs   int32
}

// A list's number leaves its lowest eight bits to the length of a range.
const (
	lengthBits = 8
	maxLists   = 1<<(32-lengthBits) - 1
)

// content identifies lists that are equal.
func content(sources []netip.Prefix) string {
	b := make([]byte, 0, len(sources)*17)
	for _, p := range sources {
		b = append(append(b, p.Addr().AsSlice()...), byte(p.Bits()))
	}
	return string(b)
}

// change collects what a batch does to the elements: what is removed comes before what is added.
type change struct {
	st  *nftState
	log *rollback.Log // nil where the state is new
	del map[element]bool
	add map[element]bool
}

func (st *nftState) change(log *rollback.Log) *change {
	return &change{st, log, map[element]bool{}, map[element]bool{}}
}

func (c *change) put(e element) {
	if c.del[e] {
		delete(c.del, e)
	} else {
		c.add[e] = true
	}
}

func (c *change) drop(e element) {
	if c.add[e] {
		delete(c.add, e)
	} else {
		c.del[e] = true
	}
}

// set makes lead what meets packets to its key.
func (c *change) set(lead Entry) {
	old, was := c.st.leads[lead.Key]
	// The new list comes before the old one goes, which may be the same.
	if lead.Key.IsNodePort() {
		lead.Sources = nil // NodePorts have none
	}
	list := c.acquire(lead.Sources)
	c.need(lead, list)
	if was {
		c.release(old)
	}
	rollback.Put(c.log, c.st.leads, lead.Key, lead)
}

// remove has nothing meet packets to the key.
func (c *change) remove(k lb.Key) {
	if old, was := c.st.leads[k]; was {
		c.release(old)
		rollback.Delete(c.log, c.st.leads, k)
	}
}

func (c *change) release(old Entry) {
	var list *sourceList
	key := content(old.Sources)
	if len(old.Sources) > 0 {
		list = c.st.lists[key]
	}
	c.spare(old, list)
	if list == nil {
		return
	}
	rollback.Value(c.log, list)
	if list.refs--; list.refs == 0 {
		rollback.Delete(c.log, c.st.lists, key)
		rollback.Delete(c.log, c.st.taken, list.number)
		list.each(c.drop)
	}
}

// acquire returns the list of the sources, nil if everybody may come.
func (c *change) acquire(sources []netip.Prefix) *sourceList {
	if len(sources) == 0 {
		return nil
	}
	key := content(sources)
	l := c.st.lists[key]
	if l == nil {
		l = &sourceList{ranges: ranges.Of(sources)}
		for l.number == 0 || c.st.taken[l.number] {
			c.st.last = c.st.last%maxLists + 1
			l.number = c.st.last
		}
		c.enter(key, l)
	}
	rollback.Value(c.log, l)
	l.refs++
	return l
}

func (c *change) enter(key string, l *sourceList) {
	rollback.Put(c.log, c.st.lists, key, l)
	rollback.Put(c.log, c.st.taken, l.number, true)
	l.each(c.put)
}

func (l *sourceList) each(f func(element)) {
	for _, p := range l.ranges {
		b := wire.AppendNumber(make([]byte, 0, 20), l.number<<lengthBits|uint32(p.Bits()))
		f(element{sSourceRanges, string(append(b, p.Addr().AsSlice()...))})
	}
}

// need adds the elements of a lead, the shared ones if nobody needed them before.
func (c *change) need(lead Entry, list *sourceList) {
	for e := range lead.elements(list) {
		c.put(e)
	}
	for e := range lead.sharedElements() {
		n := c.st.shared[e]
		rollback.Put(c.log, c.st.shared, e, n+1)
		if n == 0 {
			c.put(e)
		}
	}
}

// spare takes them away, the shared ones if nobody needs them any more.
func (c *change) spare(lead Entry, list *sourceList) {
	for e := range lead.elements(list) {
		c.drop(e)
	}
	for e := range lead.sharedElements() {
		n := c.st.shared[e]
		if n > 1 {
			rollback.Put(c.log, c.st.shared, e, n-1)
			continue
		}
		rollback.Delete(c.log, c.st.shared, e)
		c.drop(e)
	}
}

// elements are those that the lead has alone.
func (l Entry) elements(list *sourceList) iter.Seq[element] {
	return func(yield func(element) bool) {
		var buf [40]byte
		k := wire.AppendKey(buf[:0], l.Key)
		for _, r := range l.Routes {
			e := element{set: ports(r.From, l.Key.IsNodePort()), rec: string(appendPortData(k, r.Port))}
			if r.Port == 0 {
				e = element{set: refusals(r.From, l.Key.IsNodePort()), rec: string(wire.AppendNumber(k, uint32(r.Do)))}
			}
			if !yield(e) {
				return
			}
		}
		if list != nil {
			yield(element{sSourceLists, string(wire.AppendNumber(k, list.number<<lengthBits))})
		}
	}
}

// sharedElements are those that other leads may need as well.
func (l Entry) sharedElements() iter.Seq[element] {
	return func(yield func(element) bool) {
		var buf [40]byte
		if l.Kind == lb.ClusterIP && !l.Key.IsNodePort() && !yield(element{sClusterIPs, string(append(buf[:0], l.Key.Addr.AsSlice()...))}) {
			return
		}
		for _, r := range l.Routes {
			if r.Port != 0 && !yield(element{sListeners, string(appendListener(buf[:0], l.Key.Proto, r.Port))}) {
				return
			}
		}
	}
}

// records is all that the state wants.
func (st *nftState) records(defs *[setCount]wire.Set, proto byte) (all [setCount]diff.Records) {
	for i := range setCount {
		all[i].Size = defs[i].RecordLen()
	}
	put := func(e element) { all[e.set].Bytes = append(all[e.set].Bytes, e.rec...) }
	for _, lead := range st.leads {
		for e := range lead.elements(st.lists[content(lead.Sources)]) {
			put(e)
		}
	}
	for e := range st.shared {
		put(e)
	}
	for _, l := range st.lists {
		l.each(put)
	}
	if st.address.IsValid() {
		put(addressElement(proto, st.address))
	}
	return all
}

func addressElement(proto byte, a netip.Addr) element {
	return element{sNodeAddresses, string(append([]byte{proto}, a.AsSlice()...))}
}

// stateOf is the state of leads, in which lists have the numbers that the kernel has for their keys.
func stateOf(leads []Entry, snap *snapshot, addrLen int) *nftState {
	st := newNFTState()
	want := make(map[lb.Key]Entry, len(leads))
	for _, l := range leads {
		want[l.Key] = l
	}
	c := st.change(nil)
	for rec := range snap.records[sSourceLists].All() {
		number := nlconn.Order.Uint32(rec[len(rec)-4:]) >> lengthBits
		st.last = max(st.last, number)
		lead, ok := want[wire.ParseKey(rec, addrLen)]
		key := content(lead.Sources)
		if ok && key != "" && number != 0 && !st.taken[number] && st.lists[key] == nil {
			c.enter(key, &sourceList{number: number, ranges: ranges.Of(lead.Sources)})
		}
	}
	for _, l := range want {
		c.set(l)
	}
	return st
}
