package status_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	k8s "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/policy"
	"kube-proxy/source/kube"
	"kube-proxy/status"
	"kube-proxy/test/fake"
	"kube-proxy/test/golden"
)

func TestPage(t *testing.T) {
	golden.Equal(t, "../docs/metrics.md", status.MetricsPage(all.Modes()))
}

// expected is one line of testdata/metrics.tsv.
type expected struct{ row, name, typ, labels, modes, buckets string }

// list reads testdata/metrics.tsv.
func list(t *testing.T) (all []expected) {
	t.Helper()
	f, err := os.Open("testdata/metrics.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		c := strings.Split(lines.Text(), "\t")
		if len(c) != 6 {
			t.Fatalf("%q has %d cells, want 6", lines.Text(), len(c))
		}
		for i := range c {
			c[i] = strings.Trim(c[i], "-")
		}
		all = append(all, expected{c[0], c[1], c[2], c[3], c[4], c[5]})
	}
	if len(all) < 30 {
		t.Fatalf("%d metrics in the list", len(all))
	}
	return all
}

// proxy is two engines over fake planes, with their metrics on a real port.
type proxy struct {
	t       *testing.T
	store   *cluster.Store
	engines []*engine.Engine
	planes  []*fake.Faulty
	metrics *status.Metrics
	url     string
}

var discard = slog.New(slog.NewTextHandler(io.Discard, nil))

func newProxy(t *testing.T, mode string) *proxy {
	t.Helper()
	p := &proxy{t: t, store: cluster.NewStore("n1")}
	p.metrics = status.FillMetrics(status.MetricsConfig{
		Modes: all.Modes(), Mode: mode, Configured: "best", Reason: "test", Version: "v1.37.2",
		Gates: []status.Gate{{Name: "AllAlpha", Stage: "ALPHA"}, {Name: "ComponentSLIs", On: true}},
		Changes: func() (uint64, uint64) {
			c := p.store.Changes()
			return c.Services, c.Slices
		},
		EventsDropped: func() uint64 { return 7 },
		Connected:     func() bool { return true },
		Conntrack:     func() (uint64, uint64, bool) { return 3, 4, true },
		Snapshot:      func() status.Snapshot { return status.Snapshot{} },
		NodeProblems: func() map[status.NodeProblem]int {
			return map[status.NodeProblem]int{{Reason: "ip-forward", Severity: "error"}: 1}
		},
		Failover: func() status.Failover {
			return status.Failover{Notices: map[string]uint64{"retransmission": 31},
				Probes: map[string]uint64{"silent": 32}, Rescued: 33, Reset: 34, AvoidedAlone: 35, AvoidedByNode: 36,
				UnreachableNodes: 37}
		},
		Refused:    func(family string) int { return len(family) },
		PortsTaken: func() (int, int) { return 5, 6 },
		NotOK: func(most int, each func(namespace, state, severity string, n int)) {
			each("shop", "no-backends", "warning", most)
		},
	})
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		plane := fake.NewFaulty(fake.New(fam), 1)
		p.planes = append(p.planes, plane)
		e := engine.New(engine.Config{
			Family: fam, Plane: plane, Store: p.store, Settings: policy.Settings{Family: fam}, Log: discard,
			Written:    func(w engine.Write) { p.metrics.Written(fam.String(), w) },
			Programmed: func(took []time.Duration) { p.metrics.Programmed(fam.String(), took) },
		})
		p.engines = append(p.engines, e)
		p.metrics.AddFamily(fam.String(), e.Stats, measure)
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	p.url = serve(t, status.ServerConfig{Metrics: p.metrics, Mode: mode}, nil)
	return p
}

// measure is a plane that emits all metrics of all modes.
func measure(emit mode.Emit) {
	for _, m := range all.Modes() {
		for _, x := range m.Metrics {
			switch {
			case x.Name == mode.ServiceConnections, x.Name == mode.ServiceBytes:
				emit(x.Name, 1, "shop", "web")
			case slices.Contains(x.Labels, "table"):
				emit(x.Name, 1, "filter")
				emit(x.Name, 2, "nat")
			case x.Help != "":
				var values []string
				for _, label := range x.Labels {
					if label != "ip_family" {
						values = append(values, "some "+label)
					}
				}
				emit(x.Name, 0, values...)
			}
		}
	}
}

