package status

import (
	"fmt"
	"slices"
	"strings"

	"kube-proxy/mode"
)

// MetricsPage returns docs/metrics.md.
func MetricsPage(modes mode.List) string {
	var b strings.Builder
	b.WriteString("# Metrics\n\n<!-- Made by `go test ./status -run TestPage -update`. Do not edit. -->\n\n" +
		"`/metrics` on the metrics port (`--metrics-bind-address`, 127.0.0.1:10249) returns Prometheus text, or " +
		"OpenMetrics if\n" +
		"`Accept` requests it. All metrics are ALPHA, as in upstream, and have the label `ip_family`, except those\n" +
		"marked *node*. Upstream lacks those marked *EXT*; [the specification](behaviour.md#metrics) has the others.\n")
	by := map[string][]metric{}
	var where []string
	for _, x := range withModes(modes) {
		at := "In all modes"
		if x.some {
			at = "Only in " + strings.Join(x.modes, ", ")
		}
		if by[at] == nil {
			where = append(where, at)
		}
		by[at] = append(by[at], x)
	}
	for _, at := range where {
		fmt.Fprintf(&b, "\n## %s\n\n", at)
		for _, x := range by[at] {
			by, family := fmt.Sprint(x.kind), slices.Contains(x.labels, "ip_family")
			if labels := slices.DeleteFunc(slices.Clone(x.labels),
				func(l string) bool { return l == "ip_family" }); len(labels) > 0 {
				by += " by " + quoted(labels)
			}
			if !family {
				by += ", *node*"
			}
			if !strings.HasPrefix(x.row, "MT-") {
				by += ", *EXT*"
			}
			fmt.Fprintf(&b, "- `%s%s` (%s): %s\n", prefix, x.name, by, x.help)
		}
	}
	b.WriteString("\n## Buckets\n\nUpper bounds in seconds.\n\n")
	names := map[string][]string{}
	var all []string
	for _, x := range withModes(modes) {
		if x.kind != histogram {
			continue
		}
		text := bounds(x.buckets)
		if names[text] == nil {
			all = append(all, text)
		}
		names[text] = append(names[text], "`"+prefix+x.name+"`")
	}
	for _, text := range all {
		fmt.Fprintf(&b, "- %s: %s\n", strings.Join(names[text], ", "), text)
	}
	b.WriteString(remarks)
	return b.String()
}

// bounds prints the bounds of buckets. Doubled bounds, and runs with equal steps, are shortened.
func bounds(all []float64) string {
	twice := len(all) > 2
	for i := 1; i < len(all); i++ {
		twice = twice && all[i] == 2*all[i-1]
	}
	if twice {
		return fmt.Sprintf("%g to %g, doubling", all[0], all[len(all)-1])
	}
	var out []string
	for i := 0; i < len(all); {
		last := i
		for last+1 < len(all) && all[last+1]-all[last] == all[i+1]-all[i] {
			last++
		}
		if last-i < 3 {
			out = append(out, fmt.Sprintf("%g", all[i]))
			i++
			continue
		}
		out = append(out, fmt.Sprintf("%g to %g by %g", all[i], all[last], all[i+1]-all[i]))
		i = last + 1
	}
	return strings.Join(out, ", ")
}

func quoted(labels []string) string {
	out := make([]string, len(labels))
	for i, l := range labels {
		out[i] = "`" + l + "`"
	}
	return strings.Join(out, ", ")
}

// remarks end the page.
const remarks = `
## Definitions

- A *write* is one call that hands rules to the kernel: all of them at the start and for a repair, else changes.
  Audits and probes (tests whether the kernel accepts writes while a Service is refused) are no writes.
- *Network programming latency* starts at the slice's ` + "`endpoints.kubernetes.io/last-change-trigger-time`" +
	`. The first
  list, older times and deleted slices do not count.
- *Pending*: a refused Service keeps its changes pending until all rules are written again; then
  ` + "`kubeproxy_rows_failing`" + ` still shows it. A change counts once for both IP families.
- ` + "`kubeproxy_sync_proxy_rules_no_local_endpoints_total`" + ` does not count a service port without any endpoint, or
  without an external address.

## Connections by Service

` + "`--service-metrics=N`" +
	` counts new connections and flows to endpoints, answered or not. In each IP family the N busiest
Services (at most 1,000) have their own series; the others share one with namespace and service ` + "`_others`" +
	`. A Service gets
a free series, or that of the least busy one if it has twice the traffic ([0069](adr/0069-counting-where-it-is-done-already.md)).
Counting starts with the process, and for frontends in use before with the first scrape. Bytes are not counted.

- nftables: 3 to 10 % more kernel CPU for the first packet of a connection, 0.6 of 8 µs
  (` + "`go test ./plane/nftables -run '^$' -bench Counting -benchtime 1x`" +
	`, kernel 6.18); 200 bytes of kernel memory for each
  frontend in use and 16 for each CPU. At most 65,536 frontends count within ten minutes.
- userspace: an atomic addition for each connection; 100 bytes for each service port.
- ipvs: nothing for packets. A reading lists all virtual servers. The kernel adds up every 2 seconds; counts since
  then are lost with a virtual server. With ` + "`net.ipv4.vs.run_estimation`" + ` 0 nothing is counted; the log says so.

## Metrics of every Kubernetes component (MT-21)

` + "`kubernetes_build_info`, `kubernetes_feature_enabled`, `rest_client_*`, `go_*`, `process_*`, " +
	"`registered_metrics_total`," + `
` + "`hidden_metrics_total`, `disabled_metrics_total`" + `; on ` + "`/metrics/slis`" + ` ` +
	"`kubernetes_healthcheck` and `kubernetes_healthchecks_total`" + `.

Absent: ` + "`sync_proxy_rules_latency_microseconds`" + ` (MT-20; upstream removed it in 1.17) and ` +
	"`apiserver_audit_*`" + ` (unused metrics of a library).
`
