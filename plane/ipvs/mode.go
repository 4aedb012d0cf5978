// Package ipvs is the data plane for --proxy-mode ipvs. It is not built yet: there is what configuration and the host need to
// know of it, and how to remove what such a proxy, upstream's, leaves.
//
// # Whose virtual servers
//
// IPVS has no names: who made a virtual server can only be told from what else is there. A virtual server is a
// kube-proxy's if its address is on kube-ipvs0; or if its address and port, or its address alone, is in one of the
// ipsets that hold service addresses (an address that another interface has already is not bound to kube-ipvs0,
// DP-31); or if it has an address of this machine and a port that is in the ipsets of NodePorts; or if it is the one
// by which upstream tries out a scheduler, 198.51.100.0:20000 (DP-35). Never if it goes by a firewall mark, or lies in one of
// --ipvs-exclude-cidrs. All others stay and are told of; upstream would delete them.
package ipvs

import (
	"time"

	"kube-proxy/mode"
)

// facts is what there is to know of the mode on every system; what it does is of Linux.
func facts() mode.Mode {
	return mode.Mode{
		Name:        "ipvs",
		OS:          "linux",
		Doc:         "virtual servers of the kernel's load balancer IPVS, with rules and sets of iptables around them",
		Gate:        "KubeProxyIPVS",
		FallsBackTo: "iptables",

		Block:      "iptables",
		Periods:    "ipvs",
		Reads:      []string{"ipvs", "iptables.masqueradeBit", "iptables.masqueradeAll"},
		SyncPeriod: 30 * time.Second,

		Metrics: []mode.Metric{
			{Name: "sync_proxy_rules_iptables_restore_failures_total"},
			{Name: "conntrack_reconciler_sync_duration_seconds"},
			{Name: "conntrack_reconciler_deleted_entries_total"},
		},

		Rules: "ipvs",
		Among: "iptables",
	}
}
