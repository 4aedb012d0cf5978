package adversary_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/nftables"
	"kube-proxy/policy"
)

// Largest cost of one object of a namespace, in the kernel's memory and on the heap, including the
// Services' objects.
const (
	kernelPerObject = 128
	heapPerObject   = 256
)

// A namespace of 100 Services of the most expensive permitted shapes gets its
// `--max-namespace-objects`, in a real kernel: the rest is refused, memory stays within limits, and
// meanwhile a stranger's change waits for a few writes of limited size (TN-74).
func TestStrangerBesideAFullNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for name, c := range map[string]struct {
		weigh    func(mode.Settings) func(lb.Size) int
		newPlane func(lb.Family) (engine.Plane, error)
		full     bool
	}{
		"nftables": {nftables.Mode().Weigh, newNFTables, *large},
		"iptables": {iptables.Mode().Weigh, newIPTables, false}, // the programs need many minutes for a million rules
	} {
		t.Run(name, func(t *testing.T) { besideAFullNamespace(t, c.full, c.weigh(mode.Settings{}), c.newPlane) })
	}
}

func besideAFullNamespace(t *testing.T, full bool, weigh func(lb.Size) int, newPlane func(lb.Family) (engine.Plane,
	error)) {
	limit, endpoints := 1<<22, 66_000
	if !full {
		limit, endpoints = limit/128, endpoints/128
	}
	t.Logf("%d objects for a namespace (-large=%t)", limit, full)
	n := &node{t: t, family: lb.IPv4, rnd: rand.New(rand.NewPCG(1, 888))}
	var budget *engine.Budget
	var writes atomic.Int64
	n.configure = func(cfg *engine.Config) {
		cfg.Settings.MaxObjects = limit
		settings := cfg.Settings
		budget = engine.NewBudget(weigh, func() policy.Settings { return settings })
		cfg.Budget = budget
		cfg.Resolve = func(v cluster.View) []*lb.Frontend { return policy.Resolve(v, budget.Settings(v.Name)) }
		cfg.Written = func(engine.Write) { writes.Add(1) }
	}
	n.begin(newPlane)
	kernel, heap := kernelMemory(t), liveHeap()
	events := fullNamespace(endpoints)
	n.fold(events...)
	most, changes := int64(0), 0
	for begin := time.Now(); !n.engine.Stats().Settled; {
		before := writes.Load()
		n.change(changes % neighbours)
		most = max(most, writes.Load()-before)
		changes++
		if time.Since(begin) > 20*time.Minute {
			t.Fatalf("does not come to rest: %+v", n.engine.Stats())
		}
	}
	if most > 12 {
		t.Errorf("a stranger's change waited for %d writes", most)
	}
	kernel, heap = kernelMemory(t)-kernel, liveHeap()-heap
	used, served := 0, map[string]bool{}
	n.mu.Lock()
	for _, row := range n.rows {
		if row != nil && row.Set(lb.Cluster) != nil {
			used += row.Set(lb.Cluster).Backends.Len()
			service, _, _ := strings.Cut(row.Service, ":")
			served[service] = true
		}
	}
	n.mu.Unlock()
	t.Logf("%d endpoints and ports of %d Services are served; %d bytes of kernel memory and %d of heap, %d and %d "+
		"for each object of the limit; %d changes of strangers, none waited for more than %d writes",
		used, len(served)-neighbours, kernel, heap, kernel/limit, heap/limit, changes, most)
	if len(served)-neighbours >= 100 || used < limit/64 {
		t.Errorf("%d Services with %d endpoints and ports are served of a limit of %d objects", len(served)-neighbours,
			used, limit)
	}
	if full && (kernel > kernelPerObject*limit || heap > heapPerObject*limit) { // a few MiB are noise
		t.Errorf("%d bytes of kernel memory and %d of heap", kernel, heap)
	}
	n.probe()
	runtime.KeepAlive(events)
}

// fullNamespace is a tenant's 100 Services: of one port and so many endpoints, of 256 ports and a
// 256th of them, with and without affinity.
func fullNamespace(endpoints int) (events []cluster.Event) {
	var all []cluster.Endpoint
	for i := range endpoints {
		all = append(all, cluster.Endpoint{Addr: v4(100, 64+i>>16, i>>8, i), Ready: true, Serving: true})
	}
	for i := range 100 {
		name := cluster.Name{Namespace: "tenant", Name: fmt.Sprintf("s%d", i)}
		s := &cluster.Service{Name: name, Created: 1 << 41, ClusterIPs: []netip.Addr{v4(10, 98, 0, 1+i)},
			AffinitySeconds: int32(i/2%2) * 10800}
		ports, mine := 1, all
		if i%2 == 1 {
			ports, mine = 256, all[:endpoints/256]
		}
		var named []cluster.SlicePort
		for p := range ports {
			s.Ports = append(s.Ports, cluster.ServicePort{Name: fmt.Sprint("p", p), Protocol: cluster.TCP,
				Port: uint16(1000 + p)})
			named = append(named, cluster.SlicePort{Name: fmt.Sprint("p", p), Protocol: cluster.TCP,
				Port: uint16(8000 + p)})
		}
		events = append(events, cluster.ServiceSet{Service: s})
		for k := 0; k < len(mine); k += 1000 {
			events = append(events, cluster.SliceSet{Slice: &cluster.Slice{
				Name: cluster.Name{Namespace: "tenant", Name: fmt.Sprintf("s%d-%d", i, k)}, Service: name, Ports: named,
				Endpoints: cluster.EndpointsOf(mine[k:min(k+1000, len(mine))]...),
			}})
		}
	}
	return events
}

var unreclaimable = regexp.MustCompile(`(?m)^(?:SUnreclaim|Percpu|VmallocUsed): +(\d+) kB`)

// kernelMemory returns the kernel's unreclaimable memory, for the whole machine.
func kernelMemory(t *testing.T) (bytes int) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range unreclaimable.FindAllSubmatch(text, -1) {
		kb, _ := strconv.Atoi(string(m[1]))
		bytes += kb << 10
	}
	return bytes
}

// liveHeap returns the memory in use after garbage collections.
func liveHeap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
