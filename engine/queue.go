package engine

// queue holds the keys to write, or the Services to resolve. They are taken in pieces of bounded
// weight; between two pieces the engine takes in new marks. New keys go into the next piece; the
// rest of a piece becomes the backlog, which gets half of each. In both, the namespaces are served
// round robin, so neither a tenant with very many keys nor one who marks keys again all the time
// delays others. If not all keys fit, new ones of namespaces that have few come first, in a piece
// of their own unless the last one was such a piece: they do not wait for a full one. The zero
// queue is empty.
type queue[K comparable] struct {
	fresh, backlog roundRobin[K]
	waits          map[K]struct{} // the keys; one that is in both comes out the first time
	ahead          bool           // the last piece had only keys of namespaces with few; a full one follows
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

// quantum is the part of a piece that one namespace gets before the next; few is the part that all
// keys of a namespace with few are at most.
const (
	quantum = 32
	few     = 8
)

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

// take removes a piece of about that weight: new keys of namespaces that have few, and after a
// piece of only these at least one more new key and one of the backlog. New keys that do not fit
// become backlog.
func (q *queue[K]) take(weight int, of func(K) int) (keys []K) {
	used := 0
	if len(q.fresh.ring)+len(q.backlog.ring) > 1 {
		w := weights[K]{of: of}
		of = w.weigh
		keys, used = q.light(weight, &w)
	}
	q.ahead = !q.ahead && len(keys) > 0
	if !q.ahead {
		keys = append(keys, q.mixed(weight-used, of)...)
	}
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
	return keys
}

// mixed removes new keys and some of the backlog.
func (q *queue[K]) mixed(weight int, of func(K) int) []K {
	all := weight
	if len(q.backlog.ring) > 0 {
		weight /= 2
	}
	fresh, used := q.some(&q.fresh, weight, all/quantum, of)
	backlog, _ := q.some(&q.backlog, all-used, all/quantum, of)
	return append(fresh, backlog...)
}

// light removes the new keys of namespaces that have few and no backlog. It removes none if all
// keys fit in a piece, or if those would be most of one.
func (q *queue[K]) light(weight int, w *weights[K]) (keys []K, sum int) {
	seen := 0
	for _, n := range q.fresh.ring {
		var mine []K
		own := 0
		for _, k := range n.keys {
			if own > weight/few {
				break
			}
			if _, waits := q.waits[k]; waits {
				mine, own = append(mine, k), own+w.weigh(k)
			}
		}
		if own <= weight/few && q.backlog.at[n.name] == nil {
			keys, sum = append(keys, mine...), sum+own
		}
		seen += len(mine)
		if sum > weight/2 || seen > weight { // the search takes time too
			return nil, 0
		}
	}
	if len(keys) == 0 || !q.exceed(weight, w) {
		return nil, 0
	}
	for _, k := range keys {
		delete(q.waits, k)
	}
	return keys, sum
}

// exceed reports whether the keys weigh more than weight.
func (q *queue[K]) exceed(weight int, w *weights[K]) bool {
	for _, from := range []*roundRobin[K]{&q.fresh, &q.backlog} {
		for _, n := range from.ring {
			for _, k := range n.keys {
				if _, waits := q.waits[k]; waits {
					w.weigh(k)
				}
				if w.sum > weight {
					return true
				}
			}
		}
	}
	return false
}

// weights are the weights of keys. Each is computed once: of may count what keys share with the
// first of them.
type weights[K comparable] struct {
	of    func(K) int
	known map[K]int
	sum   int
}

func (w *weights[K]) weigh(k K) int {
	n, again := w.known[k]
	if !again {
		n = w.of(k)
		if w.known == nil {
			w.known = map[K]int{}
		}
		w.known[k] = n
		w.sum += n
	}
	return n
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
