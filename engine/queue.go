package engine

// queue holds the keys to write, or the Services to resolve. They are taken in pieces of bounded
// weight; between two pieces the engine takes in new marks. New keys go into the next piece; the
// rest of a piece becomes the backlog, which gets half of each. In both, the namespaces are served
// round robin, so neither a tenant with very many keys nor one who marks keys again all the time
// delays others. The zero queue is empty.
type queue[K comparable] struct {
	fresh, backlog roundRobin[K]
	waits          map[K]struct{} // the keys; one that is in both comes out the first time
}

// roundRobin has keys by namespace.
type roundRobin[K comparable] struct {
	ring []*namespace[K] // namespaces with keys; the first is next
	at   map[string]*namespace[K]
	has  map[K]struct{} // the keys in ring
}

type namespace[K comparable] struct {
	name string
	keys []K // in the order of arrival
}

// quantum is the part of a piece that one namespace gets before the next.
const quantum = 32

func (q *queue[K]) len() int { return len(q.waits) }

// push adds a new key of the namespace.
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

// take removes a piece of about that weight: at least one new key and one of the backlog. New keys
// that do not fit become backlog.
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
		q.waits, q.backlog = nil, roundRobin[K]{} // a map that was large once keeps its size
	}
	return append(fresh, backlog...)
}

// some removes keys of about that weight, a quantum of each namespace in turn.
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
