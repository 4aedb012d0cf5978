package migrate

import "slices"

// difference is a difference between the old proxy's behaviour and ours.
type difference struct {
	// from and to are modes; nil is any. not: the other is none of them. changed: the mode differs
	// from the old one.
	from, to []string
	changed  bool
	// localhost: it only matters where NodePorts answered on 127.0.0.1.
	localhost bool
	// given: one of these fields is set; nil if it does not matter.
	given []string

	sev                     Severity
	about, differs, why, do string
}

func (d difference) applies(from, to string) bool {
	return (d.from == nil || slices.Contains(d.from, from)) && (d.to == nil || slices.Contains(d.to, to)) &&
		(!d.changed || from != to)
}

var (
	inIPTables = []string{"iptables"}
	inIPVS     = []string{"ipvs"}
	inNFTables = []string{"nftables"}
	inUser     = []string{"userspace"}
	inEBPF     = []string{"ebpf"}
	// byNFTables have the packet path of mode nftables.
	byNFTables = []string{"nftables", "ebpf"}
)

// podNeeds are what a mode's container needs beside NET_ADMIN and NET_RAW: capabilities, and
// folders of the host.
var podNeeds = map[string]struct{ capabilities, mounts []string }{
	"ebpf": {[]string{"BPF", "PERFMON", "SYS_ADMIN"}, []string{"/sys/fs/bpf", "/sys/fs/cgroup"}},
}

