package status

import (
	"fmt"
	"strconv"
	"strings"

	"kube-proxy/mode"
)

// MetricsPage returns docs/metrics.md.
func MetricsPage(modes mode.List) string {
	var b strings.Builder
	b.WriteString("# Metrics\n\n<!-- Made by `go test ./status -run TestPage -update`. Do not edit. -->\n\n" +
		"`/metrics` on the metrics port (`--metrics-bind-address`, 127.0.0.1:10249) returns Prometheus text, or OpenMetrics if `Accept` asks for it.\n" +
		"A metric of one mode is absent in the others. All have stability level ALPHA, as upstream's.\n" +
		"The row is that of [the specification](behaviour.md); upstream lacks *ours*.\n\n" +
		"| metric | type | labels | modes | row | description |\n|---|---|---|---|---|---|\n")
	for _, x := range withModes(modes) {
		modes, row := "all", x.row
		if x.some {
			modes = strings.Join(x.modes, ", ")
		}
		if row == ours {
			row = "ours"
		}
		fmt.Fprintf(&b, "| `%s%s` | %s | %s | %s | %s | %s |\n", prefix, x.name, x.kind, quoted(x.labels), modes, row, x.help)
	}
	b.WriteString("\n## Buckets\n\nUpper bounds in seconds.\n\n")
	for _, x := range withModes(modes) {
		if x.kind != histogram {
			continue
		}
		bounds := make([]string, len(x.buckets))
		for i, v := range x.buckets {
			bounds[i] = strconv.FormatFloat(v, 'g', -1, 64)
		}
		fmt.Fprintf(&b, "- `%s%s`: %s\n", prefix, x.name, strings.Join(bounds, " "))
	}
	b.WriteString(remarks)
	return b.String()
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

- A *write* is one call that hands rules to the kernel: all of them at the start and for a repair (full), else changes (partial). Simultaneous events
  are one write. Audits and probes are not writes. A probe changes nothing: if a Service is refused and nothing else changes, it shows whether the kernel
  accepts writes, and so whether ` + "`/healthz`" + ` stays 200.
- *Network programming latency* starts at the slice's ` + "`endpoints.kubernetes.io/last-change-trigger-time`" + ` and ends when the last frontend of its Service is
  in force. A change without a write counts at once. The first list, older time stamps and deleted slices do not count. Changes of a Service that cannot
  be written wait; of more than 1,000 the oldest are counted.
- *Pending* changes have arrived but are not in force. A refused Service keeps them above 0 until all rules are written again; then
  ` + "`kubeproxy_rows_failing`" + ` still shows it. A change counts once for both IP families.
- The alert "last queued > last" works, because an event without a write updates the time of the last sync too.
- ` + "`kubeproxy_sync_proxy_rules_no_local_endpoints_total`" + ` does not count a service port without any endpoint, which rejects, or one with policy Local and no
  external address.

## Connections by Service

` + "`--service-metrics=N`" + ` counts new connections and flows to endpoints, answered or not. In each IP family the N busiest Services (at most 1,000) have a series
each; the others share one with namespace and service ` + "`_others`" + `. A Service gets a free series, or that of the least busy one if it has twice the traffic; a
reading replaces at most a tenth of N. Series only grow, and the sum is always right. Counting starts with the process, and for frontends in use before with
the first scrape. Counters are read at most every 5 seconds. Bytes are not counted, because that would cost time for each packet.

| mode | cost | measured by |
|---|---|---|
| nftables | 3 to 10 % more kernel CPU for the first packet of a connection, 0.6 of 8 µs; 200 bytes of kernel memory for each frontend in use and 16 for each CPU. At most 65,536 frontends count within ten minutes | ` + "`go test ./plane/nftables -run '^$' -bench Counting -benchtime 1x`" + ` (2026-11-22, kernel 6.18) |
| userspace | an atomic addition for each connection or session; 100 bytes for each service port | – |
| ipvs | none for packets: the kernel always counts. A reading lists all virtual servers over a socket of its own: 380 ms of CPU for 10,000 in an emulated machine, without delay for changes (median). The kernel adds up every 2 seconds; counts since the last reading are lost when a virtual server is removed. With ` + "`net.ipv4.vs.run_estimation`" + ` 0 nothing is counted, which the log says | ` + "`go test -c ./plane/ipvs && test/vm/vmrun --kernel 6.12 -- ./ipvs.test -test.run '^$' -test.bench Counters -test.benchtime 5x`" + ` (2026-11-22, kernel 6.12) |

## Metrics of every Kubernetes component (MT-21)

` + "`kubernetes_build_info`, `kubernetes_feature_enabled`, `rest_client_*`, `go_*`, `process_*`, `registered_metrics_total`," + `
` + "`hidden_metrics_total`, `disabled_metrics_total`" + `; on ` + "`/metrics/slis`" + ` ` + "`kubernetes_healthcheck` and `kubernetes_healthchecks_total`" + `.
Some ` + "`rest_client_*`" + ` metrics appear with their first request. ` + "`registered_metrics_total`" + ` counts only our histograms.

## Absent metrics

- MT-20, ` + "`sync_proxy_rules_latency_microseconds`" + `: upstream removed it in 1.17.
- ` + "`apiserver_audit_*`" + `: unused metrics of a library.
`
