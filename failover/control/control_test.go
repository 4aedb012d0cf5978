package control_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/failover"
	. "kube-proxy/failover/control"
	"kube-proxy/lb"
)

// rig is a Controller with a simulated network and plane, in virtual time. Service lab/web has an
// endpoint on each of node-1 and node-2. A dead node answers nothing.
type rig struct {
	*Controller
	store *cluster.Store
	log   strings.Builder

	mu      sync.Mutex
	dead    map[string]bool
	waiting map[failover.Endpoint]int // connections without an answer, as conntrack has them
	open    map[failover.Endpoint]int // established ones
	passes  []time.Duration           // rescues, since the start
	writes  time.Duration             // how long a plane takes to write rules
	fails   error                     // of rescues
	changes []string                  // of nodes
	avoided []time.Duration
	lookups int
	start   time.Time
	keeps   bool                  // the kernel keeps repeated packets at endpoints that rules do not avoid
	each    func(failover.Notice) // of the running source
	runs    int                   // of the source
}

var (
	at1 = netip.MustParseAddrPort("10.0.1.1:80")
	at2 = netip.MustParseAddrPort("10.0.2.1:80")
	web = cluster.Name{Namespace: "lab", Name: "web"}
)

func tcp(at netip.AddrPort) failover.Endpoint { return failover.Endpoint{Addr: at, Proto: lb.TCP} }

// inRig runs f with a Controller that runs with the settings.
func inRig(t *testing.T, s Settings, f func(*rig)) { inRigOf(t, s, false, f) }

// inRigOf is inRig with a kernel that keeps, or does not keep, repeated packets at their endpoint.
func inRigOf(t *testing.T, s Settings, keeps bool, f func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{store: cluster.NewStore("node-0"), dead: map[string]bool{}, start: time.Now(), keeps: keeps,
			waiting: map[failover.Endpoint]int{}, open: map[failover.Endpoint]int{}}
		r.store.Fold(cluster.ServicesListed{})
		r.store.Fold(cluster.SlicesListed{})
		r.store.Fold(cluster.ServiceSet{Service: &cluster.Service{Name: web,
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports:      []cluster.ServicePort{{Port: 80, Protocol: cluster.TCP}}}})
		r.endpoints(cluster.Endpoint{Addr: at1.Addr(), Where: cluster.At("node-1", ""), Ready: true, Serving: true},
			cluster.Endpoint{Addr: at2.Addr(), Where: cluster.At("node-2", ""), Ready: true, Serving: true})
		r.Controller = New(Config{
			Store:     r.store,
			Serves:    func(cluster.Name, netip.AddrPort) bool { return true },
			ServiceOf: func(lb.Key) (cluster.Name, bool) { return web, true },
			Fold: func(e cluster.Event) {
				r.store.Fold(e)
				time.AfterFunc(r.writes, func() { r.Applied(nil) })
			},
			Probe: r.probe, Lookup: r.lookUp,
			NodeChanged: func(node string, unreachable bool, endpoints int) {
				if unreachable {
					node = "not " + node
				}
				r.locked(func() { r.changes = append(r.changes, node) })
			},
			Avoided: func(took time.Duration) { r.locked(func() { r.avoided = append(r.avoided, took) }) },
			Log:     slog.New(slog.NewTextHandler(&r.log, nil)),
		})
		if r.Able() || !r.Add(source{r}) || !r.Able() {
			t.Fatal("the plane is not used")
		}
		r.Configure(s)
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Controller.Run(ctx) })
		synctest.Wait()
		f(r)
		end()
		running.Wait()
	})
}

func (r *rig) endpoints(all ...cluster.Endpoint) {
	r.store.Fold(cluster.SliceSet{Slice: &cluster.Slice{Name: web, Service: web, Endpoints: cluster.EndpointsOf(all...),
		Ports: []cluster.SlicePort{{Port: 80, Protocol: cluster.TCP}}}})
}

func (r *rig) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// kill has a node die, or return.
func (r *rig) kill(node string, dead bool) { r.locked(func() { r.dead[node] = dead }) }

func (r *rig) answers(a netip.Addr) (yes bool) {
	node := map[netip.Addr]string{at1.Addr(): "node-1", at2.Addr(): "node-2", nodes["node-1"]: "node-1",
		nodes["node-2"]: "node-2"}[a]
	r.locked(func() { yes = !r.dead[node] })
	return yes
}

