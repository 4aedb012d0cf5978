package adversary_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/nftables"
	"kube-proxy/policy"
	"kube-proxy/test/adversary"
)

// FuzzNFTables and FuzzIPTables let tenants loose on a node with a real kernel: packets of honest
// Services, and packets for no Service, must arrive while tenants write. `make fuzz` runs many
// seeds, and there no change of an honest Service may wait for longer than a second.
func FuzzNFTables(f *testing.F) { fuzzKernel(f, newNFTables) }

func FuzzIPTables(f *testing.F) { fuzzKernel(f, newIPTables) }

func newNFTables(f lb.Family) (engine.Plane, error) { return nftables.New(nftables.Config{Family: f}) }

// newIPTables sets conntrack to accept packets in any state: in the lab the sink's answers bypass
// the node.
func newIPTables(f lb.Family) (engine.Plane, error) {
	if _, err := kernel.SetSysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "1"); err != nil {
		return nil, err
	}
	return iptables.New(iptables.Config{Family: f, Backend: xtables.NFT})
}

func fuzzKernel(f *testing.F, newPlane func(lb.Family) (engine.Plane, error)) {
	if os.Geteuid() != 0 {
		f.Skip("network namespaces need root")
	}
	f.Add(uint64(1))
	f.Add(uint64(6))
	f.Fuzz(func(t *testing.T, seed uint64) {
		n := &node{t: t, family: []lb.Family{lb.IPv4, lb.IPv6}[seed%2], rnd: rand.New(rand.NewPCG(seed, 888))}
		n.live(seed, newPlane)
	})
}

// node is node1 of a lab. The first pods serve honest Services, and tenants name any address.
type node struct {
	t      *testing.T
	family lb.Family
	rnd    *rand.Rand

	lab    *netlab.TestLab
	store  *cluster.Store
	engine *engine.Engine
	slices [neighbours]*cluster.Slice

	mu    sync.Mutex
	rows  map[lb.Key]*lb.Frontend // in force, as the engine reports to its observers
	moved chan struct{}
	// configure, if not nil, sets other fields of the engine.
	configure func(*engine.Config)
}

const (
	neighbours = 4    // honest Services
	serving    = 9000 // the port at which pods serve the first of them; each Service has its own
)

func (n *node) six() bool { return n.family == lb.IPv6 }

func (n *node) addr(host string) netip.Addr { return netlab.Addr(host, n.six()) }

// Applied is engine.Observer's.
func (n *node) Applied(changes []lb.Change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range changes {
		n.rows[c.Key] = c.New
	}
	close(n.moved)
	n.moved = make(chan struct{})
}

// live is the life of the node: tenants write, the honest change too, and packets are sent.
func (n *node) live(seed uint64, newPlane func(lb.Family) (engine.Plane, error)) {
	n.begin(newPlane)
	tenants := make([]*adversary.Tenant, 6)
	for i := range tenants {
		tenants[i] = adversary.New(fmt.Sprint("tenant", i), seed+uint64(i), n.victims(), n.clusterIPsOf(i))
	}
	odd := adversary.Odd(20)
	for round := range 4 {
		for _, tn := range tenants {
			for range n.rnd.IntN(6) {
				n.fold(tn.Event())
			}
		}
		if round == 2 && n.rnd.IntN(3) == 0 && !n.six() {
			shape := odd[n.rnd.IntN(len(odd))]
			n.t.Logf("%s", shape.Name)
			n.fold(shape.Events()...)
		}
		n.change(n.rnd.IntN(neighbours))
		n.rest()
		n.probe()
		if n.t.Failed() {
			return
		}
	}
}

// begin starts the node, with the honest Services in force.
func (n *node) begin(newPlane func(lb.Family) (engine.Plane, error)) {
	n.lab = netlab.ForTest(n.t, netlab.Options{})
	for i := range neighbours {
		n.lab.Serve(netlab.TCP, uint16(serving+i), "pod1", "pod2", "pod3", "pod4", "pod5", netlab.Node1, netlab.Node2)
	}
	n.rows, n.moved = map[lb.Key]*lb.Frontend{}, make(chan struct{})
	n.store = cluster.NewStore(netlab.Node1)
	n.run(newPlane)
	n.fold(cluster.NodeSet{Node: &cluster.Node{Name: netlab.Node1, Addrs: []netip.Addr{n.addr(netlab.Node1)}}},
		cluster.CIDRsListed{CIDRs: []*cluster.ServiceCIDR{
			{Name: "kubernetes", Prefixes: []netip.Prefix{netlab.Service4, netlab.Service6}}}},
		cluster.ServicesListed{}, cluster.SlicesListed{})
	for i := range neighbours {
		n.fold(cluster.ServiceSet{Service: n.service(i)})
		n.change(i)
	}
	n.rest() // the first write is empty, and is not measured
}

