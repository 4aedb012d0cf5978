package planetest

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/adversary"
)

// Memory proves that the heap and the kernel's memory stay below these factors of the size of API
// objects, for any workload of one tenant (TN-91). [Kernel.Bytes] counts the kernel's memory.
//
// scale divides the workloads. fresh gives the calling goroutine an empty kernel, as in [Verbs].
func Memory(t *testing.T, scale, heapFactor, kernelFactor int, fresh func(testing.TB) Kernel) {
	victims := adversary.Victims{Ports: []uint16{80}, Node: []netip.Addr{netip.MustParseAddr("192.0.0.1")}}
	for _, shape := range append(adversary.Odd(scale), adversary.Hostile(1, scale, victims)...) {
		objects := shape.Bytes()
		if objects < 1000 || len(shape.Services)+len(shape.Slices) > 50 { // harm by changes, or by mere number
			continue
		}
		t.Run(shape.Name, func(t *testing.T) {
			heap, kernel := footprint(t, shape, fresh(t))
			t.Logf("%d bytes of objects: %d of heap (%d each), %d of the kernel (%d each)", objects, heap, heap/objects,
				kernel, kernel/objects)
			if most := heapFactor*objects + 1<<20; heap > most {
				t.Errorf("%q: %d bytes of heap for %d bytes of API objects, want at most %d", shape.Name, heap, objects,
					most)
			}
			if most := kernelFactor*objects + 1<<20; kernel > most {
				t.Errorf("%q: %d bytes of kernel memory for %d bytes of API objects, want at most %d", shape.Name,
					kernel, objects, most)
			}
		})
	}
}

// footprint returns the memory of the process and of the kernel for a workload.
func footprint(t *testing.T, shape adversary.Shape, k Kernel) (heap, kernel int) {
	w := World{Family: lb.IPv4}
	n := w.Node()
	settings := policy.Settings{Family: w.Family, ClusterCIDRs: n.Pods.Prefixes, NodePortAddrs: policy.NodePortAddrs{
		Primary: true}}
	machine := liveHeap()
	p, err := k.New(w.Family)
	if err != nil {
		t.Fatal(err)
	}
	empty := &lb.Table{Family: w.Family, Node: n}
	if _, err := ResetAll(t.Context(), p, empty); err != nil {
		t.Fatal(err)
	}
	before := k.bytes(t, w.Family)
	start := liveHeap()
	idle := start - machine // memory of a plane that serves nothing
	store, table := cluster.NewStore("node1"), &lb.Table{Family: w.Family, Node: n}
	for _, ev := range shape.Events() {
		store.Fold(ev)
	}
	for _, name := range store.Names() {
		v := store.View(name)
		table.Replace(lb.Owner{Name: name.String(), Created: v.Service.Created}, policy.Resolve(v, settings))
	}
	known := liveHeap()
	res, err := p.Reset(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	for piece := range slices.Chunk(res.Later, 500) {
		var changes []lb.Change
		for _, key := range piece {
			changes = append(changes, lb.Change{Key: key, New: table.Get(key)})
		}
		if err := ApplyAll(t.Context(), p, changes); err != nil {
			t.Logf("refused, and so takes no memory: %.200s", err)
		}
	}
	kernel = k.bytes(t, w.Family) - before
	full := liveHeap()
	if err := shut(p); err != nil {
		t.Error(err)
	}
	p = nil // but the kernel's state stays: a fake kernel has its memory in the heap
	left := liveHeap()
	runtime.KeepAlive(table)
	runtime.KeepAlive(store)
	runtime.KeepAlive(shape)
	return known - start + full - left - idle, kernel
}

func (k Kernel) bytes(t *testing.T, f lb.Family) int {
	n, err := k.Bytes(f)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// liveHeap returns the memory in use after garbage collections.
func liveHeap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
