package health

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/fake"
)

// behindEngine runs a real engine until the test ends, on a plane that fails on demand. do sends
// events, state returns the engine's state.
func behindEngine(t *testing.T, observers ...engine.Observer) (faulty *fake.Faulty, state func() State,
	do func(...cluster.Event)) {
	t.Helper()
	faulty = fake.NewFaulty(fake.New(lb.IPv4), 1)
	store := cluster.NewStore("node1")
	e := engine.New(engine.Config{
		Family: lb.IPv4, Plane: faulty, Store: store, Observers: observers,
		Settings: policy.Settings{Family: lb.IPv4}, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	state = func() State {
		st := e.Stats()
		return State{QueuedSince: st.QueuedSince, LastSuccess: st.LastSuccess, Begun: st.Begun}
	}
	return faulty, state, func(events ...cluster.Event) {
		for _, ev := range events {
			e.Mark(store.Fold(ev))
		}
	}
}

// HT-04, HT-01, HT-02: one Service that the kernel refuses, in a cluster where nothing else
// changes, is on all nodes, so it must not take them out of the load balancers, however long it
// exists. A kernel that refuses everything does, after two sync periods.
func TestOneOddServiceHT04(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty, state, do := behindEngine(t)
		const period = 10 * time.Second // shorter than the pauses between two retries of one frontend
		server := newServer(Config{
			SyncPeriod: func() time.Duration { return period },
			Families:   map[lb.Family]func() State{lb.IPv4: state},
		})
		// stays queries each second for that time.
		stays := func(what string, code int, d time.Duration) {
			t.Helper()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				synctest.Wait()
				for _, path := range []string{"/healthz", "/livez"} {
					if got := probe(server, http.MethodGet, path).Code; got != code {
						t.Fatalf("%s: %s says %d, want %d: %+v", what, path, got, code, state())
					}
				}
			}
		}
		service := func(i byte) *cluster.Service {
			return &cluster.Service{
				Name:       cluster.Name{Namespace: "shop", Name: string('a' + rune(i))},
				ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, i})},
				Ports:      []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
			}
		}
		do(cluster.ServicesListed{Services: []*cluster.Service{service(1)}}, cluster.SlicesListed{})
		stays("all is well", 200, time.Minute)
		faulty.Refuse(lb.Key{Addr: service(2).ClusterIPs[0], Port: 80, Proto: lb.TCP})
		do(cluster.ServiceSet{Service: service(2)})
		stays("one row is refused", 200, time.Hour)
		faulty.FailWith(1)
		do(cluster.ServiceSet{Service: service(3)})
		stays("no write works, for less than two sync periods", 200, 2*period)
		stays("no write works", 503, time.Hour)
		faulty.Heal()
		time.Sleep(30 * time.Second) // until the next try
		stays("all is well again", 200, time.Minute)
	})
}

// HT-16, PN-70: behind a real engine the server never answers "ready" before the kernel has the
// rules: not at the start, not when the first endpoint is added, and not while writes fail.
func TestBehindEngineHT16(t *testing.T) {
	d := newDesk(t)
	faulty, state, do := behindEngine(t, d.v4)
	proxy := newServer(Config{Families: map[lb.Family]func() State{lb.IPv4: state}})
	ready := func() int { return probe(proxy, http.MethodGet, "/readyz").Code }

	const port = 32100
	slice := func(local bool) *cluster.Slice {
		ep := cluster.Endpoint{Addr: netip.MustParseAddr("10.1.1.11"), Where: cluster.At("node2", ""), Ready: true,
			Serving: true}
		if local {
			ep.Where = cluster.At("node1", "")
		}
		return &cluster.Slice{Name: cluster.Name{Namespace: "shop", Name: "web-x"},
			Service:   cluster.Name{Namespace: "shop", Name: "web"},
			Ports:     []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}},
			Endpoints: cluster.EndpointsOf(ep)}
	}
	service := &cluster.Service{
		Name: cluster.Name{Namespace: "shop", Name: "web"}, Type: cluster.TypeLoadBalancer,
		ExternalPolicy:      cluster.PolicyLocal,
		HealthCheckNodePort: port, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7")},
		Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	}
	blocked, release := faulty.Block()
	do(cluster.ServiceSet{Service: service}, cluster.SliceSet{Slice: slice(false)},
		cluster.ServicesListed{Services: []*cluster.Service{service}},
		cluster.SlicesListed{Slices: []*cluster.Slice{slice(false)}})
	<-blocked // the first Reset is under way
	awaitPort(t, d.at(port), false)
	if code := ready(); code != 503 {
		t.Errorf("PN-70: /readyz is %d before the first sync is done", code)
	}
	release()
	awaitPort(t, d.at(port), true)
	eventually(t, "/readyz to be 200 after the first sync (PN-70)", func() bool { return ready() == 200 })
	ask := func() int {
		resp, _ := get(t, "GET", "http://"+d.at(port).String())
		return resp.StatusCode
	}
	if code := ask(); code != 503 {
		t.Errorf("without endpoint here: %d", code)
	}
	blocked, release = faulty.Block()
	do(cluster.SliceSet{Slice: slice(true)})
	<-blocked
	if code := ask(); code != 503 {
		t.Errorf("the endpoint's rules are not in the kernel yet, and the answer is %d", code)
	}
	release()
	eventually(t, "200", func() bool { return ask() == 200 })

	faulty.FailWith(1)
	tried := faulty.Calls()
	do(cluster.SliceSet{Slice: slice(false)})
	eventually(t, "some tries that all fail", func() bool { return faulty.Calls() >= tried+3 })
	if code := ask(); code != 200 {
		t.Errorf("the kernel still sends to the endpoint, and the answer is %d", code)
	}
	faulty.Heal()
	eventually(t, "503", func() bool { return ask() == 503 })
	do(cluster.ServiceGone{Name: service.Name})
	awaitPort(t, d.at(port), false)
}
