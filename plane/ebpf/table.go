//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
)

// table is a growing map of the programs: they find the map that holds the elements in the only
// element of outer.
type table[K, V comparable] struct {
	name         string
	outer, inner *ebpf.Map
	spec         *ebpf.MapSpec // of inner
	used, room   int
	writes       *uint64
}

const (
	leastRoom = 1024
	chunk     = 4096 // elements that a system call reads
)

// open takes over the elements that the kernel has; a new table has none.
func (t *table[K, V]) open(name string, outer *ebpf.Map, spec *ebpf.MapSpec, writes *uint64) error {
	t.name, t.outer, t.spec, t.writes = name, outer, spec.InnerMap, writes
	err := outer.Lookup(uint32(0), &t.inner)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return t.replace(0)
	}
	if err != nil {
		return fmt.Errorf("open the table %s: %w", name, err)
	}
	t.room = int(t.inner.MaxEntries())
	return nil
}

func (t *table[K, V]) close() error {
	if t.inner == nil {
		return nil
	}
	return t.inner.Close()
}

// replace makes the programs use a new empty map with room for n elements.
func (t *table[K, V]) replace(n int) error {
	next, err := t.make(n)
	if err != nil {
		return err
	}
	return t.use(next, 0)
}

func (t *table[K, V]) make(n int) (*ebpf.Map, error) {
	spec := t.spec.Copy()
	room := leastRoom
	for room < n {
		room *= 2
	}
	spec.Name, spec.MaxEntries = "kp_"+t.name, uint32(room)
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("make the table %s with room for %d elements: %w", t.name, room,
			shortage(err, t.bytes(room)))
	}
	return m, nil
}

// use has the programs use the map.
func (t *table[K, V]) use(next *ebpf.Map, used int) error {
	if err := t.outer.Put(uint32(0), next); err != nil {
		return errors.Join(fmt.Errorf("replace the table %s: %w", t.name, err), next.Close())
	}
	err := t.close()
	t.inner, t.used, t.room = next, used, int(next.MaxEntries())
	return err
}

// grow makes room for n elements more. Programs use the smaller map until the larger one has all.
func (t *table[K, V]) grow(n int) error {
	if t.used+n <= t.room {
		return nil
	}
	all, err := t.read()
	if err != nil {
		return err
	}
	if len(all)+n <= t.room { // it was an estimate
		t.used = len(all)
		return nil
	}
	if err := t.fits(len(all)); err != nil { // a second time
		return err
	}
	next, err := t.make(2 * (len(all) + n))
	if err != nil {
		return err
	}
	copied := table[K, V]{name: t.name, inner: next, writes: new(uint64)}
	if err := copied.put(all); err != nil {
		return errors.Join(err, next.Close())
	}
	return t.use(next, len(all))
}

// read returns all elements.
func (t *table[K, V]) read() (map[K]V, error) {
	all := make(map[K]V, t.used)
	keys, values := make([]K, chunk), make([]V, chunk)
	var at ebpf.MapBatchCursor
	for {
		n, err := t.inner.BatchLookup(&at, keys, values, nil)
		for i := range n {
			all[keys[i]] = values[i]
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			t.used = len(all)
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the table %s: %w", t.name, err)
		}
	}
}

// set adds or replaces elements. There is room for them afterwards.
func (t *table[K, V]) set(put map[K]V) error {
	if len(put) == 0 {
		return nil
	}
	if err := t.fits(len(put)); err != nil {
		return err
	}
	if err := t.grow(len(put)); err != nil {
		return err
	}
	t.used += len(put) // at most
	return t.put(put)
}

func (t *table[K, V]) put(put map[K]V) error {
	*t.writes += uint64(len(put))
	keys, values := make([]K, 0, len(put)), make([]V, 0, len(put))
	for k, v := range put {
		keys, values = append(keys, k), append(values, v)
	}
	var err error
	if len(keys) == 1 {
		err = t.inner.Put(keys[0], values[0])
	} else {
		_, err = t.inner.BatchUpdate(keys, values, nil)
	}
	if err != nil {
		return fmt.Errorf("write %d elements of the table %s: %w", len(keys), t.name, shortage(err, t.bytes(len(keys))))
	}
	return nil
}

// bytes is about what n elements take in the kernel, each with its head and its bucket.
func (t *table[K, V]) bytes(n int) uint64 {
	var k K
	var v V
	return uint64(n) * uint64(64+unsafe.Sizeof(k)+unsafe.Sizeof(v))
}

// fits is an error if the memory limit leaves too little for n elements. It takes for granted that
// few fit, because to read the limit costs more than they do.
func (t *table[K, V]) fits(n int) error {
	bytes := t.bytes(n)
	if bytes < 1<<20 {
		return nil
	}
	if err := enough(bytes); err != nil {
		return fmt.Errorf("write %d elements of the table %s: %w", n, t.name, shortage(err, bytes))
	}
	return nil
}

// remove removes elements; those that are not there too.
func (t *table[K, V]) remove(gone map[K]struct{}) error {
	*t.writes += uint64(len(gone))
	keys := make([]K, 0, len(gone))
	for k := range gone {
		keys = append(keys, k)
	}
	for len(keys) > 0 {
		n, err := 1, error(nil)
		if len(keys) == 1 {
			err = t.inner.Delete(keys[0])
		} else if n, err = t.inner.BatchDelete(keys, nil); err != nil {
			n++ // which was not there
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete %d elements of the table %s: %w", len(keys), t.name, err)
		}
		keys = keys[min(n, len(keys)):]
	}
	t.used = max(0, t.used-len(gone))
	return nil
}

// prune deletes the elements of a map for which gone is true.
func prune[K, V any](m *ebpf.Map, gone func(K, V) bool) error {
	var key K
	var value V
	var keys []K
	at := m.Iterate()
	for at.Next(&key, &value) {
		if gone(key, value) {
			keys = append(keys, key)
		}
	}
	err := at.Err()
	for _, key := range keys {
		if e := m.Delete(key); !errors.Is(e, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
