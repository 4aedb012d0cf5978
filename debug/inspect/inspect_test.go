package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/debug/changes"
	"kube-proxy/failover"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/policy"
	"kube-proxy/test/cputest"
	"kube-proxy/trace"
)

// world is a proxy without a kernel: a store, a table, and counters of queries.
type world struct {
	store   *cluster.Store
	table   *lb.Table
	queries int
	tracer  *tracer
	ring    *changes.Ring
	*Inspector
}

// tracer is a kernel with scripted answers.
type tracer struct {
	follow []trace.Kernel
	diffs  [][]trace.Difference
	asked  int
	err    error
}

func (l *tracer) TracePacket(context.Context, trace.Packet, mode.Walk) (trace.Kernel, error) {
	l.asked++
	return l.follow[min(l.asked, len(l.follow))-1], l.err
}

func (l *tracer) Differences(_ context.Context, _ *lb.Table, each func(trace.Difference) bool) error {
	l.asked++
	for _, d := range l.diffs[min(l.asked, len(l.diffs))-1] {
		if !each(d) {
			break
		}
	}
	return l.err
}

var settings = policy.Settings{Family: lb.IPv4, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}

func newWorld() *world {
	w := &world{store: cluster.NewStore("n1"), table: &lb.Table{Family: lb.IPv4}, ring: changes.New()}
	w.store.Fold(cluster.NodeSet{
		Node: &cluster.Node{Name: "n1", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}})
	cfg := Config{Store: w.store, Changes: w.ring, Families: []Family{{Family: lb.IPv4,
		Query:    func(f func(*lb.Table)) { w.queries++; f(w.table) },
		Settings: func(cluster.Name) policy.Settings { return settings }}}}
	w.Inspector = New(cfg)
	return w
}

// with gives it a kernel.
func (w *world) with(l *tracer) *world {
	w.tracer, w.cfg.Families[0].Tracer = l, l
	return w
}

// add adds a Service of one port with TCP endpoints; those from notReady on are not ready.
func (w *world) add(namespace, name, ip string, endpoints, notReady int) {
	full := cluster.Name{Namespace: namespace, Name: name}
	svc := &cluster.Service{Name: full, ClusterIPs: []netip.Addr{netip.MustParseAddr(ip)}, Ports: []cluster.ServicePort{
		{Name: "http", Protocol: cluster.TCP, Port: 80}}}
	sl := &cluster.Slice{Name: cluster.Name{Namespace: namespace, Name: name + "-1"}, Service: full,
		Ports: []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}}}
	at := netip.MustParseAddr("100.64.0.1")
	var all []cluster.Endpoint
	for i := range endpoints {
		all = append(all, cluster.Endpoint{Addr: at, Ready: i < notReady, Serving: i < notReady})
		at = at.Next()
	}
	sl.Endpoints = cluster.EndpointsOf(all...)
	w.store.Fold(cluster.Batch{cluster.ServiceSet{Service: svc}, cluster.SliceSet{Slice: sl}})
	w.table.Node = policy.ResolveNode(w.store.Facts(), settings)
	w.table.Replace(lb.Owner{Name: full.String()}, policy.Resolve(w.store.View(full), settings))
}

// The cost of a trace depends neither on the number of Services nor on that of their frontends: it
// needs the same number of table reads and the same memory.
func TestTraceCost(t *testing.T) {
	type cost struct {
		queries int
		allocs  float64
	}
	var costs []cost
	for _, services := range []int{100, 10_000} {
		w := newWorld()
		at := netip.MustParseAddr("10.96.0.1")
		for i := range services {
			w.add(fmt.Sprintf("ns%d", i%50), fmt.Sprintf("s%d", i), at.String(), 3, 3)
			at = at.Next()
		}
		ask := func() {
			a, err := w.Trace(t.Context(), TraceQuery{From: "10.1.0.7", To: "ns7/s57:http"})
			if err != nil || a.Verdict != trace.Balance || len(a.Backends) != 3 {
				t.Fatalf("%d services: %+v, %v", services, a, err)
			}
		}
		ask()
		w.queries = 0
		ask()
		c := cost{queries: w.queries}
		c.allocs = testing.AllocsPerRun(20, ask)
		costs = append(costs, c)
	}
	if costs[0].queries != costs[1].queries || costs[1].allocs > costs[0].allocs+2 {
		t.Errorf("with 100 and 10,000 services: %+v", costs)
	}
}

