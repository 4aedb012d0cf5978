package status

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/featuregate"
	k8s "k8s.io/component-base/metrics"
	metricsfeatures "k8s.io/component-base/metrics/features"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/feature"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_*, which every client of client-go feeds

	"kube-proxy/engine"
	"kube-proxy/mode"
)

// MetricsConfig has the facts of the process and the sources of values that are read at a scrape.
// All functions must be set; they are called at each scrape, from any goroutine.
type MetricsConfig struct {
	// Modes are all modes, and Mode is the one that runs. Metrics of other modes are not
	// registered: they would always be 0.
	Modes mode.List
	Mode  string
	// Configured is the mode in flags or file, "" for none, and Reason the reason why Mode differs,
	// "" if it does not.
	Configured, Reason string
	// Version is the Kubernetes version that this proxy replaces, as "v1.37.2".
	Version string
	// Gates are the feature gates.
	Gates []Gate
	// ShowHidden shows metrics that are deprecated and hidden (--show-hidden-metrics-for-version).
	// It holds for the whole process.
	ShowHidden bool

	// Changes returns how many changes of Services and of EndpointSlices made a difference
	// (cluster.Store.Changes).
	Changes func() (services, slices uint64)
	// EventsDropped returns how many events could not be sent to the API.
	EventsDropped func() uint64
	// Overridden reports whether programs of another mode decide about connections before the
	// rules.
	Overridden func() bool
	// Connected reports whether the source of Services and endpoints is followed.
	Connected func() bool
	// NodeProblems returns the number of problems of the node by reason and severity.
	NodeProblems func() map[NodeProblem]int
	// Snapshot returns the state of the snapshot of facts.
	Snapshot func() Snapshot
	// Conntrack returns the number of entries of the conntrack table and its limit; not ok without
	// a readable table.
	Conntrack func() (entries, limit uint64, ok bool)
	// NotOK reports how many Services of a namespace are in a state, for at most that many
	// namespaces, and for all others together.
	NotOK func(most int, each func(namespace, state, severity string, n int))
	// Failover returns what was noticed, probed and done about unreachable endpoints.
	Failover func() Failover
	// Refused returns how many Services have addresses in a family that are not served.
	Refused func(family string) int
	// PortsTaken returns how many ports Services take from programs of this node: as NodePorts, and
	// at the node's own addresses.
	PortsTaken func() (nodePorts, addresses int)
}

// NodeProblem is a kind of problem of the node.
type NodeProblem struct{ Reason, Severity string }

// Snapshot is the state of the snapshot of facts.
type Snapshot struct {
	// Serving: the rules in force are from the snapshot.
	Serving bool
	// LastWrite is zero before the first.
	LastWrite time.Time
	Failures  uint64
}

// Failover has the values of failover.
type Failover struct {
	// Notices by kind, and Probes by result.
	Notices, Probes map[string]uint64
	// Rescued and Reset are connections.
	Rescued, Reset uint64
	// AvoidedAlone endpoints are unreachable by their own probes, AvoidedByNode ones by their
	// node's.
	AvoidedAlone, AvoidedByNode, UnreachableNodes int
}

// Gate is one feature gate.
type Gate struct {
	Name string
	// Stage is "ALPHA", "BETA", "DEPRECATED", or "" for generally available gates.
	Stage string
	On    bool
}

// Metrics holds the metrics of the process. Make one with [NewMetrics]. Its methods may be called
// from any goroutine, and do not block.
type Metrics struct {
	cfg        MetricsConfig
	registry   k8s.KubeRegistry
	gatherers  prometheus.Gatherers
	histograms map[string]*k8s.HistogramVec

	mu       sync.Mutex
	families []*familyState
	answers  map[answer]uint64
}

// familyState is the state of one IP family.
type familyState struct {
	name    string
	ask     func() engine.Stats
	stats   engine.Stats        // in a snapshot
	failed  uint64              // writes
	deleted uint64              // conntrack entries
	dumps   uint64              // of the conntrack table
	measure func(mode.Emit)     // nil without a plane
	samples map[string][]sample // by metric, in a snapshot
}