var nodes = map[string]netip.Addr{"node-1": netip.MustParseAddr("192.168.0.1"),
	"node-2": netip.MustParseAddr("192.168.0.2")}

func (r *rig) probe(ctx context.Context, p failover.Probe, quiet func()) (failover.Result, error) {
	time.Sleep(time.Millisecond)
	if r.answers(p.At.Addr()) {
		return failover.Answers, nil
	}
	select {
	case <-ctx.Done():
		return failover.Unknown, nil
	case <-time.After(failover.QuietAfter):
	}
	quiet()
	select {
	case <-ctx.Done():
		return failover.Unknown, nil
	case <-time.After(failover.SeriesTimeout - failover.QuietAfter):
	}
	if r.answers(p.At.Addr()) {
		return failover.Answers, nil
	}
	return failover.Silent, nil
}

func (r *rig) lookUp(_ context.Context, name string) ([]netip.Addr, []netip.Prefix, bool, error) {
	r.locked(func() { r.lookups++ })
	a, ok := nodes[name]
	return []netip.Addr{a}, nil, ok, nil
}

// source is the plane of a rig.
type source struct{ *rig }

func (r source) Run(ctx context.Context, each func(failover.Notice)) error {
	r.locked(func() { r.each, r.runs = each, r.runs+1 })
	<-ctx.Done()
	r.locked(func() { r.each = nil })
	return nil
}

func (r source) RescueAvoids() bool { return r.keeps }

func (r source) Rescue(_ context.Context, endpoints []failover.Endpoint) (n int, err error) {
	r.locked(func() {
		r.passes = append(r.passes, time.Since(r.start))
		for _, e := range endpoints {
			n += r.waiting[e]
			delete(r.waiting, e)
		}
		err = r.fails
	})
	return n, err
}

func (r source) ResetConnections(_ context.Context, endpoints []failover.Endpoint) (n int, err error) {
	r.locked(func() {
		for _, e := range endpoints {
			n += r.open[e]
			delete(r.open, e)
		}
	})
	return n, nil
}

// client begins a connection to the endpoint, whose packet is repeated after a second.
func (r *rig) client(at netip.AddrPort) {
	r.locked(func() { r.waiting[tcp(at)]++ })
}

// notice reports a repeated packet of a client.
func (r *rig) notice(at netip.AddrPort) {
	var each func(failover.Notice)
	r.locked(func() { each = r.each })
	each(failover.Notice{Kind: failover.Retransmission, Proto: lb.TCP, Endpoint: at,
		Frontend: netip.MustParseAddrPort("10.96.0.1:80")})
}

// avoids reports whether policy avoids the endpoint on node-2.
func (r *rig) avoids() bool {
	is, _ := r.store.View(web).Node.Unreachable.Has(at2, cluster.TCP, "node-2")
	return is
}

// TestAvoid: the rules avoid an unreachable endpoint before its clients are rescued, once; with its
// return all ends (FO-06, FO-09, FO-11).
func TestAvoid(t *testing.T) {
	inRig(t, Settings{Mode: Avoid}, func(r *rig) {
		r.writes = 100 * time.Millisecond
		r.kill("node-2", true)
		r.client(at2)
		r.notice(at2)
		time.Sleep(time.Second)
		if !r.avoids() {
			t.Fatalf("it is not avoided:\n%s", &r.log)
		}
		if c := r.Counts(); c.Rescued != 1 || c.Notices["retransmission"] != 1 || c.Probes["silent"] == 0 {
			t.Errorf("counts %+v, want one rescued connection", c)
		}
		s, mode := r.Status()
		if mode != Avoid || len(s.Nodes) != 1 || s.Nodes[0].Name != "node-2" || s.Nodes[0].Endpoints != 1 {
			t.Errorf("status %+v, %s", s, mode)
		}
		time.Sleep(time.Minute)
		if len(r.avoided) != 1 || r.avoided[0] < time.Second+r.writes || r.avoided[0] > 2*time.Second {
			t.Errorf("avoided after %v, want one time between 1.1 and 2 s", r.avoided)
		}
		if n := len(r.passes); n == 0 || n > 7 {
			t.Errorf("%d passes over conntrack, while one client waited once", n)
		}
		if first := r.passes[0]; first < failover.SeriesTimeout+r.writes {
			t.Errorf("rescued after %s, before the rules", first)
		}
		r.kill("node-2", false)
		time.Sleep(10 * time.Second)
		if r.avoids() || !slices.Equal(r.changes, []string{"not node-2", "node-2"}) {
			t.Errorf("after its return: avoided %v, changes %v", r.avoids(), r.changes)
		}
		if len(r.avoided) != 1 {
			t.Errorf("rules without the endpoint count again: %v", r.avoided)
		}
	})
}

