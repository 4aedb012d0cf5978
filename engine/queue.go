package engine

// queue has what comes next: keys to be written, or Services to be resolved. They are taken in pieces of bounded weight, and
// between two pieces what was marked meanwhile is taken in. What is new goes into the next piece; what did not fit into a
// piece is the backlog, which has half of each. In both the namespaces are served round robin, so that neither a tenant with
// very many keys nor one who marks his anew all the time makes those of others wait. The zero queue is empty.
type queue[K comparable] struct {
	fresh, backlog roundRobin[K]
	waits          map[K]struct{} // the keys; one that stands in both comes the first time
}

// roundRobin has keys by namespace.
type roundRobin[K comparable] struct {
	ring []*namespace[K] // those that have keys; the first is next
	at   map[string]*namespace[K]
	has  map[K]struct{} // the keys in ring
}

type namespace[K comparable] struct {
	name string
	keys []K // in the order in which they came
}

// quantum is which part of a piece a namespace has before the next one comes.
const quantum = 32

func (q *queue[K]) len() int { return len(q.waits) }

// push adds a key that is new, of that namespace.
func (q *queue[K]) push(k K, namespace string) { q.put(&q.fresh, k, namespace) }

// later adds a key to the backlog.
func (q *queue[K]) later(k K, namespace string) { q.put(&q.backlog, k, namespace) }

func (q *queue[K]) put(to *roundRobin[K], k K, namespace string) {
	if q.waits == nil {
		q.waits = map[K]struct{}{}
	}
	q.waits[k] = struct{}{}
	to.add(namespace, k)
}

// take takes a piece of about that weight: at least one key of what is new, and one of the backlog. What is new and
// does not fit becomes backlog.
func (q *queue[K]) take(weight int, of func(K) int) []K {
	all := weight
	if len(q.backlog.ring) > 0 {
		weight /= 2
	}
	fresh, used := q.some(&q.fresh, weight, all/quantum, of)
	backlog, _ := q.some(&q.backlog, all-used, all/quantum, of)
	for _, n := range q.fresh.ring {
		for _, k := range n.keys {
			if _, waits := q.waits[k]; waits {
				q.backlog.add(n.name, k)
			}
		}
	}
	q.fresh = roundRobin[K]{}
	if len(q.waits) == 0 {
		q.waits, q.backlog = nil, roundRobin[K]{} // what was large once costs its largest size
	}
	return append(fresh, backlog...)
}

// some takes keys of about that weight, a quantum of each namespace after the other.
func (q *queue[K]) some(from *roundRobin[K], weight, quantum int, of func(K) int) (keys []K, used int) {
	for len(from.ring) > 0 && (used == 0 || used < weight) {
		n := from.ring[0]
		share := 0
		for len(n.keys) > 0 && (share == 0 || share < quantum) && (used == 0 || used < weight) {
			k := n.keys[0]
			n.keys = n.keys[1:]
			delete(from.has, k)
			if _, waits := q.waits[k]; !waits {
				continue
			}
			delete(q.waits, k)
			keys = append(keys, k)
			w := of(k)
			share += w
			used += w
		}
		from.ring = from.ring[1:]
		if len(n.keys) > 0 {
			from.ring = append(from.ring, n)
		} else {
			delete(from.at, n.name)
		}
	}
	return keys, used
}

func (t *roundRobin[K]) add(name string, k K) {
	if _, again := t.has[k]; again {
		return
	}
	if t.at == nil {
		t.at, t.has = map[string]*namespace[K]{}, map[K]struct{}{}
	}
	t.has[k] = struct{}{}
	n := t.at[name]
	if n == nil {
		n = &namespace[K]{name: name}
		t.at[name] = n
		t.ring = append(t.ring, n)
	}
	n.keys = append(n.keys, k)
}
