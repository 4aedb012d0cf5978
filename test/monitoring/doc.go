// Package monitoring tests alerts/kube-proxy.yaml and dashboards/kube-proxy.json: here and always against the metrics that there are
// ([docs/metrics.md]) and the runbooks; with -prometheus (`make test-status`) by Debian's promtool and Prometheus, which scrapes proxies in
// which real faults are made.
package monitoring