// TestRescue: while clients get an unreachable endpoint again, each is rescued before it repeats
// its packet there, and the rules stay; no pass follows the last client, or the endpoint's return
// (FO-11).
func TestRescue(t *testing.T) {
	inRig(t, Settings{Mode: Rescue}, func(r *rig) {
		r.kill("node-2", true)
		r.client(at2)
		r.notice(at2)
		time.Sleep(time.Second)
		for range 100 { // a client each 300 ms; none waits for a second
			r.client(at2)
			time.Sleep(900 * time.Millisecond)
			r.locked(func() {
				if n := r.waiting[tcp(at2)]; n > 0 {
					t.Errorf("%s: %d clients wait", time.Since(r.start), n)
				}
			})
		}
		if r.avoids() {
			t.Error("the rules avoid it")
		}
		before := len(r.passes)
		time.Sleep(time.Minute)
		if n := len(r.passes) - before; n > 6 {
			t.Errorf("%d passes after the last client", n)
		}
		r.notice(at2) // who comes later is rescued, too
		r.client(at2)
		time.Sleep(500 * time.Millisecond)
		if r.Counts().Rescued != 102 {
			t.Errorf("%d rescued, want 102", r.Counts().Rescued)
		}
		r.kill("node-2", false)
		time.Sleep(10 * time.Second)
		r.client(at2)
		time.Sleep(10 * time.Second)
		if r.Counts().Rescued != 102 {
			t.Error("a connection to a living endpoint was forgotten")
		}
	})
}

// TestRescueAvoids: for a kernel that keeps repeated packets at their endpoint, mode rescue avoids
// it from before the rescue until all clients that wait have repeated their packets, and no longer
// (FO-11).
func TestRescueAvoids(t *testing.T) {
	inRigOf(t, Settings{Mode: Rescue}, true, func(r *rig) {
		r.writes = 100 * time.Millisecond
		r.kill("node-2", true)
		for n := range 3 {
			r.client(at2)
			r.notice(at2)
			time.Sleep(failover.SeriesTimeout + 2*failover.QuietAfter + r.writes)
			synctest.Wait()
			if !r.avoids() || r.Counts().Rescued != uint64(n+1) {
				t.Fatalf("client %d: avoided %v, rescued %d:\n%s", n, r.avoids(), r.Counts().Rescued, &r.log)
			}
			time.Sleep(1300 * time.Millisecond) // its next packet, 2 s after the one that was noticed
			if !r.avoids() {
				t.Errorf("client %d: no longer avoided before its next packet", n)
			}
			time.Sleep(2 * time.Second)
			if r.avoids() {
				t.Fatalf("client %d repeated its packet, and the endpoint is still avoided", n)
			}
		}
		r.client(at2) // a client that begins while another is rescued
		r.notice(at2)
		time.Sleep(1900 * time.Millisecond)
		r.notice(at2)
		time.Sleep(1900 * time.Millisecond)
		if !r.avoids() {
			t.Error("not avoided while a client waits for its next packet")
		}
		r.Configure(Settings{Mode: Off})
		synctest.Wait()
		if r.avoids() {
			t.Error("avoided while failover is off")
		}
	})
}

// TestRulesThatFail: where no rules come, clients are rescued after a quarter of a second, and the
// error of a rescue is in the log.
func TestRulesThatFail(t *testing.T) {
	inRig(t, Settings{Mode: Avoid}, func(r *rig) {
		r.writes, r.fails = time.Hour, errors.New("no table")
		r.kill("node-2", true)
		r.client(at2)
		r.notice(at2)
		time.Sleep(1200 * time.Millisecond)
		if r.Counts().Rescued != 1 || len(r.avoided) > 0 {
			t.Errorf("rescued %d, avoided %v", r.Counts().Rescued, r.avoided)
		}
		if !strings.Contains(r.log.String(), "no table") {
			t.Errorf("no error in the log:\n%s", &r.log)
		}
	})
}

