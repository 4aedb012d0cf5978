// Package status tells how the proxy stands: it has the metrics, and the server that shows them, the configuration, the
// flags and profiles (HT-20 to HT-27).
//
//	engine ──Written, Programmed──▶ Metrics ◀── Stats() at each scrape
//	conntrack, health, planes ─────▶   │
//	                                Server ──▶ /metrics /healthz /proxyMode /configz /statusz /flagz /debug/pprof
//
// All metrics stand in one table, table.go; what is registered and docs/metrics.md are both made from it. What counts
// as it happens is asked for at a scrape only, so that metrics cost nothing in between; durations, which cannot be asked
// for afterwards, are told.
package status
