// Package status has the metrics and the metrics server, which also serves the configuration, the
// flags and profiles (HT-20 to HT-27).
//
//	engine ──Written, Programmed──▶ Metrics ◀── Stats() at each scrape
//	conntrack, health, planes ─────▶   │
//	                                Server ──▶ /metrics /healthz /proxyMode /configz /statusz /flagz /debug/pprof
//
// One table, table.go, lists all metrics; registration and docs/metrics.md are made from it.
// Counters and gauges are collected at a scrape, so that they cost nothing in between; durations
// are observed as they occur.
package status