// TestReset: with the setting, connections to a node that becomes unreachable are reset, others
// not; without it none is, until it is set (FO-13).
func TestReset(t *testing.T) {
	inRig(t, Settings{Mode: Rescue}, func(r *rig) {
		r.open[tcp(at1)], r.open[tcp(at2)] = 3, 5
		r.kill("node-2", true)
		r.notice(at2)
		time.Sleep(5 * time.Second)
		if n := r.Counts().Reset; n != 0 {
			t.Errorf("%d reset without the setting", n)
		}
		r.Configure(Settings{Mode: Rescue, Reset: true})
		time.Sleep(time.Second)
		if n := r.Counts().Reset; n != 5 || r.open[tcp(at1)] != 3 {
			t.Errorf("%d reset, want those to node-2: %v", n, r.open)
		}
		r.kill("node-2", false)
		time.Sleep(10 * time.Second)
		r.open[tcp(at2)] = 2
		r.kill("node-2", true)
		r.notice(at2)
		time.Sleep(3 * time.Second)
		if n := r.Counts().Reset; n != 7 {
			t.Errorf("%d reset after the second failure, want 7", n)
		}
	})
}

// TestSwitch: failover begins and ends while the process runs; then nothing is avoided, watched or
// known (FO-01, FO-17).
func TestSwitch(t *testing.T) {
	inRig(t, Settings{Mode: Off}, func(r *rig) {
		if r.each != nil {
			t.Error("off, and the plane watches")
		}
		for n := range 3 {
			r.Configure(Settings{Mode: Avoid})
			synctest.Wait()
			r.kill("node-2", true)
			r.notice(at2)
			time.Sleep(time.Second)
			if !r.avoids() || r.runs != n+1 || r.lookups == 0 {
				t.Fatalf("avoided %v, watched %d times, %d lookups", r.avoids(), r.runs, r.lookups)
			}
			r.Configure(Settings{Mode: Rescue})
			time.Sleep(time.Second)
			if r.avoids() {
				t.Error("still avoided in mode rescue")
			}
			r.Configure(Settings{Mode: Off})
			time.Sleep(time.Second)
			if names := r.store.WithAddr(at1.Addr(), 9); len(names) > 0 {
				t.Errorf("off, and the endpoints are indexed: %v", names)
			}
			if s, mode := r.Status(); r.each != nil || mode != Off || len(s.Nodes) > 0 {
				t.Errorf("off: %+v, %s", s, mode)
			}
		}
	})
}

// Counts has each kind and result from the beginning, for metrics; the caller owns it.
func TestCountsBegin(t *testing.T) {
	c := New(Config{})
	got := c.Counts()
	if want := map[string]uint64{"retransmission": 0, "unreachable": 0}; !maps.Equal(got.Notices, want) {
		t.Errorf("notices %v, want %v", got.Notices, want)
	}
	for _, r := range []failover.Result{failover.Unknown, failover.NoRoute} {
		if _, is := got.Probes[r.String()]; !is {
			t.Errorf("no probes of result %s in %v", r, got.Probes)
		}
	}
	if _, is := got.Probes[failover.Waiting.String()]; is {
		t.Error("a probe that waits has no result")
	}
	got.Notices["unreachable"], got.Probes["x"] = 7, 1
	if again := c.Counts(); again.Notices["unreachable"] != 0 || again.Probes["x"] != 0 {
		t.Errorf("a caller changed the counts: %+v", again)
	}
}

// A plane that only notices, or only rescues, is not used.
func TestAddNeedsBoth(t *testing.T) {
	for name, plane := range map[string]any{"neither": 1, "notices": struct{ NoticeSource }{},
		"rescues": struct{ Rescuer }{}} {
		if c := New(Config{}); c.Add(plane) || c.Able() {
			t.Errorf("%s: it is used", name)
		}
	}
	if c := New(Config{}); !c.Add(struct {
		NoticeSource
		Rescuer
	}{}) || !c.Able() {
		t.Error("a plane that can do both is not used")
	}
}