// Names are accepted as people write them; if one is ambiguous or unknown, the answer lists
// candidates.
func TestNames(t *testing.T) {
	w := newWorld()
	for i := range 12 {
		w.add(fmt.Sprintf("team%02d", i), "web", fmt.Sprintf("10.96.1.%d", i+1), 1, 1)
	}
	w.add("shop", "cart", "10.96.2.1", 1, 1)
	for said, want := range map[string]string{
		"shop/cart": "shop/cart", "cart": "shop/cart", "svc/cart": "shop/cart", "cart.shop": "shop/cart",
		"cart.shop.svc.cluster.local":  "shop/cart",
		"cart.shop.svc.cluster.local.": "shop/cart", "shop/cart:http": "shop/cart", "team03/web:80": "team03/web",
		" cart ": "shop/cart",
		"web":    "ambiguous 10: 12 Services have the name web", "car": "unknown 1: no Service car",
		"shop/web": "unknown 10: no Service shop/web", "": "bad 0: want the name of a Service",
		"x.y.z": "unknown 0: no Service x.y.z", "\x1b[31m<script>": "unknown 0: no Service \x1b",
		"shop/cart:nope": "unknown 1: Service shop/cart has no port nope",
	} {
		d, err := w.Service(said)
		got := fmt.Sprint(err)
		if p := (*Problem)(nil); errors.As(err, &p) {
			got = fmt.Sprintf("%s %d: %s", p.Kind, len(p.Candidates), p.Text)
		} else if err == nil {
			got = d.Namespace + "/" + d.Name
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s, want %s", said, got, want)
		}
	}
}

// A temporary difference is not reported, a permanent one is; the kernel is read at most three
// times.
func TestDifferencesThatStay(t *testing.T) {
	gone := trace.Difference{Key: lb.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Proto: lb.TCP},
		Object: "element 1", Desired: "there"}
	moment := trace.Difference{Object: "element 2", Actual: "there"}
	for name, c := range map[string]struct {
		looks [][]trace.Difference
		want  string
		asked int
	}{
		"nothing":                  {[][]trace.Difference{nil}, "[]", 1},
		"for a moment":             {[][]trace.Difference{{moment}, nil}, "[]", 2},
		"one stays, one comes":     {[][]trace.Difference{{gone}, {gone, moment}, {gone}}, "[element 1]", 3},
		"each time another":        {[][]trace.Difference{{gone}, {moment}}, "[]", 2},
		"one stays, one goes soon": {[][]trace.Difference{{gone, moment}, {gone}}, "[element 1]", 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld().with(&tracer{diffs: c.looks})
			w.add("shop", "web", "10.96.0.1", 1, 1)
			d, err := w.Diff(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var reported []string
			for _, x := range d.Differences {
				reported = append(reported, x.Object)
				if x.Object == "element 1" && (x.Service != "shop/web:http" || x.Key != "10.96.0.1:80/tcp") {
					t.Errorf("%s: whose: %+v", name, x)
				}
			}
			if got := fmt.Sprint(reported); got != c.want || w.tracer.asked != c.asked || d.Frontends != 1 {
				t.Errorf("%s: %s after %d looks at %d rows, want %s after %d", name, got, w.tracer.asked, d.Frontends,
					c.want, c.asked)
			}
		})
	}
}

// The time of a comparison grows linearly with the differences: another program flushes the ruleset
// before a query.
func TestManyDifferences(t *testing.T) {
	ask := func(n int) func() {
		all := make([]trace.Difference, n)
		for i := range all {
			all[i] = trace.Difference{Object: fmt.Sprintf("element %d", i), Desired: "there"}
		}
		return func() {
			synctest.Test(t, func(t *testing.T) { // it waits between two looks
				w := newWorld().with(&tracer{diffs: [][]trace.Difference{all}})
				d, err := w.Diff(t.Context())
				if err != nil || len(d.Differences)+d.More != n {
					t.Fatalf("%d of %d differences are reported, error %v", len(d.Differences)+d.More, n, err)
				}
			})
		}
	}
	if ratio := cputest.Ratio(ask(2500), ask(20_000)); ratio > 30 {
		t.Errorf("8 times as many differences take %.0f times as long", ratio)
	}
}

