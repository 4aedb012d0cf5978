package health

import (
	"context"
	"net/http"
	"net/netip"
	"testing"
	"unique"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/plane/fake"
	"kube-proxy/policy"
)

// HT-16, PN-70: behind a real engine nobody is told "ready" before the kernel has the rules: not at the start, not when
// the first endpoint comes, and not while writes fail.
func TestBehindEngineHT16(t *testing.T) {
	d := newDesk(t)
	faulty := fake.NewFaulty(fake.New(lb.IPv4), 1)
	store := cluster.NewStore("node1")
	e := engine.New(engine.Config{
		Family: lb.IPv4, Plane: faulty, Store: store, Settings: policy.Settings{Family: lb.IPv4},
		Observers: []engine.Observer{d.v4},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	do := func(events ...cluster.Event) {
		for _, ev := range events {
			e.Mark(store.Fold(ev))
		}
	}
	proxy := New(Config{Families: map[lb.Family]func() State{lb.IPv4: func() State {
		st := e.Stats()
		return State{QueuedSince: st.QueuedSince, LastSuccess: st.LastSuccess, Begun: st.Begun}
	}}})
	ready := func() int { return probe(proxy, http.MethodGet, "/readyz").Code }

	const port = 32100
	slice := func(local bool) *cluster.Slice {
		ep := cluster.Endpoint{Addr: netip.MustParseAddr("10.1.1.11"), NodeName: unique.Make("node2"), Ready: true, Serving: true}
		if local {
			ep.NodeName = unique.Make("node1")
		}
		return &cluster.Slice{Name: cluster.Name{Namespace: "shop", Name: "web-x"}, Service: cluster.Name{Namespace: "shop", Name: "web"},
			Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}}, Endpoints: []cluster.Endpoint{ep}}
	}
	service := &cluster.Service{
		Name: cluster.Name{Namespace: "shop", Name: "web"}, Type: cluster.TypeLoadBalancer, ExternalPolicy: cluster.PolicyLocal,
		HealthCheckNodePort: port, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7")},
		Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}},
	}
	blocked, release := faulty.Block()
	do(cluster.ServiceSet{Service: service}, cluster.SliceSet{Slice: slice(false)}, cluster.ServicesListed{Services: []*cluster.Service{service}},
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
	eventually(t, "some tries, all of which fail", func() bool { return faulty.Calls() >= tried+3 })
	if code := ask(); code != 200 {
		t.Errorf("the kernel still sends to the endpoint, and the answer is %d", code)
	}
	faulty.Heal()
	eventually(t, "503", func() bool { return ask() == 503 })
	do(cluster.ServiceGone{Name: service.Name})
	awaitPort(t, d.at(port), false)
}
