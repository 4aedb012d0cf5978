package lb

import (
	"cmp"
	"container/heap"
	"slices"

	"kube-proxy/internal/ordered"
)

// Conflict is a conflict: a key that more than one Service claims. Winner's frontend is in force;
// Loser gets the key when all claims before its own are gone.
type Conflict struct {
	Key           Key
	Winner, Loser Owner
	// WinnerKind and LoserKind are the kinds of their claims.
	WinnerKind, LoserKind Kind
}

// Why returns the property of the winner that decides, as in "shop/old, which is older".
func (c Conflict) Why() string {
	switch {
	case c.WinnerKind.rank() != c.LoserKind.rank():
		return "has it as its " + c.WinnerKind.Words()
	case c.Winner.Created != c.Loser.Created:
		return "is older"
	}
	return "is as old and comes first by name"
}

// claim is one Service's frontend for a key.
type claim struct {
	owner *owned
	front *Frontend
	at    int // its place among the losers
}

// Place implements [ordered.Element].
func (c *claim) Place() *int { return &c.at }

// compare orders the claims on one key by priority (SV-24).
func (c *claim) compare(o *claim) int {
	return cmp.Or(cmp.Compare(c.front.Kind.rank(), o.front.Kind.rank()), c.owner.Compare(o.owner.Owner))
}

// rank orders the kinds by their priority for a key: first addresses that the cluster assigned to a
// Service, then those of a load balancer, and last those that only the Service's author chose.
// NodePorts and health checks have separate keys and equal rank.
func (k Kind) rank() int {
	switch k {
	case LoadBalancer:
		return 1
	case ExternalIP:
		return 2
	}
	return 0
}

// Words returns the kind in words for people.
func (k Kind) Words() string {
	switch k {
	case ClusterIP:
		return "cluster IP"
	case LoadBalancer:
		return "load balancer's address"
	case ExternalIP:
		return "external IP"
	}
	return k.String()
}

// losers holds the claims on one key except the best: a heap, so that with many claims each change
// costs only a logarithm.
type losers struct {
	ordered.Heap[*claim]
	of map[string]*claim // by the name of the owner
}

// moved finds the place of a claim that has changed.
func (l *losers) moved(c *claim) { heap.Fix(l, c.at) }

// list adds c to the losers of its key.
func (t *Table) list(c *claim) {
	k := c.front.Key
	l := t.losers[k]
	if l == nil {
		l = &losers{of: map[string]*claim{}}
		l.Before = func(c, o *claim) bool {
			t.Visited++
			return c.compare(o) < 0
		}
		if t.losers == nil {
			t.losers = map[Key]*losers{}
		}
		t.losers[k] = l
	}
	l.of[c.owner.Name] = c
	heap.Push(l, c)
}

// unlist takes o's claim from the losers of k.
func (t *Table) unlist(k Key, o *owned) {
	l := t.losers[k]
	heap.Remove(l, l.of[o.Name].at)
	delete(l.of, o.Name)
	if len(l.List) == 0 {
		delete(t.losers, k)
	}
}

// firstLoser returns the next claim for k, or nil.
func (t *Table) firstLoser(k Key) *claim {
	if l := t.losers[k]; l != nil {
		return l.First()
	}
	return nil
}

// claimOf returns o's claim on k, which has one or more, or nil.
func (t *Table) claimOf(k Key, o *owned) *claim {
	if head := t.rows[k]; head.owner == o {
		return head
	}
	if l := t.losers[k]; l != nil {
		return l.of[o.Name]
	}
	return nil
}

// crown puts the best claim on k in force, after a claim was added or changed, and returns it.
func (t *Table) crown(k Key) *claim {
	head, next := t.rows[k], t.firstLoser(k)
	if next == nil || head.compare(next) < 0 {
		return head
	}
	t.unlist(k, next.owner)
	t.list(head)
	t.rows[k] = next
	return next
}

func conflictOf(winner, loser *claim) Conflict {
	return Conflict{winner.front.Key, winner.owner.Owner, loser.owner.Owner, winner.front.Kind, loser.front.Kind}
}

// Contested is the number of keys that more than one Service claims.
func (t *Table) Contested() int { return len(t.losers) }

// Conflicts returns the conflicts for k, one for each loser, in the order in which they get the
// key. It is for display: its cost is proportional to their number.
func (t *Table) Conflicts(k Key) []Conflict {
	var out []Conflict
	for _, c := range t.sortedLosers(k) {
		out = append(out, conflictOf(t.rows[k], c))
	}
	return out
}

// FirstConflicts returns the first n conflicts for k, in the order in which the losers get the key,
// and the number of all. Its cost is proportional to n, however many Services claim the key.
func (t *Table) FirstConflicts(k Key, n int) (first []Conflict, all int) {
	l := t.losers[k]
	if l == nil {
		return nil, 0
	}
	// In a heap the next one is among the children of those already taken.
	next := []int{0}
	for len(first) < n && len(next) > 0 {
		i := slices.IndexFunc(next, func(at int) bool {
			return !slices.ContainsFunc(next, func(other int) bool { return l.List[other].compare(l.List[at]) < 0 })
		})
		at := next[i]
		first = append(first, conflictOf(t.rows[k], l.List[at]))
		next = slices.Delete(next, i, i+1)
		for child := 2*at + 1; child <= 2*at+2 && child < len(l.List); child++ {
			next = append(next, child)
		}
	}
	return first, len(l.List)
}

// Lost returns the conflict for k that the Service "ns/name" loses, false if it loses none.
func (t *Table) Lost(k Key, name string) (Conflict, bool) {
	if l := t.losers[k]; l != nil && l.of[name] != nil {
		return conflictOf(t.rows[k], l.of[name]), true
	}
	return Conflict{}, false
}

func (t *Table) sortedLosers(k Key) []*claim {
	l := t.losers[k]
	if l == nil {
		return nil
	}
	return slices.SortedFunc(slices.Values(l.List), (*claim).compare)
}