// run runs an engine in the node's namespace.
func (n *node) run(newPlane func(lb.Family) (engine.Plane, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- n.lab.Do(netlab.Node1, func() error {
			p, err := newPlane(n.family)
			if err != nil {
				close(ready)
				return err
			}
			if c, ok := p.(io.Closer); ok {
				defer c.Close()
			}
			cfg := engine.Config{
				Family: n.family, Plane: p, Store: n.store, Observers: []engine.Observer{n},
				Settings: policy.Settings{Family: n.family, ClusterCIDRs: []netip.Prefix{netlab.Cluster4,
					netlab.Cluster6},
					NodePortAddrs: policy.NodePortAddrs{Primary: true}},
				Log: slog.New(slog.DiscardHandler),
			}
			if n.configure != nil {
				n.configure(&cfg)
			}
			n.engine = engine.New(cfg)
			close(ready)
			return n.engine.Run(ctx)
		})
	}()
	<-ready
	n.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	if n.engine == nil {
		n.t.Fatal(<-done)
	}
}

func (n *node) fold(events ...cluster.Event) {
	for _, ev := range events {
		n.engine.Mark(n.store.Fold(ev))
	}
}

func (n *node) vip(i int) netip.Addr {
	if n.six() {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::1:%x", i+1))
	}
	return v4(10, 97, 0, i+1)
}

// clusterIPsOf returns those of tenant i's Services.
func (n *node) clusterIPsOf(i int) func(int) []netip.Addr {
	return func(k int) []netip.Addr { return []netip.Addr{n.vip(100 + 8*i + k)} }
}

func (n *node) service(i int) *cluster.Service {
	return &cluster.Service{
		Name: cluster.Name{Namespace: fmt.Sprint("honest", i), Name: "web"}, Created: 1 << 41,
		Type:       cluster.TypeNodePort,
		ClusterIPs: []netip.Addr{n.vip(i)}, AffinitySeconds: int32(i%2) * 10800,
		Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80, NodePort: uint16(31000 + i)}},
	}
}

func (n *node) victims() adversary.Victims {
	v := adversary.Victims{
		Special: adversary.Special(), Node: []netip.Addr{n.addr(netlab.Node1), n.addr(netlab.Node2)},
		NodeName: netlab.Node1,
		Free:     []netip.Addr{n.vip(5000), n.vip(5001)}, Ports: []uint16{80, serving, 53},
		NodePorts: []uint16{30080, 30081},
	}
	for i := range neighbours {
		v.ClusterIPs = append(v.ClusterIPs, n.vip(i))
		v.Targets = append(v.Targets, uint16(serving+i))
		v.Pods = append(v.Pods, n.addr(fmt.Sprint("pod", i+1)))
	}
	return v
}

// change gives an honest Service other endpoints, and waits until they are in force.
func (n *node) change(i int) {
	was := n.slices[i]
	for was.Equal(n.slices[i]) || n.slices[i] == nil {
		n.slices[i] = n.slice(i)
	}
	want := make([]netip.AddrPort, 0, 2)
	for e := range n.slices[i].Endpoints.All() {
		want = append(want, netip.AddrPortFrom(e.Addr, uint16(serving+i)))
	}
	slices.SortFunc(want, netip.AddrPort.Compare)
	begin := time.Now()
	n.fold(cluster.SliceSet{Slice: n.slices[i]})
	limit := time.After(2 * time.Minute)
	for {
		n.mu.Lock()
		row, moved := n.rows[lb.Key{Addr: n.vip(i), Port: 80, Proto: lb.TCP}], n.moved
		n.mu.Unlock()
		if row != nil && slices.Equal(backends(row), want) {
			break
		}
		select {
		case <-moved:
		case <-limit:
			n.t.Fatalf("honest%d is not where it should be after two minutes: %+v", i, n.engine.Stats())
		}
	}
	took := time.Since(begin)
	// Not in a plain test, which may run on a machine that does many things at once.
	if fuzzing := flag.Lookup("test.fuzz").Value.String() != ""; fuzzing && took > time.Second {
		n.t.Errorf("a change of an honest Service waited for %v", took)
	}
}

