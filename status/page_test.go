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
		"`/metrics` on the metrics port (`--metrics-bind-address`, 127.0.0.1:10249) has them as Prometheus text, or as\n" +
		"OpenMetrics where `Accept` asks for it. A metric of one mode is absent in the others: a zero there would mean nothing.\n" +
		"All have the stability level ALPHA, as upstream's. The row is that of [the behaviour book](behaviour.md); *ours* are not upstream's.\n\n" +
		"| metric | type | labels | modes | row | what it says |\n|---|---|---|---|---|---|\n")
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
## What they mean here

- A *write* is one call that hands rules to the kernel: all of them at the start and for a repair (full), else what
  changed (partial). Several events that come at once are one write. Audits, which compare, are not among them, nor
  are proofs, which change nothing: where a Service is refused and nothing else changes, they tell a kernel that takes
  writes from one that takes none, and so whether ` + "`/healthz`" + ` goes on to say 200.
- The network programming latency begins at the time stamp ` + "`endpoints.kubernetes.io/last-change-trigger-time`" + ` of the slice
  that changed, and ends when the last row of its Service is in force. A change for which no row has to be written is in
  force as soon as that is known, and counts. What the first list after a start tells of does not count, nor does a time
  stamp from before the process began, nor a slice that went. While a Service cannot be written, its changes wait; of more
  than 1,000 the oldest are told.
- *Pending* changes are those that have come and are not in force: a Service that the kernel refuses keeps them above 0, until
  all rules are written anew; then ` + "`kubeproxy_rows_failing`" + ` still tells of it. Changes are counted once, not once for each IP family; an update that makes no difference to the proxy is none.
- The alert "last queued > last" works although an event that changes no rule causes no write: the time stamp of the last
  sync moves then too.
- ` + "`kubeproxy_sync_proxy_rules_no_local_endpoints_total`" + ` counts what is in force: a service port that has no endpoint
  anywhere rejects, whatever its policy, and is not counted; neither is one with policy Local and no external address.

## Connections by Service

` + "`--service-metrics=N`" + ` counts new connections and flows that are led to endpoints, whether those answer or not. The N Services with the most, 1,000 at most,
have a series each, in each IP family; all others are one together, whose namespace and service are ` + "`_others`" + `. A Service gets a series when one is free, or when it has twice
the traffic of the one with the least; at each reading a tenth of N may change. Every series only grows, and the sum is right at any time. Counting begins with the process, and with the
first scrape for frontends that were in use before; counters are read at most every 5 seconds, beside writes. Without the flag nothing is counted, and there is no such metric. Bytes are not counted:
that would cost each packet.

*Mode nftables.* 65,536 frontends can be in use within ten minutes; those of more are served, not counted. The first packet of a connection costs 3 to 10 % more CPU of the kernel, about 0.6 µs of 8; all others nothing (2026-11-22, kernel 6.18, seven runs of
` + "`go test ./plane/nftables -run '^$' -bench Counting -benchtime 1x`" + `, a ratio in each run). A frontend in use takes about 200 bytes of the kernel's memory, and 16 for each CPU.

*Mode userspace.* A connection, or a session of UDP, costs one atomic addition when it is led to its first endpoint, and no memory; a service port takes 100 bytes. One for which further endpoints are
tried counts once, one that is refused not at all.

*Mode ipvs.* The kernel counts connections by virtual server, always, so that connections and changes cost nothing more. A reading lists all virtual servers of the network namespace, over a socket of its own: for
10,000 of them 380 ms of CPU in an emulated machine of 2 CPUs, where to make and to remove one virtual server takes 36 µs, beside the reading as alone (the median; the longest waited 45 ms, and 14 ms alone; 2026-11-22, kernel 6.12,
` + "`go test -c ./plane/ipvs && test/vm/vmrun --kernel 6.12 -- ./ipvs.test -test.run '^$' -test.bench Counters -test.benchtime 5x`" + `). Each IP family has a reading of its own. The kernel adds up every 2 seconds, and what a virtual server
counted since the last reading when it is removed is lost. While ` + "`net.ipv4.vs.run_estimation`" + ` is 0 the kernel tells nothing: the log says so at start.

## What every component of Kubernetes has (MT-21)

` + "`kubernetes_build_info`, `kubernetes_feature_enabled`, `rest_client_*`, `go_*`, `process_*`, `registered_metrics_total`," + `
` + "`hidden_metrics_total`, `disabled_metrics_total`" + `; and on ` + "`/metrics/slis`" + ` ` + "`kubernetes_healthcheck`, `kubernetes_healthchecks_total`" + `.
Some of ` + "`rest_client_*`" + ` appear with the first request that they count. ` + "`registered_metrics_total`" + ` counts histograms of ours alone.

## What is absent, and why

- MT-20, ` + "`sync_proxy_rules_latency_microseconds`" + `: upstream removed it with 1.17.
- ` + "`apiserver_audit_*`" + `: leftovers of a library, always 0.
`