// sample is a value from a plane, without the family.
type sample struct {
	value  float64
	labels []string
}

// answer is a kind of answer of the health server.
type answer struct {
	path string
	code int
}

// snapshot holds the values of one scrape.
type snapshot struct {
	cfg              *MetricsConfig
	failover         Failover
	services, slices uint64
	families         []familyState
	answers          map[answer]uint64
}

// NewMetrics registers the metrics of the mode. Each Metrics has its own registry, but the metrics
// of client-go, the Go runtime and the operating system are those of the process, and so is the
// state of feature gates.
func NewMetrics(cfg MetricsConfig) *Metrics {
	if cfg.ShowHidden {
		k8s.SetShowHidden()
	}
	nativeHistograms(cfg.Gates)
	m := &Metrics{cfg: cfg, registry: k8s.NewKubeRegistry(), histograms: map[string]*k8s.HistogramVec{},
		answers: map[answer]uint64{}}
	m.gatherers = prometheus.Gatherers{m.registry, legacyregistry.DefaultGatherer}
	c := &collector{metrics: m}
	for _, x := range withModes(cfg.Modes) {
		if !x.in(cfg.Mode) {
			continue
		}
		if x.kind != histogram {
			c.add(x)
			continue
		}
		h := k8s.NewHistogramVec(&k8s.HistogramOpts{
			Name: prefix + x.name, Help: x.help, Buckets: x.buckets, StabilityLevel: k8s.ALPHA,
		}, x.labels)
		m.registry.MustRegister(h)
		m.histograms[x.name] = h
		if len(x.labels) == 0 {
			h.WithLabelValues() // it has a sample before the first observation
		}
	}
	m.registry.CustomMustRegister(c)
	registerBuild(m.registry, cfg.Version)
	for _, g := range cfg.Gates {
		feature.RecordFeatureInfo(context.Background(), g.Name, g.Stage, g.On)
	}
	return m
}

// registerBuild registers kubernetes_build_info (MT-21), with the values of this program.
func registerBuild(r k8s.KubeRegistry, version string) {
	info := k8s.NewGaugeVec(&k8s.GaugeOpts{
		Name: "kubernetes_build_info", StabilityLevel: k8s.BETA,
		Help: "Always 1: the Kubernetes version that this program stands in for, and the build of the program",
	}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler",
		"platform"})
	r.MustRegister(info)
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	built := map[string]string{}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			built[s.Key] = s.Value
		}
	}
	tree := map[string]string{"true": "dirty", "false": "clean"}[built["vcs.modified"]]
	info.WithLabelValues(major, minor, version, built["vcs.revision"], tree, built["vcs.time"],
		runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH).Set(1)
}

// AddFamily adds an IP family: name is "IPv4" or "IPv6", stats the Stats of its engine, measure the
// Measure of its plane. The family has samples from then on.
func (m *Metrics) AddFamily(name string, stats func() engine.Stats, measure func(mode.Emit)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.family(name)
	f.ask, f.measure = stats, measure
}

// family returns the family of that name, which it adds if it is new; m.mu is held.
func (m *Metrics) family(name string) *familyState {
	for _, f := range m.families {
		if f.name == name {
			return f
		}
	}
	f := &familyState{name: name}
	m.families = append(m.families, f)
	return f
}

// Written records a write of the family's engine (engine.Config.Written).
func (m *Metrics) Written(family string, w engine.Write) {
	which := partialDuration
	switch w.Verb {
	case "audit", "probe", "load": // no sync, or one that was counted by its pieces
		return
	case "reset":
		which = fullDuration
	}
	m.observe(syncDuration, w.Took, family)
	m.observe(which, w.Took, family)
	if w.Err != nil {
		m.mu.Lock()
		m.family(family).failed++
		m.mu.Unlock()
	}
}

// Programmed records how long changes took (engine.Config.Programmed).
func (m *Metrics) Programmed(family string, took []time.Duration) {
	for _, t := range took {
		m.observe(programming, t, family)
	}
}

