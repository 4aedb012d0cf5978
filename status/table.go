package status

import (
	"slices"
	"strconv"
	"strings"

	"kube-proxy/engine"
	"kube-proxy/mode"
)

// The kinds of metrics.
const (
	counter   = mode.Counter
	gauge     = mode.Gauge
	histogram = mode.Histogram
)

// metric is one of our own metrics. All of them are ALPHA.
type metric struct {
	row    string // of the behaviour book; EXT: ours, upstream has none
	name   string // without the prefix
	kind   mode.Kind
	labels []string
	some   bool     // only modes that name it have it
	modes  []string // these
	help   string

	buckets []float64 // of a histogram: upper bounds, without +Inf
	// read emits the values at a scrape; nil for histograms.
	read func(s *snapshot, emit emit)
}

// emit gives one sample: a value, and one label value for each label.
type emit func(value float64, labels ...string)

// prefix begins the names of our metrics.
const prefix = "kubeproxy_"

// syncBuckets are 1 ms to 16 s, each twice the one before (MT-01).
func syncBuckets() []float64 {
	var b []float64
	for k := range 15 {
		b = append(b, 0.001*float64(int(1)<<k))
	}
	return b
}

// programmingBuckets are those of the service level objective for network programming (MT-04).
func programmingBuckets() []float64 {
	b := []float64{0.25, 0.5}
	for _, part := range []struct{ first, last, step int }{{1, 59, 1}, {60, 115, 5}, {120, 300, 30}} {
		for v := part.first; v <= part.last; v += part.step {
			b = append(b, float64(v))
		}
	}
	return b
}

// The names of the histograms, which are told and not asked for.
const (
	syncDuration      = "sync_proxy_rules_duration_seconds"
	fullDuration      = "sync_full_proxy_rules_duration_seconds"
	partialDuration   = "sync_partial_proxy_rules_duration_seconds"
	programming       = "network_programming_duration_seconds"
	conntrackDuration = "conntrack_reconciler_sync_duration_seconds"
)

// withModes are the metrics of the proxy itself and those of the modes, in the order of the behaviour book.
func withModes(modes mode.List) []metric {
	all := tabled()
	for _, m := range modes {
		for _, x := range m.Metrics {
			if x.Help != "" {
				all = append(all, metric{row: x.Row, name: x.Name, kind: x.Kind, labels: x.Labels, some: true, help: x.Help, read: measured(x)})
			}
		}
	}
	for i := range all {
		if x := &all[i]; x.some {
			x.modes = modes.Names(func(m mode.Mode) bool {
				return slices.ContainsFunc(m.Metrics, func(y mode.Metric) bool { return y.Name == x.name })
			})
		}
	}
	slices.SortStableFunc(all, func(a, b metric) int { return strings.Compare(a.place(), b.place()) })
	return all
}

// ours is the row of metrics that upstream does not have.
const ours = "EXT"

// place is what metrics are ordered by.
func (m *metric) place() string {
	switch {
	case m.row != ours:
		return m.row
	case len(m.labels) > 0:
		return "ours"
	}
	return "ours, of the whole process"
}

// measured reads what planes tell.
func measured(x mode.Metric) func(*snapshot, emit) {
	ofFamily := slices.Contains(x.Labels, "ip_family")
	return func(s *snapshot, emit emit) {
		for i := range s.families {
			samples := s.families[i].samples[x.Name]
			for _, v := range samples {
				if ofFamily {
					v.labels = append([]string{s.families[i].name}, v.labels...)
				}
				emit(v.value, v.labels...)
			}
			if !ofFamily && len(samples) > 0 {
				return
			}
		}
	}
}

