package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/api"
	"kube-proxy/debug/changes"
	"kube-proxy/debug/inspect"
	"kube-proxy/engine"
	"kube-proxy/failover"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/nodetrace"
	"kube-proxy/policy"
	"kube-proxy/trace"
)

// world is the data of the pages in tests: a Store, the table of its Services, and an Inspector of
// both.
type world struct {
	t         testing.TB
	store     *cluster.Store
	mu        sync.Mutex // protects the table, as in the engine
	table     lb.Table
	ring      *changes.Ring
	settings  policy.Settings
	stats     engine.Stats
	looked    int                // number of reads by the inspector
	rest      *trace.Node        // what the rest of the node does; nil without inspection
	followed  nodetrace.Question // the last one
	failover  failover.Status
	inspector *inspect.Inspector
	h         *Handler
}

// newWorld returns a world with a node and these Services, each with an endpoint on this node.
func newWorld(t testing.TB, names ...cluster.Name) *world {
	w := &world{t: t, store: cluster.NewStore("node1"), ring: changes.New(),
		settings: policy.Settings{Family: lb.IPv4}}
	w.stats.Begun = true
	w.store.Fold(cluster.NodeSet{Node: &cluster.Node{Name: "node1",
		Addrs: []netip.Addr{netip.MustParseAddr("172.18.0.2")}, Zone: "zone-a"}})
	w.store.Fold(cluster.ServicesListed{})
	w.store.Fold(cluster.SlicesListed{})
	i := inspect.New(inspect.Config{
		Version: "v1.37.0", Mode: mode.Mode{Name: "nftables"}, Configured: "nftables", Store: w.store, Changes: w.ring,
		Follow: func(_ context.Context, q nodetrace.Question) (trace.Node, error) {
			if w.followed = q; w.rest == nil {
				return trace.Node{}, errors.New("this test has no node")
			}
			return *w.rest, nil
		},
		Failover: func() (failover.Status, string) { return w.failover, "avoid" },
		Pods: func(_ context.Context, pod cluster.Name) (map[cluster.Name][]netip.Addr, error) {
			if pod.Name != "web-1" {
				return nil, nil
			}
			return map[cluster.Name][]netip.Addr{pod: {netip.MustParseAddr("100.64.0.7")}}, nil
		},
		Families: []inspect.Family{{
			Family: lb.IPv4, Query: w.query, Stats: func() engine.Stats { return w.stats },
			Settings: func(cluster.Name) policy.Settings { return w.settings },
		}},
	})
	w.inspector = i
	w.h = New(api.Local(i))
	for k, n := range names {
		w.service(n, k, 1)
	}
	return w
}

func (w *world) query(f func(*lb.Table)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looked++
	f(&w.table)
}

// service sets Service number k, at 10.96.x.y:80, with so many endpoints on this node.
func (w *world) service(name cluster.Name, k, endpoints int) {
	s := &cluster.Service{Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(k >> 8),
		byte(k)})}, Ports: []cluster.ServicePort{{Name: "http", Protocol: cluster.TCP, Port: 80}}}
	slice := &cluster.Slice{Name: cluster.Name{Namespace: name.Namespace, Name: name.Name + "-1"}, Service: name,
		Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}}}
	for e := range endpoints {
		slice.Endpoints = slice.Endpoints.With(cluster.Endpoint{Addr: netip.AddrFrom4([4]byte{100, 64 + byte(e>>16),
			byte(e >> 8), byte(e)}), Where: cluster.At("node1", ""), Ready: true, Serving: true})
	}
	w.store.Fold(cluster.ServiceSet{Service: s})
	w.store.Fold(cluster.SliceSet{Slice: slice})
	w.replace(name, policy.Resolve(w.store.View(name), w.settings))
	w.notify(name)
}

// gone deletes a Service.
func (w *world) gone(name cluster.Name) {
	w.store.Fold(cluster.ServiceGone{Name: name})
	w.replace(name, nil)
	w.notify(name)
}

// replace sets the frontends of a Service under the lock.
func (w *world) replace(name cluster.Name, rows []*lb.Frontend) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.table.Replace(lb.Owner{Name: name.String()}, rows)
}

// notify adds a change of a Service to the ring.
func (w *world) notify(name cluster.Name) {
	now := time.Now()
	w.ring.Add(changes.Entry{Kind: changes.Service, Family: lb.IPv4, Service: name, What: changes.ServiceChanged,
		Services: 1, Frontends: 1, Learned: now.Add(-3 * time.Millisecond).UnixNano(), Done: now.UnixNano()})
}

// ask sends a request to a path below the page's address.
func (w *world) ask(method, target string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, w.h.Path()+target, nil)
	if change != nil {
		change(r)
	}
	a := httptest.NewRecorder()
	w.h.ServeHTTP(a, r)
	return a
}

// get requests a page, and checks the status.
func (w *world) get(target string, code int) string {
	w.t.Helper()
	a := w.ask("GET", target, nil)
	if a.Code != code {
		w.t.Errorf("%s: %d, want %d:\n%s", target, a.Code, code, a.Body)
	}
	return a.Body.String()
}

// has fails the test if a page lacks a text.
func has(t testing.TB, page, text string) {
	t.Helper()
	if !strings.Contains(page, text) {
		t.Errorf("no %q in:\n%.6000s", text, page)
	}
}

// many returns names of Services.
func many(n int) []cluster.Name {
	all := make([]cluster.Name, n)
	for k := range all {
		all[k] = cluster.Name{Namespace: "ns", Name: fmt.Sprintf("svc-%05d", k)}
	}
	return all
}