// differences are from the documents of both programs, docs/conformance.md and docs/behaviour.md,
// each with its source.
var differences = []difference{
	// For any mode.
	{sev: Same, about: "rolling update", differs: "a second proxy on a node waits until the first exits; the rules " +
		"keep serving",
		why: "Two writers would undo each other's work (docs/adr/0010-one-writer.md).",
		do:  "Use maxUnavailable, not maxSurge (docs/operate.md)."},
	{sev: Same, about: "metrics", differs: "upstream's metrics keep their names; metrics of full and partial syncs " +
		"count writes of all rules and of changes",
		why: "A write's cost follows the change (docs/metrics.md).",
		do:  "Keep alerts; kubeproxy_mode_info and kubeproxy_rows_pending are new."},
	{sev: Same, about: "/readyz", differs: "port 10256 also serves /readyz: whether all Services are in the kernel",
		why: "/healthz is for load balancers, and fails while the node is about to be removed.",
		do:  "Use it as the readiness probe of the DaemonSet."},
	{sev: Same, about: "reload",
		differs: "a changed configuration file takes effect in the running process if possible",
		why:     "Upstream restarts (docs/adr/0013-which-mode-runs.md).",
		do:      "Nothing; docs/configuration.md lists the fields that need a restart."},
	{sev: Change, about: "mode", changed: true, differs: "the old mode's rules are removed after the new mode's " +
		"first write; until then both apply, and the first one to translate a packet decides",
		why: "New connections always have rules (docs/adr/0013-which-mode-runs.md).", do: "Keep the old mode's " +
			"programs (iptables, ipset) in the image until all nodes have moved, or run --cleanup from an image that " +
			"has them."},

	// The same mode.
	{to: byNFTables, sev: Same, about: "nftables.minSyncPeriod", differs: "the default is 0, upstream's is 1s: " +
		"changes take effect at once", why: "A write's cost follows the change, not the size of the cluster " +
		"(docs/adr/0021-pieces.md).",
		do: "Nothing."},
	{from: inNFTables, to: inNFTables, sev: Same, about: "table kube-proxy",
		differs: "its maps and chains differ from upstream's, which are replaced in one transaction",
		why:     "Their contents are not an interface.",
		do:      "Nothing, unless a program reads them."},
	{from: inIPTables, to: inIPTables, sev: Same, about: "chains KUBE-…",
		differs: "they have upstream's names and are taken over; a tree finds a Service's chain by address",
		why:     "A packet passes a few rules, not one for each Service (docs/adr/0011-iptables-dispatch.md).",
		do:      "Nothing, unless a program reads chains other than those that docs/behaviour.md names."},

	// From the modes of the kernel to nftables (DP-26).
	{from: []string{"iptables", "userspace"}, to: byNFTables, localhost: true, sev: Change,
		about: "NodePorts on 127.0.0.1",
		differs: "TCP NodePorts answer by connections of the proxy, which end with its process; those of UDP and " +
			"SCTP " +
			"are rejected",
		why: "Mode nftables does not set route_localnet: the proxy listens there (docs/nftables.md).",
		do: "Use the node's address or a cluster IP for UDP, SCTP and connections that must outlive a restart of the " +
			"proxy."},
	{from: []string{"iptables", "userspace"}, to: byNFTables, sev: Change, about: "INVALID packets",
		differs: "packets in conntrack state INVALID are not dropped", why: "Upstream's mode nftables does not either.",
		do: "Set conntrack.tcpBeLiberal if connections were reset."},
	{from: []string{"iptables", "ipvs", "userspace"}, to: byNFTables, sev: Change, about: "host firewalls",
		differs: "the proxy does not open other firewalls for health checks and forwarded traffic",
		why:     "In nftables all base chains must accept a packet.",
		do:      "Run kube-proxy check, which lists such chains. Let them accept the pods' networks and NodePorts."},
	{from: []string{"iptables", "userspace"}, to: byNFTables, sev: Same, about: "unused addresses and ports",
		differs: "unused ports of cluster IPs are rejected, and packets to unused addresses of the service network " +
			"are dropped", why: "They would leave the node through the default route.",
		do: "Nothing."},
	{from: []string{"iptables", "ipvs", "userspace"}, to: byNFTables, sev: Change, about: "tools",
		differs: "iptables-save does not show the rules: nft list table ip kube-proxy does",
		why:     "They are a table of nftables.", do: "Change scripts and dashboards that read iptables; network " +
			"plugins that look for KUBE- chains must know the mode."},
	{from: []string{"iptables", "ipvs", "userspace"}, to: byNFTables, sev: Same, about: "kernel",
		differs: "Linux 5.10 or later is needed, and no program", why: "Rules are written by netlink.",
		do: "Run kube-proxy check on each kind of node."},

	// To iptables.
	{from: byNFTables, to: []string{"iptables", "ipvs"}, sev: Change, about: "programs",
		differs: "the image needs iptables with both back ends, ip6tables, and for ipvs nothing more",
		why:     "Rules are written by these programs.", do: "Use an image with them."},

	// From ipvs.
	{from: inIPVS, to: []string{"iptables", "nftables", "ebpf", "userspace"}, sev: Change,
		about:   "connections through IPVS",
		differs: "connections through virtual servers end at most 30 s after the new rules apply",
		why:     "They exist in IPVS, which is removed.", do: "Drain the node first where long connections matter; " +
			"docs/migrating.md has the steps."},
	{from: inIPVS, to: []string{"iptables", "nftables", "ebpf"}, sev: Change, about: "ipvs.scheduler",
		differs: "endpoints get equal shares at random", why: "Schedulers belong to IPVS.",
		do: "Nothing, unless you rely on rr, lc or sh: sessionAffinity: ClientIP replaces sh."},
	{from: inIPVS, to: []string{"iptables", "nftables", "ebpf", "userspace"}, sev: Change, about: "kube-ipvs0",
		differs: "the device is removed, and service addresses are no longer node addresses: cluster IPs do not " +
			"answer ping, and programs cannot bind to them",
		why: "Mode ipvs assigns every address to the node.",
		do: "Check for programs that ping or bind to service " +
			"addresses."},
	{from: inIPVS, to: []string{"iptables", "nftables", "ebpf"}, given: []string{"ipvs.strictARP"}, sev: Change,
		about: "ipvs.strictARP", differs: "arp_ignore and arp_announce are no longer set; they stay until the node " +
			"reboots",
		why: "Only mode ipvs has service addresses on a device of the node.",
		do:  "MetalLB in layer 2 mode does not need it in other modes."},
	{from: inIPVS, to: []string{"iptables", "nftables", "ebpf"}, given: []string{"ipvs.tcpTimeout",
		"ipvs.tcpFinTimeout", "ipvs.udpTimeout"}, sev: Change,
		about:   "ipvs.tcpTimeout, ipvs.tcpFinTimeout, ipvs.udpTimeout",
		differs: "conntrack's timeouts apply",
		why:     "IPVS has its own timeouts.", do: "Set conntrack.tcpEstablishedTimeout, " +
			"conntrack.tcpCloseWaitTimeout, " +
			"conntrack.udpTimeout and conntrack.udpStreamTimeout."},
	{from: inIPVS, to: []string{"iptables", "nftables", "ebpf"}, sev: Change, about: "net.ipv4.ip_forward",
		differs: "the proxy does not enable forwarding", why: "Only mode ipvs does.",
		do: "Set it at boot; kube-proxy check shows whether it is enabled."},
	// To ipvs.
	{from: []string{"iptables", "nftables", "ebpf"}, to: inIPVS, sev: Change, about: "kernel modules",
		differs: "ip_vs, its schedulers, ip_set and dummy are needed", why: "Virtual servers belong to IPVS.",
		do: "Run kube-proxy check --load-modules on each kind of node."},
	{from: []string{"iptables", "nftables", "ebpf"}, to: inIPVS, sev: Change, about: "kube-ipvs0",
		differs: "service addresses become addresses of the node: it answers ping and ARP for them",
		why:     "Mode ipvs assigns every address to the node.",
		do:      "With MetalLB in layer 2 mode, or other software that answers ARP, set ipvs.strictARP."},

	// Userspace.
	{from: []string{"iptables", "ipvs", "nftables", "ebpf"}, to: inUser, sev: Missing, about: "client addresses",
		differs: "endpoints always see an address of the node", why: "The proxy terminates connections " +
			"(docs/userspace.md).", do: "Use another mode if endpoints need client addresses, for example for " +
			"NetworkPolicy."},
	{from: []string{"iptables", "ipvs", "nftables", "ebpf"}, to: inUser, sev: Change, about: "restarts",
		differs: "open connections end with the process, at most userspace.drainTimeout after SIGTERM",
		why:     "They belong to the process (docs/userspace.md).", do: "Set userspace.drainTimeout; new connections " +
			"are rejected meanwhile, unless pods surge (docs/userspace.md)."},
	{from: inUser, to: []string{"iptables", "ipvs", "nftables", "ebpf"}, sev: Change, about: "unreachable endpoints",
		differs: "connections to an unreachable endpoint fail", why: "The kernel does not try another endpoint.",
		do: "Give pods readiness probes."},

	// ebpf (docs/ebpf.md).
	{to: inEBPF, changed: true, sev: Change, about: "requirements", differs: "the node needs cgroup v2 with its root " +
		"visible and the BPF file system, and the container CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN",
		why: "eBPF programs connect sockets (docs/ebpf.md).",
		do:  "Run kube-proxy check on each kind of node; the chart mounts and adds them."},
	{to: inEBPF, changed: true, sev: Change, about: "client addresses of pods", differs: "endpoints see a pod's own " +
		"address where rules masquerade, for example behind NodePorts and when a pod reaches itself",
		why: "Sockets connect directly, without translation.",
		do:  "Check NetworkPolicies and address lists that expect the node's address."},
	{to: inEBPF, changed: true, sev: Change, about: "tools for connections of the node and its pods",
		differs: "conntrack, ss and packet captures show endpoints, not addresses of Services",
		why:     "Packets have the endpoint's address from the start.",
		do:      "Use kube-proxy trace and status; exempt workloads that need the Service's address on the wire."},
	{to: inEBPF, changed: true, sev: Change, about: "UDP sockets of removed endpoints",
		differs: "reads fail with ECONNABORTED and writes with EDESTADDRREQ until the program connects again",
		why:     "The kernel disconnects the socket; no rule can send its packets elsewhere.",
		do:      "Check programs with long-lived connected UDP sockets, or set ebpf.staleSockets."},
	{to: inEBPF, changed: true, sev: Same, about: "session affinity",
		differs: "the client is a network namespace, not an address",
		why:     "A socket has no source address before it connects.", do: "Nothing."},
	{to: inEBPF, changed: true, sev: Same, about: "rejected Services",
		differs: "connect() fails at once with ECONNREFUSED, without a packet",
		why:     "The programs answer; before Linux 5.18 rules do.", do: "Nothing."},
	{from: inEBPF, changed: true, sev: Change, about: "direct connections",
		differs: "sockets that eBPF programs connected keep their endpoints, also after these are removed",
		why:     "Their packets have no Service's address, so rules do not see them.",
		do:      "Restart programs with connections that must move to other endpoints."},

	// Cilium.
	{from: []string{ciliumMode}, sev: Change, about: "connections", differs: "connections from pods to Services " +
		"continue; those from outside, which Cilium translated, end when its programs are removed",
		why: "Cilium translates at the socket for pods, and in its own connection table for others.",
		do:  "Drain each node before its agent restarts; see docs/migrating.md."},
	{from: []string{ciliumMode}, sev: Change, about: "order", differs: "the proxy must serve before Cilium's " +
		"replacement is removed", why: "Without both, no cluster IP works, not even the API server's.",
		do: "Start the proxy first, on nodes that still have the replacement, then restart their agents without it; " +
			"agents need k8sServiceHost until then."},
	{from: []string{ciliumMode}, sev: Change, about: "session affinity",
		differs: "clients may get another endpoint once", why: "Affinity is stored in Cilium's maps.", do: "Nothing."},
	{from: []string{ciliumMode}, sev: Same, about: "monitoring", differs: "hubble and cilium service list no longer " +
		"show Services", why: "They read Cilium's maps.", do: "Use this proxy's metrics, and kube-proxy render."},
}
