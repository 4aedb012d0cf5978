package fake

import (
	"errors"
	"fmt"

	"kube-proxy/lb"
)

// The kernel's errors.
var (
	errNoEntry = errors.New("no such entry")
	errBusy    = errors.New("entry in use")
)

// kernel is the state below the plane. Its operations are strict: they fail as a kernel's would.
type kernel struct {
	fronts map[lb.Key]*lb.Frontend
	sets   map[lb.SetID]*set
	node   lb.Node
}

// set is a backend set with the number of routes that refer to it.
type set struct {
	backends lb.Backends
	refs     int
}

func newKernel() *kernel {
	return &kernel{fronts: map[lb.Key]*lb.Frontend{}, sets: map[lb.SetID]*set{}}
}

// putSet adds a set or replaces its backends.
func (k *kernel) putSet(id lb.SetID, backends lb.Backends) {
	if s := k.sets[id]; s != nil {
		s.backends = backends
		return
	}
	k.sets[id] = &set{backends: backends}
}

// delSet removes a set that nothing refers to.
func (k *kernel) delSet(id lb.SetID) error {
	s := k.sets[id]
	if s == nil {
		return fmt.Errorf("delete set %s: %w", id, errNoEntry)
	}
	if s.refs > 0 {
		return fmt.Errorf("delete set %s: %w by %d routes", id, errBusy, s.refs)
	}
	delete(k.sets, id)
	return nil
}

// putFront adds or replaces a row, whose sets must exist.
func (k *kernel) putFront(f *lb.Frontend) error {
	for _, r := range f.Routes {
		if r.To != nil && k.sets[r.To.ID] == nil {
			return fmt.Errorf("add %s: set %s: %w", f.Key, r.To.ID, errNoEntry)
		}
	}
	k.count(f, 1)
	if old := k.fronts[f.Key]; old != nil {
		k.count(old, -1)
	}
	k.fronts[f.Key] = f
	return nil
}

// delFront removes a row.
func (k *kernel) delFront(key lb.Key) error {
	f := k.fronts[key]
	if f == nil {
		return fmt.Errorf("delete %s: %w", key, errNoEntry)
	}
	k.count(f, -1)
	delete(k.fronts, key)
	return nil
}

func (k *kernel) count(f *lb.Frontend, by int) {
	for _, r := range f.Routes {
		if r.To != nil {
			k.sets[r.To.ID].refs += by
		}
	}
}
