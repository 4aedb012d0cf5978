package nftables

import (
	"slices"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// The metrics that the mode's planes report.
const (
	cleanupFailures = "sync_proxy_rules_nftables_cleanup_failures_total" // MT-14
	entriesMetric   = "session_affinity_entries"
	limitMetric     = "session_affinity_entries_limit"

	localhostListeners = "nftables_localhost_nodeport_listeners" // MT-19
	localhostFailures  = "nftables_localhost_nodeport_listener_creation_failures_total"
	localhostRejected  = "nftables_localhost_nodeport_rejected_packets_total"
)

// facts returns the facts about the mode that hold on every system; only Linux can run it.
func facts() mode.Mode {
	return mode.Mode{
		Name: "nftables",

		Texts: mode.Texts{
			Doc:    "maps and chains of one nftables table for each IP family, written in transactions",
			Loader: "nft -f",
			Show:   "nft list table ip kube-proxy",
			Flush:  "nft flush table ip kube-proxy",
		},

		Selection: mode.Selection{
			OS:      "linux",
			Unasked: "linux",
		},

		Config: mode.Config{
			Options: options,
			Block:   "nftables",
			Reads:   []string{"nftables", "serviceMetrics"},
			Inherits: map[string]string{
				"nftables.syncPeriod":    "iptables.syncPeriod",
				"nftables.minSyncPeriod": "iptables.minSyncPeriod",
				"nftables.masqueradeBit": "iptables.masqueradeBit",
				"nftables.masqueradeAll": "iptables.masqueradeAll",
			},
			NodePortsPrimary: true,
			LocalhostGate:    "KubeProxyNFTablesLocalhostNodePorts",
		},

		Planes: mode.Planes{
			Metrics: slices.Concat([]mode.Metric{
				{Name: "sync_full_proxy_rules_duration_seconds"},
				{Name: "sync_partial_proxy_rules_duration_seconds"},
				{Name: "sync_proxy_rules_nftables_sync_failures_total"},
				{Row: "MT-14", Name: cleanupFailures, Kind: mode.Counter, Labels: []string{"ip_family"},
					Help: "Always 0: stale objects are deleted in the replacing transaction, so cleanup cannot fail " +
						"separately"},
				{Name: mode.ServiceConnections},
				{Row: "MT-19", Name: localhostListeners, Kind: mode.Gauge, Labels: []string{"ip_family"},
					Help: "Listeners at 127.0.0.1 or ::1 for TCP NodePorts"},
				{Row: "MT-19", Name: localhostFailures, Kind: mode.Counter, Labels: []string{"ip_family"},
					Help: "Failures to create a listener at 127.0.0.1 or ::1, retries included"},
				{Row: "MT-19", Name: localhostRejected, Kind: mode.Counter, Labels: []string{"ip_family", "protocol"},
					Help: "Rejected packets to NodePorts at 127.0.0.1 or ::1: UDP, SCTP, and TCP where the address " +
						"is not selected"},
				{Row: "EXT", Name: entriesMetric, Kind: mode.Gauge, Labels: []string{"ip_family"},
					Help: "Estimated number of clients in the session affinity map, at the last full audit"},
				{Row: "EXT", Name: limitMetric, Kind: mode.Gauge, Labels: []string{"ip_family"},
					Help: "Capacity of the session affinity map in clients; further ones go by a hash of their " +
						"address"},
			}, mode.ConntrackMetrics),
			Weigh: func(s mode.Settings) func(lb.Size) int {
				if s.LocalhostProxy {
					return weighLocalhost
				}
				return weigh
			},
		},

		Objects: mode.Objects{
			Rules: "nftables",
		},
	}
}