// do folds events, and waits until they are in force, or cannot be.
func (p *proxy) do(events ...cluster.Event) {
	p.t.Helper()
	for _, ev := range events {
		d := p.store.Fold(ev)
		for _, e := range p.engines {
			e.Mark(d)
		}
	}
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		ready := true
		for _, e := range p.engines {
			s := e.Stats()
			ready = ready && (s.Settled || len(s.Failing) > 0)
		}
		if ready {
			return
		}
		if time.Now().After(limit) {
			p.t.Fatalf("not settled: %+v", p.engines[0].Stats())
		}
	}
}

func get(t *testing.T, url string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req) // redirects are answers too
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func (p *proxy) scrape() map[string]*dto.MetricFamily {
	p.t.Helper()
	res, body := get(p.t, p.url+"/metrics")
	if res.StatusCode != http.StatusOK {
		p.t.Fatalf("/metrics: %s\n%s", res.Status, body)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

// value returns the value of the one sample with these labels, or the count of a histogram.
func value(t *testing.T, all map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	t.Helper()
	if all["kubeproxy_"+name] == nil {
		t.Errorf("no metric %s", name)
		return -1
	}
	for _, m := range all["kubeproxy_"+name].Metric {
		var have []string
		for _, l := range m.Label {
			have = append(have, l.GetValue())
		}
		if !slices.Equal(have, labels) {
			continue
		}
		switch {
		case m.Counter != nil:
			return m.Counter.GetValue()
		case m.Gauge != nil:
			return m.Gauge.GetValue()
		case m.Histogram != nil:
			return float64(m.Histogram.GetSampleCount())
		}
	}
	t.Errorf("%s has no sample %v: %v", name, labels, all["kubeproxy_"+name].Metric)
	return -1
}

func service(i int) *cluster.Service {
	return &cluster.Service{
		Name: cluster.Name{Namespace: "shop", Name: fmt.Sprintf("s%d", i)}, Created: int64(i),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}),
			netip.MustParseAddr(fmt.Sprintf("fd00:1::%x", i+1))},
		Ports: []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
	}
}

func slice(i, endpoints int, node string, trigger time.Time) *cluster.Slice {
	s := &cluster.Slice{Name: service(i).Name, Service: service(i).Name,
		Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}}}
	if !trigger.IsZero() {
		s.Trigger = trigger.UnixNano()
	}
	for k := range endpoints {
		s.Endpoints = s.Endpoints.With(cluster.Endpoint{
			Addr:  netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(k)}),
			Where: cluster.At(node, ""), Ready: true, Serving: true})
	}
	return s
}

// exercise has everything happen once.
func (p *proxy) exercise() {
	p.do(cluster.ServicesListed{Services: []*cluster.Service{service(1), service(2)}},
		cluster.SlicesListed{Slices: []*cluster.Slice{slice(1, 1, "n1", time.Now())}})
	p.do(cluster.SliceSet{Slice: slice(1, 2, "n1", time.Now())})
	p.metrics.HealthAnswered("/healthz", 200)
	p.metrics.HealthAnswered("/healthz", 503)
	p.metrics.HealthAnswered("/livez", 200)
	p.metrics.HealthAnswered("/readyz", 200)
	for _, f := range []string{"IPv4", "IPv6"} {
		p.metrics.Cleaned(f, time.Second, 2, 3)
		p.metrics.Programmed(f, []time.Duration{time.Second})
		p.metrics.Avoided(time.Second)
		p.metrics.Written(f, engine.Write{Verb: "setnode"})
	}
}

// Each of our metrics has the name, type, labels and buckets of the list, in the modes that the
// list names, and there is no other (MT-01 to MT-19), so not MT-20.
func TestEveryMetric(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace", "kernelspace"} {
		t.Run(mode, func(t *testing.T) {
			p := newProxy(t, mode)
			p.exercise()
			all := p.scrape()
			left := maps.Clone(all)
			for _, want := range list(t) {
				have := all[want.name]
				delete(left, want.name)
				if want.modes != "all" && !slices.Contains(strings.Split(want.modes, ","), mode) {
					if have != nil {
						t.Errorf("%s %s is there in mode %s", want.row, want.name, mode)
					}
					continue
				}
				if have == nil {
					t.Errorf("%s %s is missing", want.row, want.name)
					continue
				}
				compare(t, want, have)
			}
			for name := range left {
				if strings.HasPrefix(name, "kubeproxy_") {
					t.Errorf("%s is not in the list", name)
				}
			}
		})
	}
}

