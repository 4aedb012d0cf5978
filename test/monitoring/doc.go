// Package monitoring tests charts/alerts/kube-proxy.yaml and charts/dashboards/kube-proxy.json: here and always against the metrics that there are
// ([docs/metrics.md]) and the runbooks; with -prometheus (`make test-status`) by Debian's promtool and Prometheus, which scrapes proxies in
// which real faults are made. No query of the dashboard is without an answer there, but those that ask for metrics of modes ipvs and
// kernelspace alone, whose kernels are not here: these are held against the modes' tables.
package monitoring
