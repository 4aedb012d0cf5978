package adversary_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/adversary"
	"kube-proxy/test/fake"
	"kube-proxy/test/oracle"
)

// world is a node with Services of honest and of hostile tenants, and the whole path from an event
// to a plane that holds frontends.
type world struct {
	t        *testing.T
	family   lb.Family
	rnd      *rand.Rand
	settings policy.Settings
	resolve  func(cluster.View) []*lb.Frontend

	services map[cluster.Name]*cluster.Service
	slices   map[cluster.Name]*cluster.Slice
	ever     map[string]map[netip.Addr]bool // by namespace, the endpoints that its slices have ever named

	store  *cluster.Store
	plane  *fake.Plane
	faulty *fake.Faulty
	engine *engine.Engine
	log    counter
	// configure, if not nil, sets other fields of an engine at its start.
	configure func(*engine.Config)
	stop      func()
	events    int
	starts    int // of the process

	mu       sync.Mutex
	problems []string
}

const (
	nodeName = "node1"
	honest   = 20 // Services of honest tenants, each in its own namespace
	aside    = 0  // the honest Service whose addresses are unknown to all tenants
)

// counter counts logged lines and bytes.
type counter struct{ lines, bytes atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.lines.Add(int64(bytes.Count(p, []byte("\n"))))
	c.bytes.Add(int64(len(p)))
	return len(p), nil
}

func newWorld(t *testing.T, f lb.Family, seed uint64) *world {
	w := emptyWorld(t, f, seed)
	w.start()
	w.settleDown()
	return w
}

func emptyWorld(t *testing.T, f lb.Family, seed uint64) *world {
	w := &world{
		t: t, family: f, rnd: rand.New(rand.NewPCG(seed, 88)),
		settings: policy.Settings{Family: f, ClusterCIDRs: prefixes("10.1.0.0/16", "fd00:1::/32"),
			NodePortAddrs: policy.NodePortAddrs{Primary: true}},
		services: map[cluster.Name]*cluster.Service{}, slices: map[cluster.Name]*cluster.Slice{},
		ever:  map[string]map[netip.Addr]bool{},
		plane: fake.New(f),
	}
	w.resolve = func(v cluster.View) []*lb.Frontend { return policy.Resolve(v, w.settings) }
	w.faulty = fake.NewFaulty(w.plane, seed)
	return w
}

// settleDown brings the honest.
func (w *world) settleDown() {
	for i := range honest {
		w.do(cluster.ServiceSet{Service: honestService(i)}, cluster.SliceSet{Slice: honestSlice(i, 0, false)},
			cluster.SliceSet{Slice: honestSlice(i, 0, true)})
	}
	w.settle()
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, p := range texts {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// start starts a process: it lists all objects, with the existing state of the plane.
func (w *world) start() {
	w.starts++
	w.store = cluster.NewStore(nodeName)
	cfg := engine.Config{
		Family: w.family, Plane: w.faulty, Store: w.store, Settings: w.settings,
		Resolve: w.resolve,
		Log:     slog.New(slog.NewTextHandler(io.MultiWriter(&w.log, panics{w}), nil)),
	}
	if w.configure != nil {
		w.configure(&cfg)
	}
	w.engine = engine.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.engine.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.errorf("Run: %v", err)
		}
	})
	w.t.Cleanup(w.stop)
	w.fold(
		cluster.NodeSet{Node: &cluster.Node{Name: nodeName, Addrs: nodeAddrs}},
		cluster.CIDRsListed{
			CIDRs: []*cluster.ServiceCIDR{{Name: "kubernetes", Prefixes: prefixes("10.96.0.0/12", "fd00:96::/108")}}},
		cluster.ServicesListed{Services: slices.Collect(maps.Values(w.services))},
		cluster.SlicesListed{Slices: slices.Collect(maps.Values(w.slices))},
	)
}

