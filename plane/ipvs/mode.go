// Package ipvs is the data plane for --proxy-mode ipvs: virtual servers of the kernel's load
// balancer IPVS, the device kube-ipvs0 with the addresses of Services, and ipsets with constant
// iptables chains.
//
//	frontend 10.96.0.10:80/tcp ──┬─▶ virtual server TCP 10.96.0.10:80 rr ── real servers 10.1.0.4:8080, …
//	                             ├─▶ address 10.96.0.10 of kube-ipvs0, so that packets are for this node
//	                             ├─▶ member 10.96.0.10,tcp:80 of KUBE-CLUSTER-IP, and others (DP-32)
//	                             └─▶ for an origin with its own route: member of KUBE-MARK-POD or -HOST
//	                                 with a mark, and a virtual server of that mark
//
// A packet to a service address comes to INPUT, where chains of mangle look up its origin in the
// sets of marks. IPVS then takes it (LOCAL_IN), by its mark or by its address and port. It takes
// the node's own packets before filter's OUTPUT. POSTROUTING masquerades marked packets. A virtual
// server without real servers refuses.
//
// [Plane] keeps these objects, in an order that refuses no served client, since the kernel has no
// transactions here (docs/adr/0046). mode_linux.go connects it to the kernel; docs/ipvs.md is for
// operators.
//
// # Whose virtual servers
//
// IPVS has no names, so other objects show who made a virtual server. It is a kube-proxy's if
//
//   - its address is on kube-ipvs0, or
//   - its address and port, or its address, is in an ipset of service addresses or marks (an
//     address of another interface is not bound to kube-ipvs0, DP-31; and servers outlive
//     Services), or
//   - it has an address of this machine and a port of the ipsets of NodePorts, or
//   - it is the one for trying schedulers, 198.51.100.0:20000 (DP-35), or
//   - it goes by a firewall mark with the form of our marks, or in one of the sets of marks.
//
// Never is it one inside --ipvs-exclude-cidrs. All others stay and are reported; upstream deletes
// them.
package ipvs

import (
	"slices"

	"kube-proxy/mode"
)

// Device is the interface that holds the service addresses in the mode ipvs (G3, DP-31).
const Device = "kube-ipvs0"

// The mode's metrics that its planes report.
const (
	restoreFailures  = "sync_proxy_rules_iptables_restore_failures_total" // MT-09
	virtualServers   = "ipvs_virtual_servers"
	drainingServers  = "ipvs_draining_virtual_servers"
	setMembers       = "ipvs_ipset_members"
	serviceAddresses = "ipvs_service_addresses"
	messages         = "ipvs_netlink_messages_total"
	messageBytes     = "ipvs_netlink_bytes_total"
)

// facts describes the mode on every system; its functions are of Linux.
func facts() mode.Mode {
	family, to := []string{"ip_family"}, []string{"ip_family", "to"}
	return mode.Mode{
		Name: "ipvs",

		Texts: mode.Texts{
			Doc:    "virtual servers of the kernel's load balancer IPVS, with rules and sets of iptables around them",
			Loader: "ipvsadm --restore, ipset restore, ip -batch and iptables-restore, a part for each",
			Show:   "ipvsadm -ln",
			Flush:  "ipvsadm --clear",
		},

		Selection: mode.Selection{
			OS:          "linux",
			Gate:        "KubeProxyIPVS",
			FallsBackTo: "iptables",
		},

		Config: mode.Config{
			Options:  options,
			Block:    "iptables",
			Periods:  "ipvs",
			Networks: networks,
			Reads:    []string{"ipvs", "iptables.masqueradeBit", "iptables.masqueradeAll", "serviceMetrics"},
		},

		Host: mode.Host{
			RunsIPTables:  true,
			AddressDevice: Device,
		},

		Planes: mode.Planes{
			Metrics: slices.Concat([]mode.Metric{
				{Name: restoreFailures},
				{Row: "EXT", Name: virtualServers, Kind: mode.Gauge, Labels: family,
					Help: "Virtual servers of this proxy"},
				{Row: "EXT", Name: drainingServers, Kind: mode.Gauge, Labels: family,
					Help: "Virtual servers with draining real servers"},
				{Row: "EXT", Name: setMembers, Kind: mode.Gauge, Labels: family,
					Help: "Members of this proxy's ipsets"},
				{Row: "EXT", Name: serviceAddresses, Kind: mode.Gauge, Labels: family,
					Help: "Addresses of Services, on kube-ipvs0 or another interface"},
				{Row: "EXT", Name: messages, Kind: mode.Counter, Labels: to,
					Help: "Netlink messages to list and change virtual servers (ipvs) and ipset members (ipset)"},
				{Row: "EXT", Name: messageBytes, Kind: mode.Counter, Labels: to, Help: "Bytes of those messages"},
				{Name: mode.ServiceConnections},
				{Name: mode.ServiceBytes},
			}, mode.ConntrackMetrics),
			Weigh: weigh,
		},

		Deviations: mode.Deviations{
			HairpinsByNode: true,
		},

		Objects: mode.Objects{
			Rules: "ipvs",
			Among: "iptables",
		},
	}
}
