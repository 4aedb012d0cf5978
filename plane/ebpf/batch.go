//go:build linux

package ebpf

import (
	"iter"

	"kube-proxy/plane/ebpf/bpf"
)

// batch is what a write puts into the tables and removes from them.
type batch struct {
	fronts   edits[bpf.LBFront, bpf.LBFrontend]
	sets     edits[uint32, bpf.LBSet]
	slots    edits[bpf.LBPlace, bpf.LBSlot]
	backends edits[uint32, bpf.LBBackend]
}

// edits are the changes of one table. Of several for a key the last counts.
type edits[K, V comparable] struct {
	put  map[K]V
	gone map[K]struct{}
}

func (e *edits[K, V]) set(k K, v V) {
	if e.put == nil {
		e.put = map[K]V{}
	}
	e.put[k] = v
	delete(e.gone, k)
}

func (e *edits[K, V]) remove(k K) {
	if e.gone == nil {
		e.gone = map[K]struct{}{}
	}
	e.gone[k] = struct{}{}
	delete(e.put, k)
}

// differ adds what leads from one content to another, and returns how many elements that are. It
// consumes have.
func (e *edits[K, V]) differ(have map[K]V, want iter.Seq2[K, V]) {
	for k, v := range want {
		if is, ok := have[k]; !ok || is != v {
			e.set(k, v)
		}
		delete(have, k)
	}
	for k := range have {
		e.remove(k)
	}
}

func (e *edits[K, V]) len() int { return len(e.put) + len(e.gone) }

func (b *batch) len() int { return b.fronts.len() + b.sets.len() + b.slots.len() + b.backends.len() }

// differ is the batch that makes the tables have what the state wants. It consumes have.
func (st *state) differ(have *snapshot) *batch {
	b := &batch{}
	b.backends.differ(have.backends, st.backends())
	b.slots.differ(have.slots, st.places())
	b.sets.differ(have.sets, st.counts())
	b.fronts.differ(have.fronts, st.fronts())
	return b
}
