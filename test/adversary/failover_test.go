package adversary_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/failover"
	"kube-proxy/failover/control"
	"kube-proxy/lb"
	"kube-proxy/test/adversary"
	"kube-proxy/test/seedtest"
)

// TestFailoverBesideTenants: tenants change Services and slices that name others' pods and nodes,
// and their clients have packets noticed for any endpoint, also for those of strangers. The
// strangers' endpoints stay in use; when a node dies, its endpoints are avoided as soon as without
// the tenants; and only addresses that policy serves, and nodes, are probed (FO-05, FO-08, FO-10).
func TestFailoverBesideTenants(t *testing.T) {
	seed := seedtest.Of(t)
	alone := failoverBeside(t, seed, 0)
	for _, tenants := range []int{1, 12} {
		t.Run(fmt.Sprint(tenants), func(t *testing.T) {
			took := failoverBeside(t, seed, tenants)
			t.Logf("a dead node's endpoint is avoided after %s, and after %s without the tenants", took, alone)
			if took > alone+patience {
				t.Errorf("a dead node's endpoint is avoided after %s, and after %s without the tenants", took, alone)
			}
		})
	}
}

// patience bounds the wait because of tenants. It is mostly none, and at times that for the
// client's next packet: the endpoint may be probed for a tenant who found no address that answers.
const patience = 10 * time.Second

// strangers have a Service each, with an endpoint on each of node2, node3 and node4.
var strangers = []cluster.Name{{Namespace: "stranger", Name: "web"}, {Namespace: "friend", Name: "web"}}

func strangersIP(i int) netip.Addr        { return clusterIPs(900 + i)[0] }
func strangersPod(i, node int) netip.Addr { return v4(10, 9, node, 1+i) }
func internalIP(node int) netip.Addr      { return v4(172, 18, 1, node) }

// besides is a world with a Controller of failover, and the network that it probes.
type besides struct {
	*world
	*control.Controller

	mu     sync.Mutex
	dead   int // this node answers nothing
	known  map[netip.Addr]int
	served map[netip.AddrPort]bool // by policy at some time
	probes []time.Time
	each   func(failover.Notice)
}

// failoverBeside returns the time from the first repeated packet to the rules that avoid the dead
// node's endpoint of the first stranger.
func failoverBeside(t *testing.T, seed uint64, tenants int) (took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &besides{world: emptyWorld(t, lb.IPv4, seed), known: map[netip.Addr]int{},
			served: map[netip.AddrPort]bool{}}
		resolve := b.resolve
		b.resolve = func(v cluster.View) []*lb.Frontend { return b.serve(resolve(v)) }
		b.start()
		b.settleDown()
		b.do(b.strangersEvents()...)
		b.settle()
		b.Controller = control.New(control.Config{Store: b.store, Serves: b.serves, ServiceOf: b.serviceOf,
			Fold: func(e cluster.Event) { b.fold(e) }, Probe: b.probe, Lookup: b.lookUp,
			NodeChanged: func(string, bool, int) {}, Avoided: func(time.Duration) {},
			Log: slog.New(slog.DiscardHandler)})
		b.Add(watched{b})
		b.Configure(control.Settings{Mode: control.Avoid})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { b.Run(ctx) })
		synctest.Wait()
		took = b.strangersWait(seed, tenants)
		stop()
		running.Wait()
		b.stop()
		b.limits()
		b.report()
	})
	return took
}

func (b *besides) strangersEvents() (all []cluster.Event) {
	for n := 2; n <= 4; n++ {
		b.known[internalIP(n)] = n
	}
	for i, name := range strangers {
		var endpoints []cluster.Endpoint
		for n := 2; n <= 4; n++ {
			b.known[strangersPod(i, n)] = n
			endpoints = append(endpoints, cluster.Endpoint{Addr: strangersPod(i, n),
				Where: cluster.At(fmt.Sprint("node", n), ""), Ready: true, Serving: true})
		}
		all = append(all, cluster.ServiceSet{Service: &cluster.Service{Name: name, Created: 1,
			ClusterIPs: []netip.Addr{strangersIP(i)}, Ports: []cluster.ServicePort{{Port: 80, Protocol: cluster.TCP}}}},
			cluster.SliceSet{Slice: &cluster.Slice{Name: name, Service: name,
				Endpoints: cluster.EndpointsOf(endpoints...), Ports: []cluster.SlicePort{{Port: 8080,
					Protocol: cluster.TCP}}}})
	}
	return all
}