func compare(t *testing.T, want expected, have *dto.MetricFamily) {
	t.Helper()
	if typ := strings.ToLower(have.GetType().String()); typ != want.typ {
		t.Errorf("%s %s is a %s, want %s", want.row, want.name, typ, want.typ)
	}
	if !strings.HasPrefix(have.GetHelp(), "[ALPHA] ") || len(have.GetHelp()) < 20 {
		t.Errorf("%s: help %q", want.name, have.GetHelp())
	}
	labels := strings.FieldsFunc(want.labels, func(r rune) bool { return r == ',' })
	slices.Sort(labels)
	for _, m := range have.Metric {
		var names []string
		for _, l := range m.Label {
			names = append(names, l.GetName())
			want := map[string]string{"ip_family": "IPv4 IPv6", "table": "filter nat",
				"traffic_policy": "internal external"}[l.GetName()]
			if want != "" && !slices.Contains(strings.Fields(want), l.GetValue()) {
				t.Errorf("%s: label %s=%q, want one of %s", have.GetName(), l.GetName(), l.GetValue(), want)
			}
		}
		slices.Sort(names)
		if !slices.Equal(names, labels) {
			t.Errorf("%s %s has labels %v, want %v", want.row, want.name, names, labels)
		}
		if want.buckets == "" {
			continue
		}
		var bounds []string
		for _, b := range m.Histogram.Bucket {
			bounds = append(bounds, strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
		}
		if got := strings.Join(bounds, " "); got != want.buckets+" +Inf" {
			t.Errorf("%s %s has the buckets\n%s, want\n%s +Inf", want.row, want.name, got, want.buckets)
		}
	}
	if want.name == "kubeproxy_network_programming_duration_seconds" && len(strings.Fields(want.buckets)) != 80 {
		t.Errorf("MT-04 has 80 bounds, the list %d", len(strings.Fields(want.buckets)))
	}
}

// The metrics have the values of the events.
func TestValues(t *testing.T) {
	p := newProxy(t, "nftables")
	all := p.scrape()
	if v := value(t, all, "sync_proxy_rules_last_timestamp_seconds", "IPv4"); v != 0 {
		t.Errorf("last sync before the first at %v", v)
	}
	begin := float64(time.Now().UnixNano()) / 1e9
	p.exercise()
	local := service(3)
	local.InternalPolicy, local.ExternalPolicy, local.Type = cluster.PolicyLocal, cluster.PolicyLocal,
		cluster.TypeNodePort
	local.Ports[0].NodePort = 30080
	external := service(4)
	external.ExternalPolicy, external.ExternalIPs = cluster.PolicyLocal, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	p.do(cluster.ServiceSet{Service: local}, cluster.SliceSet{Slice: slice(3, 2, "elsewhere", time.Time{})},
		cluster.ServiceSet{Service: external}, cluster.SliceSet{Slice: slice(4, 2, "elsewhere", time.Time{})})
	conflict := service(5)
	conflict.ClusterIPs = service(1).ClusterIPs
	p.do(cluster.ServiceSet{Service: conflict})
	p.planes[0].Refuse(lb.Key{Addr: service(2).ClusterIPs[0], Port: 80, Proto: lb.TCP})
	p.do(cluster.SliceSet{Slice: slice(2, 3, "n1", time.Now())})
	all = p.scrape()
	for _, x := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"network_programming_duration_seconds", []string{"IPv4"}, 2}, // one by hand; not the first list and failures
		{"sync_full_proxy_rules_duration_seconds", []string{"IPv6"}, 1},
		{"sync_proxy_rules_endpoint_changes_total", nil, 5},
		{"sync_proxy_rules_endpoint_changes_pending", nil, 1},
		{"sync_proxy_rules_service_changes_total", nil, 5},
		{"sync_proxy_rules_service_changes_pending", nil, 0},
		{"sync_proxy_rules_no_local_endpoints_total", []string{"IPv4", "internal"}, 1},
		{"sync_proxy_rules_no_local_endpoints_total", []string{"IPv4", "external"}, 2},
		{"sync_proxy_rules_no_local_endpoints_total", []string{"IPv6", "external"}, 0},
		{"sync_proxy_rules_nftables_cleanup_failures_total", []string{"IPv4"}, 0},
		{"proxy_healthz_total", []string{"200"}, 1},
		{"proxy_healthz_total", []string{"503"}, 1},
		{"proxy_livez_total", []string{"200"}, 1},
		{"conntrack_reconciler_sync_duration_seconds", []string{"IPv6"}, 1},
		{"conntrack_reconciler_deleted_entries_total", []string{"IPv6"}, 3},
		{"conntrack_reconciler_dumps_total", []string{"IPv6"}, 2},
		{"mode_info", []string{"best", "nftables", "test"}, 1}, // labels by name: asked, mode, reason
		{"contests_total", []string{"IPv6"}, 1},
		{"rows_failing", []string{"IPv4"}, 1},
		{"rows_pending", []string{"IPv4"}, 1},
		{"services_refused_addresses", []string{"IPv6"}, 4},
		{"failover_notices_total", []string{"retransmission"}, 31},
		{"failover_probes_total", []string{"silent"}, 32},
		{"failover_rescued_connections_total", nil, 33},
		{"failover_reset_connections_total", nil, 34},
		{"failover_avoided_endpoints", []string{"endpoint"}, 35},
		{"failover_avoided_endpoints", []string{"node"}, 36},
		{"failover_unreachable_nodes", nil, 37},
		{"ports_taken", []string{"node-port"}, 5},
		{"ports_taken", []string{"node-address"}, 6},
		{"services_not_ok", []string{"shop", "warning", "no-backends"}, 50},
		{"contested_keys", []string{"IPv6"}, 1},
		{"events_dropped_total", nil, 7},
	} {
		if got := value(t, all, x.name, x.labels...); got != x.want {
			t.Errorf("%s%v = %v, want %v", x.name, x.labels, got, x.want)
		}
	}
	full := value(t, all, "sync_full_proxy_rules_duration_seconds", "IPv4")
	partial := value(t, all, "sync_partial_proxy_rules_duration_seconds", "IPv4")
	if sum := value(t, all, "sync_proxy_rules_duration_seconds", "IPv4"); partial < 4 || sum != full+partial {
		t.Errorf("%v writes, %v full, %v partial", sum, full, partial)
	}
	if v := value(t, all, "sync_proxy_rules_nftables_sync_failures_total", "IPv4"); v < 1 ||
		v != value(t, all, "write_failures_total", "IPv4") {
		t.Errorf("%v failures, one row is refused", v)
	}
	end := float64(time.Now().UnixNano()) / 1e9
	last, queued := value(t, all, "sync_proxy_rules_last_timestamp_seconds", "IPv4"),
		value(t, all, "sync_proxy_rules_last_queued_timestamp_seconds", "IPv4")
	if !(begin <= last && last < queued && queued <= end) {
		t.Errorf("between %f and %f: last sync %f, last event, which fails, %f", begin, end, last, queued)
	}
}

