package lb

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// Owner is a Service that claims keys in a table.
type Owner struct {
	// Name is "ns/name".
	Name string
	// Created is the Service's time of creation, in seconds since 1970. It decides conflicts.
	Created int64
}

// OwnerOf returns the name of the owner of a service port's frontends: "ns/name" of "ns/name:port"
// and of "ns/name" ([Frontend.Service]).
func OwnerOf(service string) string {
	name, _, _ := strings.Cut(service, ":")
	return name
}

// NamespaceOf returns the namespace of a service port, or of a Service: "ns" of "ns/name:port".
func NamespaceOf(service string) string {
	namespace, _, _ := strings.Cut(service, "/")
	return namespace
}

// Compare orders owners by age, the oldest first, and then by name.
func (o Owner) Compare(p Owner) int {
	return cmp.Or(cmp.Compare(o.Created, p.Created), cmp.Compare(o.Name, p.Name))
}

// Table is the desired state: for each key its claims, with the best one in force.
//
// The zero Table is empty and ready to use. A Table is not safe for concurrent use.
type Table struct {
	// Family is the family of the frontends; 0 means either.
	Family Family
	// Node holds the facts of this machine for planes. Set it before the first Reset of a plane.
	Node Node

	rows   map[Key]*claim // the winners
	losers map[Key]*losers
	owners map[string]*owned
	// addresses counts the frontends in force at each address, by the rank of their kind.
	addresses map[netip.Addr][len(ranked)]int32
	// refused has the Services with refused frontends; it is nearly always empty.
	refused map[string][]Refused

	// Visited counts the frontends that Replace has inspected since the table was made, and those
	// compared with others for a key in conflict. Tests use it to show that the cost of a change
	// does not grow with the table.
	Visited uint64
}

// owned holds the requests of one Service. Its claims refer to it as long as it has any.
type owned struct {
	Owner
	fronts []*Frontend
}

// Len returns the number of keys.
func (t *Table) Len() int { return len(t.rows) }

// Get returns the frontend in force for k, or nil.
func (t *Table) Get(k Key) *Frontend {
	if c := t.rows[k]; c != nil {
		return c.front
	}
	return nil
}

// KindAt returns the kind of the frontends in force at the address, at any port. Of several kinds
// it returns the one that wins a key (SV-24); 0 without a frontend.
func (t *Table) KindAt(a netip.Addr) Kind {
	n := t.addresses[a]
	for i, kind := range ranked {
		if n[i] > 0 {
			return kind
		}
	}
	return 0
}

// ranked lists the kinds of frontends with their own address, by [Kind.rank].
var ranked = [...]Kind{ClusterIP, LoadBalancer, ExternalIP}

// count records that the frontend in force for a key changed from was to now; nil means none.
func (t *Table) count(was, now *Frontend) {
	a := cmp.Or(was, now).Key.Addr
	if !a.IsValid() || was != nil && now != nil && was.Kind == now.Kind {
		return
	}
	n := t.addresses[a]
	if was != nil {
		n[was.Kind.rank()]--
	}
	if now != nil {
		n[now.Kind.rank()]++
	}
	if n == [len(ranked)]int32{} {
		delete(t.addresses, a)
		return
	}
	if t.addresses == nil {
		t.addresses = map[netip.Addr][len(ranked)]int32{}
	}
	t.addresses[a] = n
}

// Owner returns the owner of the frontend in force for k, or the zero Owner.
func (t *Table) Owner(k Key) Owner {
	if c := t.rows[k]; c != nil {
		return c.owner.Owner
	}
	return Owner{}
}

// All iterates over the frontends in force, in any order.
func (t *Table) All() iter.Seq[*Frontend] {
	return func(yield func(*Frontend) bool) {
		for _, c := range t.rows {
			if !yield(c.front) {
				return
			}
		}
	}
}

// Sorted returns the frontends in force ordered by key.
func (t *Table) Sorted() []*Frontend {
	return slices.SortedFunc(t.All(), func(a, b *Frontend) int { return a.Key.Compare(b.Key) })
}

// Owned returns all frontends that the Service "ns/name" requests, in force or not.
func (t *Table) Owned(name string) []*Frontend {
	if o := t.owners[name]; o != nil {
		return o.fronts
	}
	return nil
}

// Refused returns the frontends of the last request of the Service "ns/name" that [Check] refuses,
// in their order.
func (t *Table) Refused(name string) []Refused { return t.refused[name] }