// Cleaned records a pass over the conntrack table (conntrack.Config.Cleaned).
func (m *Metrics) Cleaned(family string, took time.Duration, dumps, deleted int) {
	m.observe(conntrackDuration, took, family)
	m.mu.Lock()
	m.family(family).deleted += uint64(deleted)
	m.family(family).dumps += uint64(dumps)
	m.mu.Unlock()
}

// Avoided records how long an endpoint took to be avoided, from the first lost packet (FO-15).
func (m *Metrics) Avoided(took time.Duration) { m.observe(avoidance, took) }

// HealthAnswered records an answer of the health server: the path, and the HTTP status (MT-15).
// Paths other than /healthz and /livez are not counted.
func (m *Metrics) HealthAnswered(path string, code int) {
	if path != "/healthz" && path != "/livez" {
		return
	}
	m.mu.Lock()
	m.answers[answer{path, code}]++
	m.mu.Unlock()
}

// nativeHistograms gives histograms the native format beside the classic one if the gate is on
// (KEP-5808). Only scrapers that request protobuf receive it. It affects histograms made
// afterwards, in the whole process, as the gate's state in component-base does.
func nativeHistograms(gates []Gate) {
	on := slices.ContainsFunc(gates, func(g Gate) bool {
		return g.On && g.Name == string(metricsfeatures.NativeHistograms)
	})
	gate := featuregate.NewFeatureGate()
	spec := featuregate.FeatureSpec{Default: on, PreRelease: featuregate.Beta}
	if err := gate.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		metricsfeatures.NativeHistograms: spec}); err != nil {
		panic(fmt.Sprintf("status: %v", err)) // a new gate set accepts any one gate
	}
	metricsfeatures.ApplyFeatureGates(gate)
}

// observe adds to a histogram; one that the mode does not have stays away.
func (m *Metrics) observe(name string, d time.Duration, labels ...string) {
	if h := m.histograms[name]; h != nil {
		h.WithLabelValues(labels...).Observe(d.Seconds())
	}
}

// Handler serves all metrics as text or, if Accept requests it, as OpenMetrics (HT-21).
func (m *Metrics) Handler() http.Handler {
	return k8s.HandlerFor(m.gatherers, k8s.HandlerOpts{ErrorHandling: k8s.ContinueOnError, EnableOpenMetrics: true})
}

// snapshot calls all sources once.
func (m *Metrics) snapshot() *snapshot {
	s := &snapshot{cfg: &m.cfg}
	s.services, s.slices = m.cfg.Changes()
	s.failover = m.cfg.Failover()
	m.mu.Lock()
	s.answers = maps.Clone(m.answers)
	for _, f := range m.families {
		if f.ask != nil {
			s.families = append(s.families, *f)
		}
	}
	m.mu.Unlock()
	for i := range s.families {
		f := &s.families[i]
		f.stats, f.samples = f.ask(), map[string][]sample{}
		if f.measure != nil {
			f.measure(func(metric string, value float64, labels ...string) {
				f.samples[metric] = append(f.samples[metric], sample{value, labels})
			})
		}
	}
	slices.SortFunc(s.families, func(a, b familyState) int { return strings.Compare(a.name, b.name) })
	return s
}

// collector reads its values at each scrape.
type collector struct {
	k8s.BaseStableCollector
	metrics *Metrics
	rows    []metric
	descs   []*k8s.Desc
}

func (c *collector) add(x metric) {
	c.rows = append(c.rows, x)
	c.descs = append(c.descs, k8s.NewDesc(prefix+x.name, x.help, x.labels, nil, k8s.ALPHA, ""))
}

// DescribeWithStability is part of k8s.StableCollector.
func (c *collector) DescribeWithStability(ch chan<- *k8s.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// CollectWithStability is part of k8s.StableCollector.
func (c *collector) CollectWithStability(ch chan<- k8s.Metric) {
	s := c.metrics.snapshot()
	for i, x := range c.rows {
		typ := k8s.GaugeValue
		if x.kind == counter {
			typ = k8s.CounterValue
		}
		x.read(s, func(value float64, labels ...string) {
			ch <- k8s.NewLazyConstMetric(c.descs[i], typ, value, labels...)
		})
	}
}

// seconds is a time stamp as Prometheus has them; 0 for the zero time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