// MT-01 to MT-03, MT-05, MT-14: a proof that the kernel takes writes is no sync, whether it takes
// that one or not.
func TestProofIsNoSync(t *testing.T) {
	p := newProxy(t, "nftables")
	p.exercise()
	syncs := []string{"sync_proxy_rules_duration_seconds", "sync_full_proxy_rules_duration_seconds",
		"sync_partial_proxy_rules_duration_seconds",
		"sync_proxy_rules_last_timestamp_seconds", "sync_proxy_rules_nftables_sync_failures_total"}
	before := p.scrape()
	for _, err := range []error{nil, errors.New("no")} {
		p.metrics.Written("IPv4", engine.Write{Verb: "probe", Took: time.Second, Err: err})
	}
	all := p.scrape()
	for _, name := range syncs {
		if was, is := value(t, before, name, "IPv4"), value(t, all, name, "IPv4"); was != is {
			t.Errorf("%s went from %v to %v", name, was, is)
		}
	}
	if v := value(t, all, "write_proofs_total", "IPv4"); v != 0 {
		t.Errorf("%v proofs while all is well", v)
	}

	p.planes[0].Refuse(lb.Key{Addr: service(2).ClusterIPs[0], Port: 80, Proto: lb.TCP})
	p.do(cluster.SliceSet{Slice: slice(2, 3, "n1", time.Now())})
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		all = p.scrape()
		if value(t, all, "write_proofs_total", "IPv4") == 1 {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("%v proofs, one row is refused", value(t, all, "write_proofs_total", "IPv4"))
		}
	}
	last, queued := value(t, all, "sync_proxy_rules_last_timestamp_seconds", "IPv4"),
		value(t, all, "sync_proxy_rules_last_queued_timestamp_seconds", "IPv4")
	if was := value(t, before, "sync_proxy_rules_last_timestamp_seconds", "IPv4"); last != was || last >= queued {
		t.Errorf("last sync %f, before %f, last event, which fails, %f", last, was, queued)
	}
}