// rest waits until everything is in force except refused frontends.
func (n *node) rest() {
	n.t.Helper()
	for limit := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		s := n.engine.Stats()
		if s.Panics > 0 || s.Lost || time.Now().After(limit) {
			n.t.Fatalf("does not come to rest: %+v", s)
		}
		if s.Settled || s.Pending > 0 && s.Pending == len(s.Failing) {
			return
		}
	}
}

// slice has one or two pods.
func (n *node) slice(i int) *cluster.Slice {
	s := &cluster.Slice{
		Name: cluster.Name{Namespace: fmt.Sprint("honest", i), Name: "web"}, IPv6: n.six(),
		Service: cluster.Name{Namespace: fmt.Sprint("honest", i), Name: "web"},
		Ports:   []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: uint16(serving + i)}},
	}
	for _, k := range n.rnd.Perm(5)[:1+n.rnd.IntN(2)] {
		h, _ := netlab.HostByName(fmt.Sprint("pod", k+1))
		s.Endpoints = s.Endpoints.With(cluster.Endpoint{Addr: n.addr(h.Name), Where: cluster.At(h.Node, ""),
			Ready: true, Serving: true})
	}
	return s
}

func backends(row *lb.Frontend) (out []netip.AddrPort) {
	if set := row.Set(lb.Cluster); set != nil {
		for b := range set.Backends.All() {
			out = append(out, b.Addr)
		}
	}
	return out
}

// probe sends to the honest, at their cluster IPs and NodePorts, and past all Services, at the same
// time.
func (n *node) probe() {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all sync.WaitGroup
	port := 0
	send := func(host string, from netip.Addr, to netip.AddrPort, check func(netlab.Reply, netip.Addr, error) error) {
		port++
		local := netip.AddrPortFrom(from, uint16(33000+n.rnd.IntN(100)*300+port))
		all.Go(func() {
			c, err := n.lab.Open(host, netlab.TCP, to, netlab.DialOptions{Timeout: 10 * time.Second, Local: local})
			var first netlab.Reply
			if err == nil {
				first = c.First()
				err = c.Close()
			}
			if err := check(first, local.Addr(), err); err != nil {
				n.t.Errorf("%s → %s: %v", host, to, err)
			}
		})
	}
	for i := range neighbours {
		row := n.rows[lb.Key{Addr: n.vip(i), Port: 80, Proto: lb.TCP}]
		want := backends(row)
		answers := func(a netlab.Reply, _ netip.Addr, err error) error {
			if err == nil && !slices.Contains(want, a.At) {
				err = fmt.Errorf("%s answered at %s, want one of %v", a.Server, a.At, want)
			}
			return err
		}
		for _, host := range []string{"pod1", "pod3", netlab.Node1, netlab.Client} {
			send(host, n.addr(host), netip.AddrPortFrom(n.vip(i), 80), answers)
		}
		if row := n.rows[lb.Key{Port: uint16(31000 + i), Proto: lb.TCP}]; row != nil && strings.HasPrefix(row.Service,
			fmt.Sprintf("honest%d/", i)) {
			send(netlab.Client, n.addr(netlab.Client), netip.AddrPortFrom(n.addr(netlab.Node1), uint16(31000+i)),
				answers)
		}
	}
	for _, way := range n.strangers() {
		for i := range neighbours {
			to := netip.AddrPortFrom(way.to, uint16(serving+i))
			if !to.Addr().IsLoopback() && n.rows[lb.Key{Addr: to.Addr(), Port: to.Port(), Proto: lb.TCP}] != nil {
				continue // another Service's external IP, allowed by the administrator
			}
			send(way.host, way.from, to, func(a netlab.Reply, local netip.Addr, err error) error {
				if err == nil && (a.At != to || a.Seen.Addr() != local) {
					err = errors.New("is for no Service, and " + a.Server + " answered at " + a.At.String() +
						" and saw " + a.Seen.String())
				}
				return err
			})
		}
	}
	all.Wait()
}

// stranger is a way that no Service has to do with.
type stranger struct {
	host     string
	from, to netip.Addr
}

func (n *node) strangers() (out []stranger) {
	for _, way := range [][2]string{{"pod1", "pod2"}, {"pod2", "pod4"}, {netlab.Node1, netlab.Node1},
		{netlab.Node1, "pod5"}, {netlab.Client, "pod3"}} {
		out = append(out, stranger{way[0], n.addr(way[0]), n.addr(way[1])})
	}
	own := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if n.six() {
		own = netip.IPv6Loopback()
	}
	return append(out, stranger{netlab.Node1, own, own})
}
