//go:build linux

package ebpf

import (
	flags "flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/ebpf/bpf"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/test/seedtest"
)

var walkSteps = flags.Int("walk", 30_000, "random changes of TestWalk")

// TestWalk: after random changes of rows, of the node and of the process, the tables have what a
// fresh load has, but for the numbers of sets and backends (EB-08, EB-11). In every state between
// two tables of a write, what a frontend leads to is complete.
func TestWalk(t *testing.T) {
	kerneltest.NotEmulated(t)
	rnd := rand.New(rand.NewPCG(seedtest.Of(t), 80))
	w := planetest.World{Family: lb.IPv4}
	table := &lb.Table{Node: w.Node()}
	st, have := newState(table.Node), (&snapshot{}).clone()
	apply := func(step int, b *batch) {
		t.Helper()
		have.apply(b, func(table string) {
			if step%100 == 0 {
				if err := have.complete(); err != nil {
					t.Fatalf("step %d, after %s: %v", step, table, err)
				}
			}
		})
	}
	for step := range *walkSteps {
		b := &batch{}
		switch n := rnd.IntN(1000); {
		case n == 0: // a new process
			next := newState(table.Node)
			read := have.clone()
			next.adopt(read, table)
			held := &batch{}
			want := maps.Collect(next.fronts())
			for k, f := range read.fronts {
				if want[k].Set != f.Set {
					f.Set = bpf.LBFrontend{}.Set
					held.fronts.set(k, f)
					read.fronts[k] = f
				}
			}
			apply(step, held)
			b, st = next.differ(read), next
		case n == 1:
			node := w.Node()
			if rnd.IntN(2) == 0 {
				node.Pods = lb.Detector{}
			}
			table.Node = node
			st.setNode(b, node)
		default:
			i, pods := rnd.IntN(30), rnd.IntN(8)
			changes, _ := table.Replace(w.Full(i, rnd.IntN(20), pods, rnd.IntN(pods+1),
				time.Duration(rnd.IntN(2))*time.Hour))
			for _, c := range changes {
				st.change(b, c.Key, c.New)
			}
		}
		apply(step, b)
		if step%500 != 0 && step != *walkSteps-1 {
			continue
		}
		fresh := newState(table.Node)
		fresh.add(table)
		loaded := (&snapshot{}).clone()
		loaded.apply(fresh.differ(&snapshot{}), func(string) {})
		if got, want := have.text(), loaded.text(); got != want {
			t.Fatalf("step %d: the tables have\n%s\nand a fresh load\n%s", step, got, want)
		}
		if n := st.differ(have.clone()).len(); n != 0 {
			t.Fatalf("step %d: a comparison finds %d differences", step, n)
		}
	}
}

func (s *snapshot) clone() *snapshot {
	clone := &snapshot{
		map[bpf.LBFront]bpf.LBFrontend{}, map[uint32]bpf.LBSet{}, map[bpf.LBPlace]bpf.LBSlot{},
		map[uint32]bpf.LBBackend{},
	}
	maps.Copy(clone.fronts, s.fronts)
	maps.Copy(clone.sets, s.sets)
	maps.Copy(clone.slots, s.slots)
	maps.Copy(clone.backends, s.backends)
	return clone
}

// apply writes a batch as kernel.write does. It calls between after each table.
func (s *snapshot) apply(b *batch, between func(table string)) {
	insert(s.backends, &b.backends)
	between("backends")
	insert(s.slots, &b.slots)
	between("slots")
	insert(s.sets, &b.sets)
	between("sets")
	insert(s.fronts, &b.fronts)
	between("frontends")
	drop(s.fronts, &b.fronts)
	between("removed frontends")
	drop(s.sets, &b.sets)
	between("removed sets")
	drop(s.slots, &b.slots)
	between("removed slots")
	drop(s.backends, &b.backends)
	between("removed backends")
}

func insert[K, V comparable](m map[K]V, e *edits[K, V]) { maps.Copy(m, e.put) }

func drop[K, V comparable](m map[K]V, e *edits[K, V]) {
	for k := range e.gone {
		delete(m, k)
	}
}

// complete reports a frontend that leads nowhere.
func (s *snapshot) complete() error {
	for k, f := range s.fronts {
		for _, n := range f.Set {
			if n == 0 {
				continue
			}
			is, ok := s.sets[n]
			if !ok || is.Count == 0 {
				return fmt.Errorf("frontend %v: set %d has %d backends", k, n, is.Count)
			}
			for slot := range is.Count {
				if _, ok := s.backendAt(n, slot); !ok {
					return fmt.Errorf("frontend %v: slot %d of set %d leads to no backend", k, slot, n)
				}
			}
		}
	}
	return nil
}

// text is the content, without the numbers.
func (s *snapshot) text() string {
	var lines []string
	for k, f := range s.fronts {
		line := fmt.Sprintf("%v affinity %d", k, f.Affinity)
		for _, n := range f.Set {
			var at []string
			for _, a := range s.Backends(n) {
				at = append(at, a.String())
			}
			slices.Sort(at)
			line += fmt.Sprint(" ", at)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return fmt.Sprintf("%s\n%d sets, %d slots, %d backends", strings.Join(lines, "\n"), len(s.sets), len(s.slots),
		len(s.backends))
}