// strangersWait has tenants act for a while, kills node2, and returns how long its endpoint stays
// in use after its client's packet was repeated.
func (b *besides) strangersWait(seed uint64, tenants int) (took time.Duration) {
	rnd := rand.New(rand.NewPCG(seed, 38))
	var all []*adversary.Tenant
	v := victims()
	for a := range b.known {
		v.Pods = append(v.Pods, a)
	}
	slices.SortFunc(v.Pods, netip.Addr.Compare)
	for n := range tenants {
		v.NodeName = pickOne(rnd, []string{nodeName, "node2", "node3", "node9"})
		all = append(all, adversary.New(fmt.Sprint("tenant", n), seed+uint64(n), v, func(i int) []netip.Addr {
			return clusterIPs(1000 + n<<3 + i)
		}))
	}
	const step = 5 * time.Millisecond
	const dies, end = 20 * time.Second, 35 * time.Second
	for now := time.Duration(0); now < end; now += step {
		if now == dies {
			b.locked(func() { b.dead = 2 })
		}
		for _, t := range all {
			if rnd.IntN(20) == 0 {
				b.do(t.Event())
			}
		}
		if now%(10*step) == 0 {
			synctest.Wait()
			took = b.look(now, dies+time.Second, took)
		}
		if tenants > 0 {
			b.hostileClients(rnd)
		}
		if now > dies && now%time.Second == 0 { // the stranger's own client repeats its packet
			b.notice(strangersIP(0), 80, netip.AddrPortFrom(strangersPod(0, 2), 8080))
		}
		time.Sleep(step)
	}
	if took == 0 {
		b.errorf("with %d tenants, the endpoint of the dead node is in use 14 s after a packet was repeated", tenants)
	}
	return took
}

// look checks which endpoints the strangers' frontends have, and returns the time since begun when
// the dead node's had left.
func (b *besides) look(now, begun, took time.Duration) time.Duration {
	for key, row := range b.plane.Frontends() {
		for i := range strangers {
			if key != (lb.Key{Addr: strangersIP(i), Port: 80, Proto: lb.TCP}) {
				continue
			}
			has := map[netip.Addr]bool{}
			for _, r := range row.Routes {
				for e := range r.To.Backends.All() {
					has[e.Addr.Addr()] = true
				}
			}
			for n := 2; n <= 4; n++ {
				gone := !has[strangersPod(i, n)]
				switch {
				case gone && (n != 2 || now < begun-time.Second): // tenants may find a dead node earlier
					b.errorf("%s: %s leads to %v, without the living endpoint on node%d", now, strangers[i], has, n)
				case gone && i == 0 && took == 0:
					took = max(now-begun, 1)
				}
			}
		}
	}
	return took
}

// serve records the endpoints of resolved frontends.
func (b *besides) serve(all []*lb.Frontend) []*lb.Frontend {
	b.locked(func() {
		for _, f := range all {
			sets := []*lb.BackendSet{f.Serving} // what else existing flows may keep
			for _, r := range f.Routes {
				sets = append(sets, r.To)
			}
			for _, set := range sets {
				if set == nil {
					continue
				}
				for e := range set.Backends.All() {
					b.served[e.Addr] = true
				}
			}
		}
	})
	return all
}

// hostileClients have packets noticed to any endpoint of a tenant, and to living ones of a
// stranger, whose policy drops them.
func (b *besides) hostileClients(rnd *rand.Rand) {
	i, n := rnd.IntN(len(strangers)), 3+rnd.IntN(2)
	b.notice(strangersIP(i), 80, netip.AddrPortFrom(strangersPod(i, n), 8080))
	var to []failover.Notice
	b.engine.Query(func(t *lb.Table) {
		for f := range t.All() {
			if !strings.HasPrefix(f.Service, "tenant") || rnd.IntN(10) > 0 {
				continue
			}
			for _, r := range f.Routes {
				if r.To == nil {
					continue
				}
				for e := range r.To.Backends.All() {
					to = append(to, failover.Notice{Kind: failover.Retransmission, Proto: f.Key.Proto, Endpoint: e.Addr,
						Frontend: netip.AddrPortFrom(f.Key.Addr, f.Key.Port)})
				}
			}
		}
	})
	for _, n := range to[:min(len(to), 50)] {
		b.send(n)
	}
}