// MT-21: the metrics of every component are present too, and none twice.
func TestComponentMetrics(t *testing.T) {
	p := newProxy(t, "iptables")
	p.exercise()
	// A client of client-go with one counted request.
	var asked atomic.Int32
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer api.Close()
	cfg := kube.Config{Master: api.URL, NodeName: "n1", Log: discard, QPS: 1000, Burst: 1000}
	if _, err := kube.NodeAnnotation(t.Context(), cfg, "x"); err == nil {
		t.Error("the refusal of the API server was not noticed")
	}
	source, err := kube.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- source.Run(ctx, func(cluster.Event) {}) }()
	for limit := time.Now().Add(30 * time.Second); asked.Load() < 2 &&
		time.Now().Before(limit); time.Sleep(time.Millisecond) {
	}
	stop()
	<-done
	all := p.scrape()
	for _, name := range strings.Fields(`kubernetes_build_info kubernetes_feature_enabled
		rest_client_request_duration_seconds rest_client_requests_total rest_client_rate_limiter_duration_seconds
		rest_client_exec_plugin_ttl_seconds rest_client_exec_plugin_certificate_rotation_age
		go_goroutines go_info go_memstats_alloc_bytes process_cpu_seconds_total process_resident_memory_bytes process_start_time_seconds
		hidden_metrics_total disabled_metrics_total registered_metrics_total`) {
		if all[name] == nil {
			t.Errorf("MT-21: %s is missing", name)
		}
	}
	host := strings.TrimPrefix(api.URL, "http://")
	found := false
	for _, m := range all["rest_client_requests_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.Label {
			labels[l.GetName()] = l.GetValue()
		}
		found = found || maps.Equal(labels, map[string]string{"code": "403", "method": "GET", "host": host})
	}
	if !found {
		t.Errorf("no request to %s is counted: %v", host, all["rest_client_requests_total"])
	}
	build := map[string]string{}
	for _, l := range all["kubernetes_build_info"].GetMetric()[0].Label {
		build[l.GetName()] = l.GetValue()
	}
	if build["major"] != "1" || build["minor"] != "37" || build["git_version"] != "v1.37.2" ||
		build["platform"] == "" || len(build) != 9 {
		t.Errorf("kubernetes_build_info%v", build)
	}
	gates := map[string]float64{}
	for _, m := range all["kubernetes_feature_enabled"].GetMetric() {
		gates[m.Label[0].GetValue()+"/"+m.Label[1].GetValue()] = m.Gauge.GetValue()
	}
	if !maps.Equal(gates, map[string]float64{"AllAlpha/ALPHA": 0, "ComponentSLIs/": 1}) {
		t.Errorf("kubernetes_feature_enabled %v", gates)
	}
}

// CF-18: a metric that was deprecated long ago is hidden, and shown with
// --show-hidden-metrics-for-version.
func TestHiddenMetrics(t *testing.T) {
	if k8s.ShouldShowHidden() {
		t.Skip("an earlier run of this test in the same process has shown them, which cannot be undone")
	}
	old := k8s.NewGauge(&k8s.GaugeOpts{Name: "test_hidden", Help: "Deprecated", DeprecatedVersion: "0.0.0",
		StabilityLevel: k8s.ALPHA})
	legacyregistry.MustRegister(old)
	shown := func(show bool) bool {
		m := status.FillMetrics(status.MetricsConfig{Mode: "nftables", ShowHidden: show})
		_, body := get(t, serve(t, status.ServerConfig{Metrics: m, Mode: "nftables"}, nil)+"/metrics")
		return strings.Contains(body, "\ntest_hidden ")
	}
	if shown(false) {
		t.Error("shown without being asked for")
	}
	if !shown(true) {
		t.Error("hidden although asked for")
	}
}

// With the gate NativeHistograms, scrapers that request protobuf get native histograms beside the
// classic buckets; text stays classic (MT-22).
func TestNativeHistogramsMT22(t *testing.T) {
	const protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	for _, on := range []bool{true, false} {
		m := status.FillMetrics(status.MetricsConfig{Modes: all.Modes(), Mode: "nftables",
			Gates: []status.Gate{{Name: "NativeHistograms", Stage: "BETA", On: on}}})
		m.Programmed("IPv4", []time.Duration{17 * time.Millisecond})
		url := serve(t, status.ServerConfig{Metrics: m, Mode: "nftables"}, nil) + "/metrics"
		res, body := get(t, url, "Accept", protobuf)
		decoder := expfmt.NewDecoder(strings.NewReader(body), expfmt.ResponseFormat(res.Header))
		native, classic := 0, 0
		for {
			var f dto.MetricFamily
			if err := decoder.Decode(&f); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				break
			}
			if f.GetName() != "kubeproxy_network_programming_duration_seconds" {
				continue
			}
			for _, x := range f.Metric {
				classic += len(x.Histogram.Bucket)
				native += len(x.Histogram.PositiveSpan)
			}
		}
		if classic == 0 || native > 0 != on {
			t.Errorf("gate %t: %d classic buckets, %d native spans", on, classic, native)
		}
	}
}