// errorf records a violation.
func (w *world) errorf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// report fails the test for each problem.
func (w *world) report() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, p := range w.problems {
		if i == 20 {
			w.t.Errorf("and %d more", len(w.problems)-i)
			break
		}
		w.t.Error(p)
	}
}

// panics takes a panic that is logged for a problem.
type panics struct{ w *world }

func (p panics) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("Recovered from a panic")) {
		p.w.errorf("%s", line)
	}
	return len(line), nil
}

func (w *world) fold(events ...cluster.Event) {
	for _, ev := range events {
		w.engine.Mark(w.store.Fold(ev))
	}
}

// do sends events and records their result.
func (w *world) do(events ...cluster.Event) {
	for _, ev := range events {
		w.events++
		switch ev := ev.(type) {
		case cluster.ServiceSet:
			w.services[ev.Service.Name] = ev.Service
		case cluster.ServiceGone:
			delete(w.services, ev.Name)
		case cluster.SliceGone:
			delete(w.slices, ev.Name)
		case cluster.SliceSet:
			w.slices[ev.Slice.Name] = ev.Slice
			ns := ev.Slice.Name.Namespace
			if w.ever[ns] == nil {
				w.ever[ns] = map[netip.Addr]bool{}
			}
			for e := range ev.Slice.Endpoints.All() {
				w.ever[ns][e.Addr] = true
			}
		}
		w.fold(ev)
	}
}

// settle repairs the faults, and advances the clock until everything marked is in force.
func (w *world) settle() {
	w.faulty.Heal()
	time.Sleep(12 * time.Minute) // longer than every backoff, and two full audits
	synctest.Wait()
	if s := w.engine.Stats(); !s.Settled || s.Pending != 0 || s.Panics != 0 {
		w.t.Fatalf("not settled: %+v", s)
	}
}

var nodeAddrs = []netip.Addr{netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("fd00:18::2")}

func v4(a, b, c, d int) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(a), byte(b), byte(c), byte(d)})
}

func v6(net, n int) netip.Addr {
	b := [16]byte{0: 0xfd, 2: byte(net >> 8), 3: byte(net)}
	binary.BigEndian.PutUint32(b[12:], uint32(n))
	return netip.AddrFrom16(b)
}

// clusterIPs returns those of Service number n of the cluster: the API server gives each to one
// Service.
func clusterIPs(n int) []netip.Addr {
	return []netip.Addr{v4(10, 96+n>>16, n>>8, n), v6(0x96, n)}
}

func podAddr(i, k int, six bool) netip.Addr {
	if six {
		return v6(1, 1+i<<8+k)
	}
	return v4(10, 1, i, 1+k)
}

func honestName(i int) cluster.Name {
	return cluster.Name{Namespace: fmt.Sprintf("honest%d", i), Name: "web"}
}

func honestService(i int) *cluster.Service {
	return &cluster.Service{
		Name: honestName(i), Created: 1 << 41, Type: cluster.TypeNodePort, ClusterIPs: clusterIPs(1 + i),
		AffinitySeconds: int32(i%2) * 10800, ExternalPolicy: cluster.TrafficPolicy(i / 2 % 2),
		Ports: []cluster.ServicePort{
			{Name: "http", Protocol: cluster.TCP, Port: 80, NodePort: uint16(31000 + i)},
			{Name: "dns", Protocol: cluster.UDP, Port: 53},
		},
	}
}

// honestSlice is the slice of an honest Service in its nth form.
func honestSlice(i, n int, six bool) *cluster.Slice {
	s := &cluster.Slice{
		Name: cluster.Name{Namespace: honestName(i).Namespace, Name: fmt.Sprint("web-", six)}, Service: honestName(i),
		IPv6: six,
		Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080},
			{Name: "dns", Protocol: cluster.UDP, Port: 5353}},
	}
	for k := range 3 {
		s.Endpoints = s.Endpoints.With(cluster.Endpoint{Addr: podAddr(i, k+n, six), Where: cluster.At(nodeName, ""),
			Ready: true, Serving: true})
	}
	return s
}