// The same with a trace: an object that is being written at that moment is no finding.
func TestFindingsThatStay(t *testing.T) {
	right := trace.Kernel{Verdict: trace.Balance,
		Backends: []trace.Backend{{Address: netip.MustParseAddrPort("100.64.0.1:8080"), Share: 1}}, Masquerade: true}
	wrong := trace.Kernel{Verdict: trace.Pass}
	for name, c := range map[string]struct {
		kernel          []trace.Kernel
		findings, asked int
	}{
		"as it should be": {[]trace.Kernel{right}, 0, 1},
		"for a moment":    {[]trace.Kernel{wrong, right}, 0, 2},
		"it stays":        {[]trace.Kernel{wrong}, 1, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld().with(&tracer{follow: c.kernel})
			w.add("shop", "web", "10.96.0.1", 1, 1)
			a, err := w.Trace(t.Context(), TraceQuery{From: "192.0.2.99", To: "web"})
			if err != nil || len(a.Findings) != c.findings || w.tracer.asked != c.asked || a.Kernel == nil {
				t.Errorf("%s: findings %v after %d looks, %v", name, a.Findings, w.tracer.asked, err)
			}
		})
	}
	w := newWorld().with(&tracer{follow: []trace.Kernel{right}, err: errors.New("no memory")})
	w.add("shop", "web", "10.96.0.1", 1, 1)
	if a, err := w.Trace(t.Context(), TraceQuery{From: "node", To: "web"}); err != nil || len(a.Notes) == 0 ||
		!strings.Contains(a.Notes[0], "no memory") || a.Verdict != trace.Balance {
		t.Errorf("where the kernel cannot be read: %+v, %v", a, err)
	}
}

