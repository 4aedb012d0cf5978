package iptables

import (
	"slices"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// The metrics that the mode's planes report.
const (
	restoreFailures = "sync_proxy_rules_iptables_restore_failures_total"         // MT-09
	partialFailures = "sync_proxy_rules_iptables_partial_restore_failures_total" // MT-10
	rulesTotal      = "sync_proxy_rules_iptables_total"                          // MT-11
	rulesLast       = "sync_proxy_rules_iptables_last"                           // MT-12
	invalidPackets  = "iptables_ct_state_invalid_dropped_packets_total"          // MT-16
	localhostTotal  = "iptables_localhost_nodeports_accepted_packets_total"      // MT-17
)

// facts returns the facts about the mode that hold on every system; only Linux can run it.
func facts() mode.Mode {
	family, table := []string{"ip_family"}, []string{"ip_family", "table"}
	return mode.Mode{
		Name: "iptables",

		Texts: mode.Texts{
			Doc: "chains of the tables filter and nat, written by iptables-restore, of the nft or of the legacy " +
				"back end",
			Loader: "iptables-restore --noflush and ip6tables-restore --noflush",
			Show:   "iptables -t nat -S",
			Flush:  "iptables -t nat -F",
		},

		Selection: mode.Selection{
			OS:          "linux",
			Unasked:     "linux",
			FallsBackTo: "userspace",
			Annotated:   true,
		},

		Config: mode.Config{
			Options:            options,
			Block:              "iptables",
			Reads:              []string{"iptables"},
			LocalhostNodePorts: true,
		},

		Host: mode.Host{
			RunsIPTables: true,
		},

		Planes: mode.Planes{
			Metrics: slices.Concat([]mode.Metric{
				{Name: "sync_full_proxy_rules_duration_seconds"},
				{Name: "sync_partial_proxy_rules_duration_seconds"},
				{Row: "MT-09", Name: restoreFailures, Kind: mode.Counter, Labels: family,
					Help: "Failed runs of iptables-restore"},
				{Row: "MT-10", Name: partialFailures, Kind: mode.Counter, Labels: family,
					Help: "Failed runs of iptables-restore with changes only"},
				{Row: "MT-11", Name: rulesTotal, Kind: mode.Gauge, Labels: table,
					Help: "Rules of this proxy in the kernel"},
				{Row: "MT-12", Name: rulesLast, Kind: mode.Gauge, Labels: table, Help: "Rules in the last write"},
				{Row: "MT-16", Name: invalidPackets, Kind: mode.Counter,
					Help: "Packets dropped because conntrack finds them invalid"},
				{Row: "MT-17", Name: localhostTotal, Kind: mode.Counter,
					Help: "Packets accepted for NodePorts on loopback addresses"},
			}, mode.ConntrackMetrics),
			Weigh: func(mode.Settings) func(lb.Size) int { return weigh },
		},

		Deviations: mode.Deviations{
			PassesUnknown: true,
		},

		Objects: mode.Objects{
			Rules: "iptables",
		},
	}
}