// victims returns the targets that tenants know: all Services except one.
func victims() adversary.Victims {
	v := adversary.Victims{
		Node: nodeAddrs, NodeName: nodeName, Free: slices.Concat(clusterIPs(60000), clusterIPs(60001)),
		Ports: []uint16{80, 53, 443}, Special: adversary.Special(), NodePorts: []uint16{30080, 30081, 30443},
		Targets: []uint16{8080, 5353, 9090},
	}
	for i := range honest {
		if i == aside {
			continue
		}
		v.ClusterIPs = append(v.ClusterIPs, clusterIPs(1+i)...)
		v.NodePorts = append(v.NodePorts, uint16(31000+i))
		for k := range 3 {
			v.Pods = append(v.Pods, podAddr(i, k, false), podAddr(i, k, true))
		}
	}
	return v
}

// tenant returns a tenant, the nth of the cluster.
func tenant(seed uint64, n int) *adversary.Tenant {
	return adversary.New(fmt.Sprintf("tenant%d", n), seed, victims(), func(i int) []netip.Addr {
		return clusterIPs(1000 + n<<3 + i)
	})
}

// belong checks an invariant, even while the plane is half written: a frontend leads only to
// endpoints that the slices of its own namespace have named, and no Service has an address that
// means the node itself or any host.
func (w *world) belong() {
	for k, row := range w.plane.Frontends() {
		if slices.Contains(adversary.Special(), k.Addr) && k.Addr.IsValid() {
			w.errorf("%s serves %s", row.Service, k)
		}
		ns, _, _ := strings.Cut(row.Service, "/")
		for _, r := range row.Routes {
			if r.To == nil {
				continue
			}
			for b := range r.To.Backends.All() {
				if !w.ever[ns][b.Addr.Addr()] {
					w.errorf("%s of %s leads to %s, which is no address of namespace %s", k, row.Service, b.Addr, ns)
				}
			}
		}
	}
}

// packets queries the oracle for every claimed or served key, from each kind of source, and
// compares the plane. The cluster IPs of the honest must be theirs, whatever the oracle's answer
// is.
func (w *world) packets() (asked int) {
	facts := w.store.Facts()
	var views []cluster.View
	for _, n := range w.store.Names() {
		views = append(views, w.store.View(n))
	}
	o := oracle.New(facts, w.settings, views)
	at := 0
	if w.family == lb.IPv6 {
		at = 1
	}
	sources := []netip.Addr{podAddr(3, 1, w.family == lb.IPv6), nodeAddrs[at],
		[]netip.Addr{v4(203, 0, 113, 5), v6(0x203, 5)}[at]}
	keys := map[lb.Key]bool{}
	for k := range o.Keys {
		keys[k] = true
	}
	rows := w.plane.Frontends()
	met := func(k lb.Key) *lb.Frontend { return rows[k] }
	for k := range rows {
		keys[k] = true
	}
	for i := range 200 { // mostly unused
		keys[lb.Key{Addr: clusterIPs(i * 300)[at], Port: 80, Proto: lb.TCP}] = true
	}
	for k := range keys {
		to := netip.AddrPortFrom(k.Addr, k.Port)
		if k.IsNodePort() {
			to = netip.AddrPortFrom(nodeAddrs[at], k.Port)
		}
		for _, from := range sources {
			asked++
			p := oracle.Packet{From: from, To: to, Proto: k.Proto}
			if got, want := o.Follow(met, p), o.Ask(p); !got.Equal(want) {
				w.errorf("%s → %s/%s: the plane says %+v, the oracle %+v", from, to, k.Proto, got, want)
			}
		}
	}
	for i := range honest {
		row := rows[lb.Key{Addr: clusterIPs(1 + i)[at], Port: 80, Proto: lb.TCP}]
		if row == nil || row.Service != honestName(i).String()+":http" {
			w.errorf("the cluster IP of %s is served by %v", honestName(i), row)
		}
	}
	return asked
}
