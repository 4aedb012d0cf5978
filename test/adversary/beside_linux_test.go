package adversary_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/conntrack"
	"kube-proxy/debug/changes"
	"kube-proxy/debug/inspect"
	"kube-proxy/debug/traffic"
	"kube-proxy/engine"
	"kube-proxy/health"
	"kube-proxy/internal/sockets"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/policy"
	"kube-proxy/status"
)

// beside holds the parts beside the engine: observers, metrics and the handlers of queries.
type beside struct {
	metrics   *status.Metrics
	traffic   *traffic.Account
	inspector *inspect.Inspector
}

// largest number of Services with their own series.
const ownSeries = 10

func (s *bystander) newBeside() *beside {
	modes := all.Modes()
	b := &beside{
		metrics: status.NewMetrics(status.MetricsConfig{Modes: modes, Mode: "nftables", Version: "v1.37.0",
			Changes:       func() (uint64, uint64) { c := s.store.Changes(); return c.Services, c.Slices },
			EventsDropped: func() uint64 { return 0 }, Connected: func() bool { return true },
			Snapshot: func() status.Snapshot {
				return status.Snapshot{}
			},
			Conntrack: func() (uint64, uint64, bool) { return 0, 0, false }, Refused: func(string) int { return 0 },
			Failover:     func() status.Failover { return status.Failover{} },
			Overridden:   func() bool { return false },
			NodeProblems: func() map[status.NodeProblem]int { return nil },
			PortsTaken:   func() (int, int) { return 0, 0 },
			NotOK:        func(int, func(string, string, string, int)) {}}),
		traffic: traffic.New(traffic.Config{Counter: busy{s, new(uint64)}, Query: s.engine.Query, Services: ownSeries}),
		inspector: inspect.New(inspect.Config{Store: s.store, Offline: true, Changes: s.ring,
			Families: []inspect.Family{{
				Family: s.family, Query: s.engine.Query, Stats: s.engine.Stats,
				Settings: func(cluster.Name) policy.Settings {
					return s.settings
				}}}}),
	}
	b.metrics.AddFamily(s.family.String(), s.engine.Stats, func(emit mode.Emit) {
		if err := b.traffic.Each(s.t.Context(), func(ns, name string, t mode.Traffic) {
			emit(mode.ServiceConnections, float64(t.Connections), ns, name)
		}); err != nil {
			s.errorf("traffic: %v", err)
		}
	})
	return b
}

// busy is a plane in which each frontend has traffic.
type busy struct {
	s        *bystander
	readings *uint64
}

func (busy) Counts() bool { return true }

func (b busy) Traffic(_ context.Context, f func(mode.Count)) error {
	*b.readings++
	for k := range b.s.plane.Frontends() {
		f(mode.Count{CounterID: mode.CounterID{Frontend: k}, Traffic: mode.Traffic{Connections: 1000 * *b.readings}})
	}
	return nil
}

// observer is one of the process, with its allocations for reported changes.
type observer struct {
	name string
	engine.Observer
	allocated int64
}

func (o *observer) Applied(changes []lb.Change) {
	o.allocated += allocations(func() { o.Observer.Applied(changes) })
}

// newObservers makes the process's observers. Their workers do not run: a change is in force
// without them.
func newObservers(t *testing.T, f lb.Family) []*observer {
	cleaner, err := conntrack.New(conntrack.Config{Family: f})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := sockets.New(sockets.Config{Collides: func(sockets.Collision) {},
		Local: func() ([]netip.Addr, error) {
			return nodeAddrs, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // they close what they have opened
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		cleaner.Run(ctx)
		watcher.Run(ctx)
	})
	return []*observer{
		{name: "conntrack", Observer: cleaner},
		{name: "sockets", Observer: watcher.Observer(f)},
		{name: "health", Observer: health.NewServices(health.ServicesConfig{Log: slog.New(slog.DiscardHandler)}).
			Observer(f)},
	}
}

// asked is the cost of a scrape and of queries about the stranger's Service.
type asked struct {
	series, scrape, service, trace, state, answer int
	delivery                                      delivery // of an event
}

func (s *bystander) ask() (a asked) {
	for range 3 { // a series needs a second reading, and readings are not repeated at once
		time.Sleep(time.Minute)
		if err := s.beside.traffic.Each(s.t.Context(), func(string, string, mode.Traffic) {}); err != nil {
			s.errorf("traffic: %v", err)
		}
	}
	rec := httptest.NewRecorder()
	s.beside.metrics.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for line := range bytes.Lines(rec.Body.Bytes()) {
		if bytes.HasPrefix(line, []byte("kubeproxy_")) {
			a.series++
			a.scrape += len(line)
		}
	}
	i := s.beside.inspector
	needs := func(ask func() (any, error)) int {
		var out any
		needed := testing.AllocsPerRun(10, func() {
			var err error
			out, err = ask()
			if err != nil {
				s.errorf("a question fails: %v", err)
			}
		})
		a.answer = max(a.answer, len(fmt.Sprintf("%+v", out))) // not counted: it is the test's own work
		return int(needed)
	}
	name := honestName(aside).String()
	a.service = needs(func() (any, error) { return i.Service(name) })
	a.trace = needs(func() (any, error) {
		return i.Trace(s.t.Context(), inspect.TraceQuery{From: "10.1.3.3", To: clusterIPs(1 + aside)[0].String() +
			":80"})
	})
	a.state = needs(func() (any, error) { return i.Status(), nil })
	return a
}

// answers compares the current cost of queries with that without the tenant.
func (s *bystander) answers() {
	was, is := s.alone, s.ask()
	for _, x := range []struct {
		stage, unit string
		was, is     int
		most        int
	}{
		{"metrics", "series", was.series, is.series, was.series},
		{"metrics", "bytes of a scrape", was.scrape, is.scrape, was.scrape + 4096},
		{"admin API", "allocations for a Service", was.service, is.service, was.service + was.service/10 + 20},
		{"admin API", "allocations for a trace", was.trace, is.trace, was.trace + was.trace/10 + 20},
		{"admin API", "allocations for the status", was.state, is.state, was.state + was.state/10 + 20},
		{"admin API", "bytes of an answer", was.answer, is.answer, was.answer + was.answer/2 + 200},
	} {
		if x.is > x.most {
			s.errorf("%s: %q with %d Services changed at once: %d %s about a stranger's Service, and %d without the "+
				"tenant; want at most %d",
				x.stage, s.shape.Name, s.n, x.is, x.unit, x.was, x.most)
		}
	}
}

// remembered checks that the stranger's changes are still in the ring of changes, and that his
// losses are reported.
func (s *bystander) remembered(since uint64) {
	entries, _ := s.ring.After(since)
	if !slices.ContainsFunc(entries, func(e changes.Entry) bool { return e.Service == honestName(aside) }) {
		s.errorf("changes: %q with %d Services changed at once: the stranger's change was pushed out by %d others",
			s.shape.Name, s.n, len(entries))
	}
	s.lost = map[string]int{}
	lines := s.log.lines.Load()
	contested := honestService(aside)
	contested.ExternalIPs = []netip.Addr{v4(192, 0, 2, 250)}
	older := honestService(5)
	older.Created, older.ExternalIPs = 1, contested.ExternalIPs
	s.do(cluster.ServiceSet{Service: older}, cluster.ServiceSet{Service: contested})
	s.settle()
	if s.lost[honestName(aside).String()] == 0 || s.log.lines.Load() == lines {
		s.errorf("events: %q with %d Services changed at once: no report to the stranger that his Service lost an "+
			"address", s.shape.Name, s.n)
	}
}