// tabled are the metrics of the proxy itself.
func tabled() []metric {
	family := []string{"ip_family"}
	return []metric{
		{row: "MT-01", name: syncDuration, kind: histogram, labels: family, buckets: syncBuckets(),
			help: "Seconds that one write of rules to the kernel took, whatever its size and its result"},
		{row: "MT-02", name: fullDuration, kind: histogram, labels: family, some: true, buckets: syncBuckets(),
			help: "Seconds that one write of all rules took: the first one, and repairs"},
		{row: "MT-03", name: partialDuration, kind: histogram, labels: family, some: true, buckets: syncBuckets(),
			help: "Seconds that one write of changes alone took"},
		{row: "MT-04", name: programming, kind: histogram, labels: family, buckets: programmingBuckets(),
			help: "Seconds from the change of a Pod or Service that its EndpointSlice names to the end of the write that put it into force"},
		{row: "MT-05", name: "sync_proxy_rules_last_timestamp_seconds", kind: gauge, labels: family,
			help: "When rules were last in force as wanted: after a write, or after an event for which nothing had to be written. Seconds since 1970, 0 before the first",
			read: perFamily(func(f *familyState) float64 { return seconds(f.stats.LastSynced) })},
		{row: "MT-06", name: "sync_proxy_rules_last_queued_timestamp_seconds", kind: gauge, labels: family,
			help: "When an event last asked for new rules. Seconds since 1970, 0 before the first",
			read: perFamily(func(f *familyState) float64 { return seconds(f.stats.LastQueued) })},
		{row: "MT-07", name: "sync_proxy_rules_endpoint_changes_pending", kind: gauge,
			help: "Changes of EndpointSlices that are not in force yet",
			read: func(s *snapshot, emit emit) {
				var n uint64 // a slice has one family
				for _, f := range s.families {
					n += f.stats.Owed.Slices
				}
				emit(float64(n))
			}},
		{row: "MT-07", name: "sync_proxy_rules_endpoint_changes_total", kind: counter,
			help: "Changes of EndpointSlices that made a difference",
			read: func(s *snapshot, emit emit) { emit(float64(s.slices)) }},
		{row: "MT-08", name: "sync_proxy_rules_service_changes_pending", kind: gauge,
			help: "Changes of Services that are not in force yet in some IP family",
			read: func(s *snapshot, emit emit) {
				var n uint64
				for _, f := range s.families {
					n = max(n, f.stats.Owed.Services)
				}
				emit(float64(n))
			}},
		{row: "MT-08", name: "sync_proxy_rules_service_changes_total", kind: counter,
			help: "Changes of Services that made a difference",
			read: func(s *snapshot, emit emit) { emit(float64(s.services)) }},
		{row: "MT-13", name: "sync_proxy_rules_no_local_endpoints_total", kind: gauge, labels: []string{"ip_family", "traffic_policy"},
			help: "Service ports whose traffic policy is Local and which have endpoints, but none on this node",
			read: func(s *snapshot, emit emit) {
				for _, f := range s.families {
					emit(float64(f.stats.NoLocal.Internal), f.name, "internal")
					emit(float64(f.stats.NoLocal.External), f.name, "external")
				}
			}},
		{row: "MT-14", name: "sync_proxy_rules_nftables_sync_failures_total", kind: counter, labels: family, some: true,
			help: "Writes of rules that failed",
			read: perFamily(func(f *familyState) float64 { return float64(f.failed) })},
		{row: "MT-15", name: "proxy_healthz_total", kind: counter, labels: []string{"code"},
			help: "Answers of /healthz on the health port, by HTTP status",
			read: answersOf("/healthz")},
		{row: "MT-15", name: "proxy_livez_total", kind: counter, labels: []string{"code"},
			help: "Answers of /livez on the health port, by HTTP status",
			read: answersOf("/livez")},
		{row: "MT-18", name: conntrackDuration, kind: histogram, labels: family, some: true, buckets: syncBuckets(),
			help: "Seconds that one pass over the conntrack table took"},
		{row: "MT-18", name: "conntrack_reconciler_deleted_entries_total", kind: counter, labels: family, some: true,
			help: "Conntrack entries deleted because their backend left",
			read: perFamily(func(f *familyState) float64 { return float64(f.deleted) })},

		{row: "EXT", name: "mode_info", kind: gauge, labels: []string{"mode", "asked", "reason"},
			help: "Always 1: the mode that runs, the one that was asked for, and why they differ",
			read: func(s *snapshot, emit emit) { emit(1, s.cfg.Mode, s.cfg.Asked, s.cfg.Reason) }},
		{row: "EXT", name: "changes_written_total", kind: counter, labels: family,
			help: "Changes of rows that the data plane accepted",
			read: perStats(func(s *engine.Stats) uint64 { return s.Changes })},
		{row: "EXT", name: "write_failures_total", kind: counter, labels: family,
			help: "Calls of the data plane that failed, audits and proofs included",
			read: perStats(func(s *engine.Stats) uint64 { return s.Failures })},
		{row: "EXT", name: "write_retries_total", kind: counter, labels: family,
			help: "Calls of the data plane that offered again what had failed",
			read: perStats(func(s *engine.Stats) uint64 { return s.Retries })},
		{row: "EXT", name: "write_proofs_total", kind: counter, labels: family,
			help: "Writes that change nothing, made to know whether the kernel takes any while all that there is to write fails",
			read: perStats(func(s *engine.Stats) uint64 { return s.Probes })},
		{row: "EXT", name: "panics_total", kind: counter, labels: family,
			help: "Panics that were caught and survived",
			read: perStats(func(s *engine.Stats) uint64 { return s.Panics })},
		{row: "EXT", name: "rows_pending", kind: gauge, labels: family,
			help: "Rows that the data plane has not accepted yet",
			read: perStats(func(s *engine.Stats) uint64 { return uint64(s.Pending) })},
		{row: "EXT", name: "rows_failing", kind: gauge, labels: family,
			help: "Rows that the data plane refuses, each retried alone, and malformed rows; more than 100 of each are not counted",
			read: perStats(func(s *engine.Stats) uint64 { return uint64(len(s.Failing)) })},
		{row: "EXT", name: "services_unresolved", kind: gauge, labels: family,
			help: "Services whose rows could not be computed; they keep those that they had",
			read: perStats(func(s *engine.Stats) uint64 { return uint64(s.Unresolved) })},
		{row: "EXT", name: "contests_total", kind: counter, labels: family,
			help: "Times that a Service lost an address and port to another that claims the same",
			read: perStats(func(s *engine.Stats) uint64 { return s.Contests })},
		{row: "EXT", name: "contested_keys", kind: gauge, labels: family,
			help: "Addresses and ports that more than one Service claims, so that some get no traffic there",
			read: perStats(func(s *engine.Stats) uint64 { return uint64(s.Contested) })},
		{row: "EXT", name: "services_refused_addresses", kind: gauge, labels: family,
			help: "Services of whose addresses or endpoints some are not served: nobody can have them, they are not allowed, or they are too many",
			read: func(s *snapshot, emit emit) {
				for i := range s.families {
					name := s.families[i].name
					emit(float64(s.cfg.Refused(name)), name)
				}
			}},
		{row: "EXT", name: "audits_total", kind: counter, labels: family,
			help: "Comparisons of the kernel with what was written",
			read: perStats(func(s *engine.Stats) uint64 { return s.Audits })},
		{row: "EXT", name: "audit_mended_objects_total", kind: counter, labels: family,
			help: "Objects in the kernel that others had changed or removed, and that were mended; rows, where they had removed everything",
			read: perStats(func(s *engine.Stats) uint64 { return s.Mended })},
		{row: "EXT", name: mode.ServiceConnections, kind: counter, labels: []string{"ip_family", "namespace", "service"}, some: true,
			help: "New connections and flows that were led to endpoints of a Service, where --service-metrics counts them: of those with the most; _others are all others together",
			read: measured(mode.Metric{Name: mode.ServiceConnections, Labels: []string{"ip_family"}})},
		{row: "EXT", name: "source_connected", kind: gauge,
			help: "1 while the API server, or the folder of manifests, is followed; 0 while that fails and what was known stays in force",
			read: func(s *snapshot, emit emit) {
				connected := 0.0
				if s.cfg.Connected() {
					connected = 1
				}
				emit(connected)
			}},
		{row: "EXT", name: "conntrack_entries", kind: gauge,
			help: "Connections that the conntrack table of this node has, whosever they are; absent where there is none",
			read: conntracked(func(entries, _ uint64) uint64 { return entries })},
		{row: "EXT", name: "conntrack_entries_limit", kind: gauge,
			help: "How many connections the conntrack table can have; packets of further ones are dropped",
			read: conntracked(func(_, limit uint64) uint64 { return limit })},
		{row: "EXT", name: "events_dropped_total", kind: counter,
			help: "Events that could not be told to the cluster",
			read: func(s *snapshot, emit emit) { emit(float64(s.cfg.EventsDropped())) }},
	}
}

func perFamily(value func(*familyState) float64) func(*snapshot, emit) {
	return func(s *snapshot, emit emit) {
		for i := range s.families {
			emit(value(&s.families[i]), s.families[i].name)
		}
	}
}

func perStats(value func(*engine.Stats) uint64) func(*snapshot, emit) {
	return perFamily(func(f *familyState) float64 { return float64(value(&f.stats)) })
}

func conntracked(value func(entries, limit uint64) uint64) func(*snapshot, emit) {
	return func(s *snapshot, emit emit) {
		if entries, limit, ok := s.cfg.Conntrack(); ok {
			emit(float64(value(entries, limit)))
		}
	}
}

func answersOf(path string) func(*snapshot, emit) {
	return func(s *snapshot, emit emit) {
		for a, n := range s.answers {
			if a.path == path {
				emit(float64(n), strconv.Itoa(a.code))
			}
		}
	}
}

// in reports whether a proxy of the mode has the metric.
func (m *metric) in(mode string) bool { return !m.some || slices.Contains(m.modes, mode) }
