// Package monitoring tests charts/alerts/kube-proxy.yaml and charts/dashboards/kube-proxy.json
// against the metrics in docs/metrics.md and the runbooks. With -prometheus (`make test-status`)
// Debian's promtool and Prometheus test them too, with proxies that have real faults. Every query
// of the dashboard must then have an answer, except those for metrics of modes ipvs and kernelspace
// alone, which are compared with the modes' tables.
package monitoring
