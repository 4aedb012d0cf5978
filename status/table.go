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
	row    string // of the specification; EXT: an extension, not in upstream
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

// The names of the histograms, which are observed and not collected.
const (
	syncDuration      = "sync_proxy_rules_duration_seconds"
	fullDuration      = "sync_full_proxy_rules_duration_seconds"
	partialDuration   = "sync_partial_proxy_rules_duration_seconds"
	programming       = "network_programming_duration_seconds"
	conntrackDuration = "conntrack_reconciler_sync_duration_seconds"
	avoidance         = "failover_avoidance_duration_seconds"
)

// withModes are the metrics of the proxy itself and those of the modes, in the order of the
// specification.
func withModes(modes mode.List) []metric {
	all := tabled()
	for _, m := range modes {
		for _, x := range m.Metrics {
			if x.Help != "" {
				all = append(all, metric{row: x.Row, name: x.Name, kind: x.Kind, labels: x.Labels, some: true,
					help: x.Help, read: measured(x)})
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

// ours is the row of metrics that are not in upstream.
const ours = "EXT"

// place is the sort key of metrics.
func (m *metric) place() string {
	switch {
	case m.row != ours:
		return m.row
	case len(m.labels) > 0:
		return "ours"
	}
	return "ours, of the whole process"
}

// measured reads the metrics of planes.
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

// counts emits a sample for each label.
func counts(of func(*snapshot) map[string]uint64) func(*snapshot, emit) {
	return func(s *snapshot, emit emit) {
		for label, n := range of(s) {
			emit(float64(n), label)
		}
	}
}

// tabled are the metrics of the proxy itself.
func tabled() []metric {
	family := []string{"ip_family"}
	return []metric{
		{row: "MT-01", name: syncDuration, kind: histogram, labels: family, buckets: syncBuckets(),
			help: "Duration in seconds of a write of rules to the kernel, of any size and result"},
		{row: "MT-02", name: fullDuration, kind: histogram, labels: family, some: true, buckets: syncBuckets(),
			help: "Duration in seconds of a write of all rules: the first one, and repairs"},
		{row: "MT-03", name: partialDuration, kind: histogram, labels: family, some: true, buckets: syncBuckets(),
			help: "Duration in seconds of a write of changes"},
		{row: "MT-04", name: programming, kind: histogram, labels: family, buckets: programmingBuckets(),
			help: "Latency in seconds from the change of a Pod or Service, as its EndpointSlice records it, to the " +
				"end of the write"},
		{row: "MT-05", name: "sync_proxy_rules_last_timestamp_seconds", kind: gauge, labels: family,
			help: "Unix time at which the rules last matched the desired state, after a write or an event that needs " +
				"none; 0 before the first",
			read: perFamily(func(f *familyState) float64 { return seconds(f.stats.LastSynced) })},
		{row: "MT-06", name: "sync_proxy_rules_last_queued_timestamp_seconds", kind: gauge, labels: family,
			help: "Unix time of the last event that changes rules; 0 before the first",
			read: perFamily(func(f *familyState) float64 { return seconds(f.stats.LastQueued) })},
		{row: "MT-07", name: "sync_proxy_rules_endpoint_changes_pending", kind: gauge,
			help: "EndpointSlice changes not yet in force", read: func(s *snapshot, emit emit) {
				var n uint64 // a slice has one family
				for _, f := range s.families {
					n += f.stats.Owed.Slices
				}
				emit(float64(n))
			}},
		{row: "MT-07", name: "sync_proxy_rules_endpoint_changes_total", kind: counter,
			help: "Effective EndpointSlice changes", read: func(s *snapshot, emit emit) { emit(float64(s.slices)) }},
		{row: "MT-08", name: "sync_proxy_rules_service_changes_pending", kind: gauge,
			help: "Service changes not yet in force in an IP family", read: func(s *snapshot, emit emit) {
				var n uint64
				for _, f := range s.families {
					n = max(n, f.stats.Owed.Services)
				}
				emit(float64(n))
			}},
		{row: "MT-08", name: "sync_proxy_rules_service_changes_total", kind: counter, help: "Effective Service changes",
			read: func(s *snapshot, emit emit) { emit(float64(s.services)) }},
		{row: "MT-13", name: "sync_proxy_rules_no_local_endpoints_total", kind: gauge,
			labels: []string{"ip_family", "traffic_policy"},
			help:   "Service ports with traffic policy Local whose endpoints are all on other nodes",
			read: func(s *snapshot, emit emit) {
				for _, f := range s.families {
					emit(float64(f.stats.NoLocal.Internal), f.name, "internal")
					emit(float64(f.stats.NoLocal.External), f.name, "external")
				}
			}},
		{row: "MT-14", name: "sync_proxy_rules_nftables_sync_failures_total", kind: counter, labels: family, some: true,
			help: "Failed writes of rules", read: perFamily(func(f *familyState) float64 { return float64(f.failed) })},
		{row: "MT-15", name: "proxy_healthz_total", kind: counter, labels: []string{"code"},
			help: "Responses of /healthz on the health port, by HTTP status", read: answersOf("/healthz")},
		{row: "MT-15", name: "proxy_livez_total", kind: counter, labels: []string{"code"},
			help: "Responses of /livez on the health port, by HTTP status", read: answersOf("/livez")},
		{row: "MT-18", name: conntrackDuration, kind: histogram, labels: family, some: true, buckets: syncBuckets(),
			help: "Duration in seconds of a pass over the conntrack table"},
		{row: "MT-18", name: "conntrack_reconciler_deleted_entries_total", kind: counter, labels: family, some: true,
			help: "Conntrack entries deleted because their backend was removed",
			read: perFamily(func(f *familyState) float64 { return float64(f.deleted) })},
		{row: "EXT", name: "conntrack_reconciler_dumps_total", kind: counter, labels: family, some: true,
			help: "Dumps of the kernel's conntrack table; each costs as much as the table is long",
			read: perFamily(func(f *familyState) float64 { return float64(f.dumps) })},

		{row: "EXT", name: "mode_info", kind: gauge, labels: []string{"mode", "asked", "reason"},
			help: "Always 1: the running mode, the requested mode, and the reason for a difference",
			read: func(s *snapshot, emit emit) { emit(1, s.cfg.Mode, s.cfg.Configured, s.cfg.Reason) }},
		{row: "EXT", name: "changes_written_total", kind: counter, labels: family,
			help: "Changes of frontends that the data plane accepted",
			read: perStats(func(s *engine.Stats) uint64 { return s.Changes })},
		{row: "EXT", name: "write_failures_total", kind: counter, labels: family,
			help: "Failed calls of the data plane, audits and probes included",
			read: perStats(func(s *engine.Stats) uint64 { return s.Failures })},
		{row: "EXT", name: "write_retries_total", kind: counter, labels: family,
			help: "Retries of failed calls of the data plane",
			read: perStats(func(s *engine.Stats) uint64 { return s.Retries })},
		{row: "EXT", name: "write_proofs_total", kind: counter, labels: family,
			help: "Writes without effect that test whether the kernel accepts any write while all pending ones fail",
			read: perStats(func(s *engine.Stats) uint64 { return s.Probes })},
		{row: "EXT", name: "panics_total", kind: counter, labels: family, help: "Recovered panics",
			read: perStats(func(s *engine.Stats) uint64 { return s.Panics })},
		{row: "EXT", name: "rows_pending", kind: gauge, labels: family,
			help: "Frontends that the data plane has not accepted yet",
			read: perStats(func(s *engine.Stats) uint64 { return uint64(s.Pending) })},
		{row: "EXT", name: "rows_failing", kind: gauge, labels: family,
			help: "Frontends that the data plane refuses, each retried alone, and malformed ones; at most 100 of " +
				"each are counted", read: perStats(func(s *engine.Stats) uint64 { return uint64(len(s.Failing)) })},
		{row: "EXT", name: "services_unresolved", kind: gauge, labels: family,
			help: "Services that could not be resolved and keep their previous frontends",
			read: perStats(func(s *engine.Stats) uint64 { return uint64(s.Unresolved) })},
		{row: "EXT", name: "contests_total", kind: counter, labels: family,
			help: "Conflicts in which a Service lost an address and port to another Service",
			read: perStats(func(s *engine.Stats) uint64 { return s.Conflicts })},
		{row: "EXT", name: "contested_keys", kind: gauge, labels: family,
			help: "Addresses and ports that several Services claim: one gets the traffic",
			read: perStats(func(s *engine.Stats) uint64 { return uint64(s.Contested) })},
		{row: "EXT", name: "services_refused_addresses", kind: gauge, labels: family,
			help: "Services with addresses or endpoints that are not served because they are invalid, not allowed, " +
				"or too many", read: func(s *snapshot, emit emit) {
				for i := range s.families {
					name := s.families[i].name
					emit(float64(s.cfg.Refused(name)), name)
				}
			}},
		{row: "EXT", name: "ports_taken", kind: gauge, labels: []string{"kind"},
			help: "Ports that Services take from programs of this node: NodePorts with a listener (node-port), and " +
				"ports of a program or of another Service's NodePort at the node's own addresses (node-address); " +
				"checked after changes and every 5 minutes, so a listener that lives for seconds may be missed",
			read: func(s *snapshot, emit emit) {
				nodePorts, addresses := s.cfg.PortsTaken()
				emit(float64(nodePorts), "node-port")
				emit(float64(addresses), "node-address")
			}},
		{row: "EXT", name: "services_not_ok", kind: gauge, labels: []string{"namespace", "state", "severity"},
			help: "Services in a state other than ok and not-proxied, as kube-proxy why reports it, for the 50 " +
				"namespaces with the most; _others is the sum of the rest", read: func(s *snapshot, emit emit) {
				s.cfg.NotOK(maxNamespaces, func(namespace, state, severity string, n int) {
					emit(float64(n), namespace, state, severity)
				})
			}},
		{row: "EXT", name: avoidance, kind: histogram, buckets: syncBuckets(),
			help: "Time in seconds from the first lost packet to an endpoint until new connections avoid it; it " +
				"includes the second after which a client repeats the packet"},
		{row: "EXT", name: "failover_avoided_endpoints", kind: gauge, labels: []string{"reason"},
			help: "Endpoints that new connections avoid, because their own probes or their node's fail",
			read: func(s *snapshot, emit emit) {
				emit(float64(s.failover.AvoidedAlone), "endpoint")
				emit(float64(s.failover.AvoidedByNode), "node")
			}},
		{row: "EXT", name: "failover_unreachable_nodes", kind: gauge, help: "Nodes that this node does not reach",
			read: func(s *snapshot, emit emit) { emit(float64(s.failover.UnreachableNodes)) }},
		{row: "EXT", name: "failover_notices_total", kind: counter, labels: []string{"kind"},
			help: "Reports of clients' packets to endpoints without an answer, within a rate limit",
			read: counts(func(s *snapshot) map[string]uint64 { return s.failover.Notices })},
		{row: "EXT", name: "failover_probes_total", kind: counter, labels: []string{"result"},
			help: "Probes of endpoints and nodes by this node, after such reports",
			read: counts(func(s *snapshot) map[string]uint64 { return s.failover.Probes })},
		{row: "EXT", name: "failover_rescued_connections_total", kind: counter,
			help: "Waiting connections to unreachable endpoints that may meet another endpoint",
			read: func(s *snapshot, emit emit) { emit(float64(s.failover.Rescued)) }},
		{row: "EXT", name: "failover_reset_connections_total", kind: counter,
			help: "Established connections to endpoints on unreachable nodes that were reset (failoverReset)",
			read: func(s *snapshot, emit emit) { emit(float64(s.failover.Reset)) }},
		{row: "EXT", name: "audits_total", kind: counter, labels: family,
			help: "Comparisons of the kernel with the desired state",
			read: perStats(func(s *engine.Stats) uint64 { return s.Audits })},
		{row: "EXT", name: "audit_mended_objects_total", kind: counter, labels: family,
			help: "Repaired kernel objects that other programs had changed or removed; frontends if everything was " +
				"removed", read: perStats(func(s *engine.Stats) uint64 { return s.Repaired })},
		{row: "EXT", name: mode.ServiceConnections, kind: counter, labels: []string{"ip_family", "namespace",
			"service"}, some: true,
			help: "New connections and flows to endpoints of a Service, for the Services with the most " +
				"(--service-metrics); _others is the sum of the rest",
			read: measured(mode.Metric{Name: mode.ServiceConnections, Labels: []string{"ip_family"}})},
		{row: "EXT", name: mode.ServiceBytes, kind: counter, labels: []string{"ip_family", "namespace", "service"},
			some: true, help: "Bytes of packets to and from a Service, with IP headers, for the Services of " +
				"service_connections_total",
			read: measured(mode.Metric{Name: mode.ServiceBytes, Labels: []string{"ip_family"}})},
		{row: "EXT", name: "rules_overridden", kind: gauge,
			help: "1 while programs of another mode, which this process could not remove, decide about connections " +
				"before its rules do", read: func(s *snapshot, emit emit) { emit(truth(s.cfg.Overridden())) }},
		{row: "EXT", name: "source_connected", kind: gauge,
			help: "1 while the proxy follows the API server or the manifest folder; 0 while it cannot and the last " +
				"known state stays in force", read: func(s *snapshot, emit emit) { emit(truth(s.cfg.Connected())) }},
		{row: "CF-68", name: "node_problems", kind: gauge, labels: []string{"reason", "severity"},
			help: "Problems of this node, and of the configuration on it, that kube-proxy status reports; at most " +
				"30 s old", read: func(s *snapshot, emit emit) {
				for p, n := range s.cfg.NodeProblems() {
					emit(float64(n), p.Reason, p.Severity)
				}
			}},
		{row: "SN-03", name: "snapshot_serving", kind: gauge,
			help: "1 while the rules in force come from a snapshot, as the API server has not answered yet",
			read: snapshotted(func(s Snapshot) float64 { return truth(s.Serving) })},
		{row: "SN-05", name: "snapshot_last_write_timestamp_seconds", kind: gauge,
			help: "When this process wrote its last snapshot, in seconds since 1970; 0 before the first, and without " +
				"--snapshot", read: snapshotted(func(s Snapshot) float64 {
				if s.LastWrite.IsZero() {
					return 0
				}
				return float64(s.LastWrite.Unix())
			})},
		{row: "SN-06", name: "snapshot_write_failures_total", kind: counter,
			help: "Snapshots that could not be written",
			read: snapshotted(func(s Snapshot) float64 { return float64(s.Failures) })},
		{row: "EXT", name: "conntrack_entries", kind: gauge,
			help: "Entries of this node's conntrack table, of all programs; absent without a table",
			read: conntracked(func(entries, _ uint64) uint64 { return entries })},
		{row: "EXT", name: "conntrack_entries_limit", kind: gauge,
			help: "Maximum size of the conntrack table; packets of further connections are dropped",
			read: conntracked(func(_, limit uint64) uint64 { return limit })},
		{row: "EXT", name: "events_dropped_total", kind: counter, help: "Events that could not be sent to the cluster",
			read: func(s *snapshot, emit emit) { emit(float64(s.cfg.EventsDropped())) }},
	}
}

// maxNamespaces is the number of namespaces with their own series.
const maxNamespaces = 50

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

// truth is 1 for true.
func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func snapshotted(value func(Snapshot) float64) func(*snapshot, emit) {
	return func(s *snapshot, emit emit) { emit(value(s.cfg.Snapshot())) }
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