// Replace sets all requests of one Service; fronts is empty when the Service is deleted. It returns
// the changes to the frontends in force, and the conflicts that this call started. The table keeps
// fronts. Where a frontend or a backend set equals the present one, the table keeps the present
// one, so that planes may compare by pointer. A second frontend for the same key in fronts is
// ignored. A frontend that [Check] refuses is left out, and the Service's present one for that key
// stays; see [Table.Refused].
//
// The cost is proportional to the number of frontends of this Service.
func (t *Table) Replace(o Owner, fronts []*Frontend) ([]Change, []Conflict) {
	if t.rows == nil {
		t.rows, t.owners = map[Key]*claim{}, map[string]*owned{}
	}
	mine := t.owners[o.Name]
	switch {
	case mine == nil:
		if len(fronts) > 0 && OwnerOf(fronts[0].Service) == o.Name {
			o.Name = OwnerOf(fronts[0].Service) // one string in memory
		}
		mine = &owned{Owner: o}
	case mine.Owner != o: // recreated under the same name: its claims may have another place now
		return t.reclaim(mine, o, fronts)
	}
	before := mine.fronts
	fronts = t.share(o.Name, before, fronts)
	t.Visited += uint64(len(before) + len(fronts))

	var changes []Change
	var conflicts []Conflict
	kept := indexOf(fronts)
	for _, f := range before {
		if kept.get(f.Key) == nil {
			changes = t.drop(changes, mine, f.Key)
		}
	}
	for _, f := range fronts {
		changes, conflicts = t.claim(changes, conflicts, mine, f)
	}
	if len(fronts) == 0 {
		delete(t.owners, o.Name)
	} else {
		mine.fronts = fronts
		t.owners[o.Name] = mine
	}
	return changes, conflicts
}

// reclaim replaces the frontends of a Service whose age changed: it removes all old claims, then
// adds all new ones. Changes of one key are folded into one.
func (t *Table) reclaim(old *owned, o Owner, fronts []*Frontend) ([]Change, []Conflict) {
	fronts = t.share(o.Name, old.fronts, fronts)
	refused := t.refused[o.Name]
	deletes, _ := t.Replace(old.Owner, nil)
	adds, conflicts := t.Replace(o, fronts)
	t.refuse(o.Name, refused)
	first := make(map[Key]*Frontend, len(deletes))
	for _, c := range deletes {
		first[c.Key] = c.Old
	}
	var out []Change
	seen := make(map[Key]bool, len(adds))
	for _, c := range adds {
		seen[c.Key] = true
		if was, ok := first[c.Key]; ok {
			c.Old = was
		}
		if c.Old != c.New {
			out = append(out, c)
		}
	}
	for _, c := range deletes {
		if !seen[c.Key] {
			out = append(out, c)
		}
	}
	return out, conflicts
}

// drop removes o's claim on k.
func (t *Table) drop(changes []Change, o *owned, k Key) []Change {
	was := t.rows[k]
	if was.owner != o {
		t.unlist(k, o)
		return changes
	}
	next := t.firstLoser(k)
	if next == nil {
		delete(t.rows, k)
		t.count(was.front, nil)
		return append(changes, Change{k, was.front, nil})
	}
	t.unlist(k, next.owner)
	t.rows[k] = next
	t.count(was.front, next.front)
	return append(changes, Change{k, was.front, next.front})
}

// claim makes f the request of o for f.Key.
func (t *Table) claim(changes []Change, conflicts []Conflict, o *owned, f *Frontend) ([]Change, []Conflict) {
	head := t.rows[f.Key]
	if head == nil {
		t.rows[f.Key] = &claim{owner: o, front: f}
		t.count(nil, f)
		return append(changes, Change{f.Key, nil, f}), conflicts
	}
	was, mine := head.front, t.claimOf(f.Key, o)
	fresh := mine == nil
	switch {
	case fresh:
		mine = &claim{owner: o, front: f}
		t.list(mine)
	case mine.front == f:
		return changes, conflicts
	default:
		mine.front = f
		if mine != head {
			t.losers[f.Key].moved(mine) // its kind may be another
		}
	}
	now := t.crown(f.Key)
	if now.front != was {
		t.count(was, now.front)
		changes = append(changes, Change{f.Key, was, now.front})
	}
	switch {
	case now != head && mine == now:
		conflicts = append(conflicts, conflictOf(now, head))
	case now != head || fresh:
		conflicts = append(conflicts, conflictOf(now, mine))
	}
	return changes, conflicts
}