func (b *besides) notice(front netip.Addr, port uint16, endpoint netip.AddrPort) {
	b.send(failover.Notice{Kind: failover.Retransmission, Proto: lb.TCP, Endpoint: endpoint,
		Frontend: netip.AddrPortFrom(front, port)})
}

func (b *besides) send(n failover.Notice) {
	var each func(failover.Notice)
	b.locked(func() { each = b.each })
	each(n)
}

func (b *besides) locked(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func pickOne(rnd *rand.Rand, from []string) string { return from[rnd.IntN(len(from))] }

func (b *besides) serves(name cluster.Name, at netip.AddrPort) (is bool) {
	b.engine.Query(func(t *lb.Table) {
		is = slices.ContainsFunc(t.Owned(name.String()), func(f *lb.Frontend) bool { return f.Serves(at) })
	})
	return is
}

func (b *besides) serviceOf(key lb.Key) (name cluster.Name, ok bool) {
	b.engine.Query(func(t *lb.Table) {
		if f := t.Get(key); f != nil {
			name.Namespace, ok = lb.NamespaceOf(f.Service), true
			name.Name = lb.OwnerOf(f.Service)[len(name.Namespace)+1:]
		}
	})
	return name, ok
}

// probe answers for the strangers' nodes and pods, and for other addresses in one of all ways.
func (b *besides) probe(ctx context.Context, p failover.Probe, quiet func()) (failover.Result, error) {
	isNode := p.At.Port() == 10250 || p.At.Port() == 10256
	b.locked(func() {
		b.probes = append(b.probes, time.Now())
		if !b.served[p.At] && !(isNode && b.known[p.At.Addr()] > 0) {
			b.errorf("probed %s, which policy never served", p.At)
		}
	})
	time.Sleep(time.Millisecond)
	var result failover.Result
	b.locked(func() {
		switch node := b.known[p.At.Addr()]; {
		case node > 0 && node == b.dead:
			result = failover.Silent
		case node > 0:
			result = failover.Answers
		default:
			all := []failover.Result{failover.Silent, failover.Silent, failover.Answers, failover.Refuses,
				failover.Prohibited, failover.NoRoute}
			result = all[int(p.At.Port()+uint16(p.At.Addr().As16()[15]))%len(all)]
		}
	})
	if result != failover.Silent {
		return result, nil
	}
	for _, wait := range []time.Duration{failover.QuietAfter, failover.SeriesTimeout - failover.QuietAfter} {
		select {
		case <-ctx.Done():
			return failover.Unknown, nil
		case <-time.After(wait):
		}
		if wait == failover.QuietAfter {
			quiet()
		}
	}
	return result, nil
}

func (b *besides) lookUp(_ context.Context, name string) ([]netip.Addr, []netip.Prefix, bool, error) {
	time.Sleep(5 * time.Millisecond)
	for n := 2; n <= 4; n++ {
		if name == fmt.Sprint("node", n) {
			return []netip.Addr{internalIP(n)}, []netip.Prefix{netip.PrefixFrom(v4(10, 9, n, 0), 24)}, true, nil
		}
	}
	return nil, nil, false, nil
}

// limits checks the rate of all probes.
func (b *besides) limits() {
	const most = 200
	for i := most; i < len(b.probes); i++ {
		if d := b.probes[i].Sub(b.probes[i-most]); d < time.Second {
			b.errorf("%d probes within %s", most+1, d)
			return
		}
	}
	b.t.Logf("%d probes", len(b.probes))
}

// watched is the plane that reports packets.
type watched struct{ *besides }

func (w watched) Run(ctx context.Context, each func(failover.Notice)) error {
	w.locked(func() { w.each = each })
	<-ctx.Done()
	return nil
}

func (watched) Rescue(context.Context, []failover.Endpoint) (int, error) { return 0, nil }

func (watched) ResetConnections(context.Context, []failover.Endpoint) (int, error) { return 0, nil }
