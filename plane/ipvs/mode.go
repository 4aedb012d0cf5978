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

	"kube-proxy/internal/kernel"
	"kube-proxy/mode"
)

// Mode returns the mode ipvs.
func Mode() mode.Mode {
	return mode.Mode{
		Name:        "ipvs",
		Doc:         "virtual servers of the kernel's load balancer IPVS, with rules and sets of iptables around them",
		Gate:        "KubeProxyIPVS",
		FallsBackTo: "iptables",

		Block:      "iptables",
		Reads:      []string{"ipvs", "iptables.masqueradeBit", "iptables.masqueradeAll", "iptables.syncPeriod", "iptables.minSyncPeriod"},
		SyncPeriod: 30 * time.Second,

		Sysctls: sysctls,
		Load:    kernel.LoadIPVS,

		Metrics: []mode.Metric{
			{Name: "sync_proxy_rules_iptables_restore_failures_total"},
			{Name: "conntrack_reconciler_sync_duration_seconds"},
			{Name: "conntrack_reconciler_deleted_entries_total"},
		},

		Rules:  "iptables",
		Remove: remove,
	}
}

// sysctls are the settings of DP-30.
func sysctls(s mode.Settings) []mode.Sysctl {
	all := []mode.Sysctl{
		{Name: "net.ipv4.vs.conntrack", Value: "1"},
		// A new connection from a port that was used a moment ago would wait for a second. Later kernels have the cause
		// mended; earlier ones do not heed it.
		{Name: "net.ipv4.vs.conn_reuse_mode", Value: "0", From: [2]int{4, 1}, Before: [2]int{5, 9}},
		{Name: "net.ipv4.vs.expire_nodest_conn", Value: "1"},
		{Name: "net.ipv4.vs.expire_quiescent_template", Value: "1", Optional: true},
		{Name: "net.ipv4.ip_forward", Value: "1"},
	}
	if s.StrictARP {
		const asks = "--ipvs-strict-arp (ipvs.strictARP)"
		all = append(all,
			mode.Sysctl{Name: "net.ipv4.conf.all.arp_ignore", Value: "1", Asks: asks},
			mode.Sysctl{Name: "net.ipv4.conf.all.arp_announce", Value: "2", Asks: asks})
	}
	return all
}