// refuse records the refused frontends of the Service.
func (t *Table) refuse(name string, refused []Refused) {
	switch {
	case len(refused) == 0:
		delete(t.refused, name)
	case t.refused == nil:
		t.refused = map[string][]Refused{name: refused}
	default:
		t.refused[name] = refused
	}
}

// share returns fronts without repeated keys, and replaces each frontend or backend set that equals
// one of before by that one. It replaces a frontend that Check refuses by that of before, if any,
// and records it in t.refused.
func (t *Table) share(name string, before, fronts []*Frontend) []*Frontend {
	var refused []Refused
	defer func() { t.refuse(name, refused) }()
	if len(fronts) == 0 {
		return nil
	}
	var check check
	var compared Comparison
	old := indexOf(before)
	sets := setsOf(before, &compared)
	out := index{list: make([]*Frontend, 0, len(fronts))}
	for _, f := range fronts {
		if out.get(f.Key) != nil {
			continue
		}
		was := old.get(f.Key)
		if compared.Equal(was, f) {
			f = was
		} else if err := check.row(t.Family, f); err != nil {
			refused = append(refused, Refused{f.Key, err})
			f = was
			if f == nil {
				continue
			}
		} else {
			f = withSets(f, &sets)
		}
		out.add(f)
	}
	return out.list
}

// few is the number of frontends or sets up to which a search is cheaper than a map. Most Services
// have fewer.
const few = 8

// index finds frontends by key, and keeps their order.
type index struct {
	list  []*Frontend
	byKey map[Key]*Frontend // nil while the list is short
}

func indexOf(fronts []*Frontend) *index {
	x := &index{list: fronts}
	x.grow()
	return x
}

// grow makes the map once the list is long.
func (x *index) grow() {
	if len(x.list) <= few {
		return
	}
	x.byKey = make(map[Key]*Frontend, cap(x.list))
	for _, f := range x.list {
		x.byKey[f.Key] = f
	}
}

func (x *index) add(f *Frontend) {
	x.list = append(x.list, f)
	if x.byKey != nil {
		x.byKey[f.Key] = f
	} else {
		x.grow()
	}
}

// get returns the frontend of key k, or nil.
func (x *index) get(k Key) *Frontend {
	if x.byKey != nil {
		return x.byKey[k]
	}
	for _, f := range x.list {
		if f.Key == k {
			return f
		}
	}
	return nil
}

// setIndex finds backend sets by name, and lists of endpoints that equal theirs.
type setIndex struct {
	compared *Comparison
	lists    *lists // nil before the first set without an equal
	list     []*BackendSet
	byID     map[SetID]*BackendSet // nil while the list is short
}

func setsOf(fronts []*Frontend, compared *Comparison) setIndex {
	x := setIndex{compared: compared}
	for _, f := range fronts {
		for _, r := range f.Routes {
			if r.To != nil {
				x.add(r.To)
			}
		}
		if f.Serving != nil {
			x.add(f.Serving)
		}
	}
	return x
}

func (x *setIndex) add(s *BackendSet) {
	if x.get(s.ID) != nil {
		return
	}
	x.list = append(x.list, s)
	if x.byID != nil {
		x.byID[s.ID] = s
	} else if len(x.list) > few {
		x.byID = make(map[SetID]*BackendSet, 2*len(x.list))
		for _, s := range x.list {
			x.byID[s.ID] = s
		}
	}
}

func (x *setIndex) get(id SetID) *BackendSet {
	if x.byID != nil {
		return x.byID[id]
	}
	for _, s := range x.list {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// same returns the set in the index that equals s, or s with those lists of endpoints that are in
// the index.
func (x *setIndex) same(s *BackendSet) *BackendSet {
	if s == nil {
		return nil
	}
	if have := x.get(s.ID); have != nil && x.compared.sets(have, s) {
		return have
	}
	if s.Backends.Len() <= short {
		return s
	}
	if x.lists == nil {
		x.lists = &lists{}
		for _, have := range x.list {
			x.lists.share(have)
		}
	}
	return x.lists.share(s)
}

// withSets returns f, or a copy of it in which equal sets replace its own.
func withSets(f *Frontend, sets *setIndex) *Frontend {
	out := f
	for i, r := range f.Routes {
		have := sets.same(r.To)
		if have == r.To {
			continue
		}
		if out == f {
			g := *f
			g.Routes = slices.Clone(f.Routes)
			out = &g
		}
		out.Routes[i].To = have
	}
	if have := sets.same(f.Serving); have != f.Serving {
		if out == f {
			g := *f
			out = &g
		}
		out.Serving = have
	}
	return out
}