// TestFailoverFindings: the status names what this node does not reach, and what is done about it;
// of many silent endpoints, the first (FO-05, FO-07).
func TestFailoverFindings(t *testing.T) {
	node := failover.NodeStatus{Name: "node-b", For: 12 * time.Second, Endpoints: 41}
	at := netip.MustParseAddrPort("100.64.0.9:80")
	gone := failover.EndpointStatus{Address: at, Unreachable: true, Result: "no route", For: 5 * time.Second}
	quiet := failover.EndpointStatus{Address: at, Result: "silent", Why: "no earlier probe succeeded"}
	for name, c := range map[string]struct {
		status failover.Status
		action string
		want   []string
	}{
		"a node": {failover.Status{Nodes: []failover.NodeStatus{node}}, "avoid",
			[]string{"node-b is unreachable from here since 12s: 41 endpoints avoided"}},
		"a node, with rescue": {failover.Status{Nodes: []failover.NodeStatus{node}}, "rescue",
			[]string{"node-b is unreachable from here since 12s: 41 endpoints affected"}},
		"endpoints": {failover.Status{Endpoints: []failover.EndpointStatus{gone, quiet}}, "avoid",
			[]string{"100.64.0.9:80 is unreachable from here since 5s (no route)",
				"100.64.0.9:80 is silent for clients and not avoided: no earlier probe succeeded"}},
		"own link": {failover.Status{OwnLink: true}, "avoid",
			[]string{"most nodes that this node probed are unreachable from here: its own link may be down, so no " +
				"endpoint is avoided"}},
		"many": {failover.Status{Endpoints: slices.Repeat([]failover.EndpointStatus{gone}, maxSilentNamed+7)}, "avoid",
			append(slices.Repeat([]string{"100.64.0.9:80 is unreachable from here since 5s (no route)"},
				maxSilentNamed), "7 more endpoints do not answer either")},
		"nothing": {failover.Status{}, "avoid", nil},
	} {
		w := newWorld()
		w.cfg.Failover = func() (failover.Status, string) { return c.status, c.action }
		var got []string
		for _, f := range w.Status().Findings {
			if f.About == "failover" {
				got = append(got, f.Text)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A Service of 5,000 endpoints is reported completely.
func TestManyEndpoints(t *testing.T) {
	w := newWorld()
	w.add("shop", "big", "10.96.0.1", 5000, 4999)
	d, err := w.Service("big")
	if err != nil || len(d.Families) != 1 || len(d.Families[0].Endpoints) != 5000 || d.Endpoints.All != 5000 ||
		d.Endpoints.Ready != 4999 {
		t.Fatalf("%v: %+v", err, d.Endpoints)
	}
	out := 0
	for _, e := range d.Families[0].Endpoints {
		if len(e.In) == 0 {
			out++
			if e.Why == "" {
				t.Errorf("it does not say why %s is out", e.Address)
			}
		}
	}
	if out != 1 || d.Families[0].Ports[0].InCluster != 4999 {
		t.Errorf("%d out, %d in", out, d.Families[0].Ports[0].InCluster)
	}
	a, err := w.Trace(t.Context(), TraceQuery{From: "node", To: "big"})
	if err != nil || len(a.Backends) != 4999 {
		t.Errorf("trace: %d backends, %v", len(a.Backends), err)
	}
}

// The state of a Service in a list is the most serious one, with the reason in a few words.
func TestStates(t *testing.T) {
	w := newWorld()
	w.add("shop", "ok", "10.96.0.1", 1, 1)
	w.add("shop", "empty", "10.96.0.2", 1, 0)
	w.add("shop", "twin", "10.96.0.1", 1, 1) // the address of ok
	w.store.Fold(cluster.ServiceSet{Service: &cluster.Service{Name: cluster.Name{Namespace: "shop", Name: "headless"}}})
	want := "empty no-backends, headless not-proxied, ok ok, twin conflict"
	var got []string
	_, err := w.Services(func(s Service) error {
		got = append(got, s.Name+" "+string(s.State))
		if (s.Why == "") != (s.State == OK) {
			t.Errorf("%s is %s: %q", s.Name, s.State, s.Why)
		}
		if s.Name == "twin" && (s.Lost != 1 || !strings.Contains(s.Why, "shop/ok")) {
			t.Errorf("%+v", s)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("%s, want %s", text, want)
	}
}

// A filter selects frontends by what people know of them.
func TestTableFilters(t *testing.T) {
	w := newWorld()
	w.add("shop", "web", "10.96.0.1", 1, 1)
	w.add("blog", "web", "10.96.0.2", 1, 1)
	w.add("blog", "db", "10.97.0.1", 1, 1)
	for filter, want := range map[string]string{
		"": "blog/db:http blog/web:http shop/web:http", "blog/": "blog/db:http blog/web:http",
		"10.96.0.2": "blog/web:http", "10.96.0.0/24": "blog/web:http shop/web:http",
		"DB": "blog/db:http", "clusterip": "blog/db:http blog/web:http shop/web:http", "nodeport": "",
		":80/tcp": "blog/db:http blog/web:http shop/web:http", "\x00": "",
	} {
		var got []string
		if err := w.Table(t.Context(), filter, func(rows []Frontend) bool {
			for _, r := range rows {
				got = append(got, r.Service)
			}
			return true
		}); err != nil {
			t.Errorf("%q: %v", filter, err)
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%q: %s, want %s", filter, text, want)
		}
	}
}

// A list of changed Services has each once in its current state, deleted ones by name, and reports
// when all must be queried again.
func TestServicesSince(t *testing.T) {
	w := newWorld()
	w.add("shop", "web", "10.96.0.1", 1, 1)
	at := w.Newest()
	since := func(want string) {
		t.Helper()
		var names []string
		s, err := w.ServicesSince(at, func(s Service) error { names = append(names, s.Name); return nil })
		if got := fmt.Sprint(names, s.Gone, s.Again); got != want || err != nil {
			t.Errorf("since %d: %s, %v; want %s", at, got, err, want)
		}
		at = s.Newest
	}
	entry := changes.Entry{Kind: changes.Service, Family: lb.IPv4, Service: ParseName("shop/web"), Services: 1,
		What: changes.ServiceChanged, Done: 2, Learned: 1}
	other := entry
	other.Service, other.Elsewhere = ParseName("shop/gone"), true
	since("[] [] false")
	w.ring.Add(entry)
	w.ring.Add(entry)
	w.ring.Add(other) // no effect on the family, but a list has it
	since("[web] [shop/gone] false")
	since("[] [] false")
	w.ring.Add(changes.Entry{Kind: changes.Failed, Why: "no memory"})
	since("[] [] false")
	w.ring.Add(changes.Entry{Kind: changes.Reset})
	since("[] [] true")
	for range 5000 { // more than there are places
		w.ring.Add(entry)
	}
	since("[] [] true")
	at += 1000 // of a process whose clock was ahead
	since("[] [] true")
	if all := w.Changes(at - 3); len(all.Changes) != 3 || all.Newest != at {
		t.Errorf("who asks what changed reads %+v", all)
	}
}

// A list whose names were read earlier reports so: a Service added since is among the changes after
// it.
func TestServicesAreAsOfTheirNames(t *testing.T) {
	w := newWorld()
	w.add("shop", "web", "10.96.0.1", 1, 1)
	w.Names()
	w.names.until = time.Now().Add(time.Hour) // the names are not read again for so long
	w.add("shop", "late", "10.96.0.2", 1, 1)
	w.ring.Add(changes.Entry{Kind: changes.Service, Family: lb.IPv4, Service: ParseName("shop/late"), Services: 1,
		What: changes.ServiceCreated, Done: 2, Learned: 1})
	var names []string
	each := func(s Service) error { names = append(names, s.Name); return nil }
	all, _ := w.Services(each)
	if since, _ := w.ServicesSince(all.Newest, each); fmt.Sprint(names) != "[web late]" || since.Again {
		t.Errorf("the list and what came after it have %v", names)
	}
	w.names.until = time.Time{}
	if all, _ := w.Services(func(Service) error { return nil }); all.Newest != w.Newest() {
		t.Errorf("a list that is read now is as of %d, the newest is %d", all.Newest, w.Newest())
	}
}

// A query for the changes of a Service means an existing one, or a deleted one with recorded
// changes; any other name is an error.
func TestChangesOfAService(t *testing.T) {
	w := newWorld()
	w.add("shop", "web", "10.96.0.1", 1, 1)
	w.add("blog", "web", "10.96.0.2", 1, 1)
	w.add("shop", "quiet", "10.96.0.3", 1, 1)
	for _, name := range []string{"shop/web", "shop/gone", "blog/twice", "shop/twice", "blog/quiet"} {
		full := ParseName(name)
		w.ring.Add(changes.Entry{Kind: changes.Service, Family: lb.IPv4, Service: full, Services: 1,
			What: changes.ServiceChanged, Done: 2, Learned: 1})
	}
	w.ring.Add(changes.Entry{Kind: changes.Loaded, Family: lb.IPv4, Done: 3})
	for said, want := range map[string]string{
		"shop/web": "shop/web: 2", "web": "2 Services have the name web: add the namespace [blog/web shop/web]",
		"blog/web": "blog/web: 1",
		"quiet":    "shop/quiet: 1", "gone": "shop/gone: 2", "shop/gone:http": "shop/gone: 2",
		"gone.shop.svc": "shop/gone: 2", "blog/quiet": "blog/quiet: 2",
		"twice": "2 Services that are gone have the name twice: add the namespace [blog/twice shop/twice]",
		"nope": "no Service nope; Services with the label service.kubernetes.io/service-proxy-name belong to " +
			"another proxy and are not known here []",
		"": "want the name of a Service, such as shop/web []",
	} {
		name, err := w.Changed(said)
		got := fmt.Sprintf("%s: %d", name, len(w.Changes(0).Of(name).Changes))
		if p := (*Problem)(nil); errors.As(err, &p) {
			got = fmt.Sprint(p.Text, " ", p.Candidates)
		}
		if got != want {
			t.Errorf("%q: %s, want %s", said, got, want)
		}
	}
}

// The fields that issue 14 promises are present.
func TestTraceJSON(t *testing.T) {
	w := newWorld().with(&tracer{follow: []trace.Kernel{{Verdict: trace.Balance}}})
	w.add("shop", "web", "10.96.0.1", 3, 3)
	a, err := w.Trace(t.Context(), TraceQuery{From: "10.1.0.7", To: "web:http"})
	text, e := json.Marshal(a)
	for _, field := range []string{`"service":"shop/web:http"`, `"verdict":"balance"`, `"masquerade":false`, `"why":["`,
		`"kernel":{`, `"backends":[{"address":"100.64.0.1:8080","share":0.33`} {
		if !strings.Contains(string(text), field) {
			t.Errorf("no %s (%v) in\n%s", field, errors.Join(err, e), text)
		}
	}
}
