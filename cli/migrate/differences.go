package migrate

import "slices"

// difference is what differs between how a proxy ran and how ours will.
type difference struct {
	// from and to are modes; nil is any. not: the other is none of them. changed: the mode is another than before.
	from, to []string
	changed  bool
	// given: one of these fields says something; nil if it does not matter.
	given []string

	sev                     Severity
	about, differs, why, do string
}

func (d difference) applies(from, to string) bool {
	return (d.from == nil || slices.Contains(d.from, from)) && (d.to == nil || slices.Contains(d.to, to)) && (!d.changed || from != to)
}

var (
	inIPTables = []string{"iptables"}
	inIPVS     = []string{"ipvs"}
	inNFTables = []string{"nftables"}
	inUser     = []string{"userspace"}
)

// differences are from the documents of both programs, docs/conformance.md and the behaviour book; each has where it can be read.
var differences = []difference{
	// Whatever the mode.
	{sev: Same, about: "rolling update", differs: "of two proxies on a node, the second waits until the first has ended; rules serve meanwhile",
		why: "Two that write would undo each other's work (docs/adr/0010-one-writer.md).", do: "Use maxUnavailable, not maxSurge (docs/operate.md)."},
	{sev: Same, about: "metrics", differs: "all metrics of upstream have their names; those of full and partial syncs count writes of all rules and of changes",
		why: "A write costs what changed (docs/metrics.md).", do: "Alerts stay; look at kubeproxy_mode_info and kubeproxy_rows_pending, which are new."},
	{sev: Same, about: "/readyz", differs: "port 10256 also answers /readyz: whether all Services are in the kernel", why: "/healthz is for load balancers, and fails while the node is about to be removed.",
		do: "Use it as the readiness probe of the DaemonSet."},
	{sev: Same, about: "reload", differs: "a changed configuration file takes effect in the running process where it can", why: "Upstream starts anew (docs/adr/0013-which-mode-runs.md).",
		do: "Nothing; docs/configuration.md says which fields need a new process."},
	{sev: Change, about: "mode", changed: true, differs: "the rules of the mode before are removed when the first write of the new mode is done; until then both are in force, and the first that translates decides",
		why: "New connections are never without rules (docs/adr/0013-which-mode-runs.md).", do: "Give the image the programs of the old mode (iptables, ipset) until all nodes have moved, or run --cleanup from one that has them."},

	// The same mode.
	{to: inNFTables, sev: Same, about: "nftables.minSyncPeriod", differs: "it is 0 by default, where upstream has 1s: changes take effect at once", why: "A write costs what changed, whatever the size of the cluster (docs/adr/0021-pieces.md).",
		do: "Nothing."},
	{from: inNFTables, to: inNFTables, sev: Same, about: "table kube-proxy", differs: "its maps and chains are others than upstream's; those are replaced in one transaction", why: "Their contents are no interface.",
		do: "Nothing, unless a program reads them."},
	{from: inIPTables, to: inIPTables, sev: Same, about: "chains KUBE-…", differs: "they have the names of upstream's and are taken over; those of Services are looked up by address in a tree", why: "A packet passes some rules, not one for each Service (docs/adr/0011-iptables-dispatch.md).",
		do: "Nothing, unless a program reads chains other than those that docs/behaviour.md names."},

	// From the modes of the kernel to nftables (DP-26).
	{from: []string{"iptables", "ipvs", "userspace"}, to: inNFTables, sev: Change, about: "NodePorts on 127.0.0.1", differs: "NodePorts do not answer on 127.0.0.1", why: "Mode nftables does not set route_localnet.",
		do: "Use the node's address, or a cluster IP; image registries at localhost:NodePort need another address."},
	{from: []string{"iptables", "userspace"}, to: inNFTables, sev: Change, about: "INVALID packets", differs: "packets that conntrack calls INVALID are not dropped", why: "Upstream's mode nftables does not either.", do: "Set conntrack.tcpBeLiberal where resets were seen."},
	{from: []string{"iptables", "ipvs", "userspace"}, to: inNFTables, sev: Change, about: "host firewalls", differs: "the proxy makes no holes in firewalls of others for health checks and forwarded traffic", why: "In nftables a packet has to be accepted by all base chains.",
		do: "Run kube-proxy check: it names chains that drop. Have them accept the pods' networks and NodePorts."},
	{from: []string{"iptables", "userspace"}, to: inNFTables, sev: Same, about: "unused addresses and ports", differs: "ports of cluster IPs that no Service has are refused, and addresses of the service network that nobody has are dropped", why: "They would leave the node by the default route.",
		do: "Nothing."},
	{from: []string{"iptables", "ipvs", "userspace"}, to: inNFTables, sev: Change, about: "tools", differs: "iptables-save does not show the rules: nft list table ip kube-proxy does", why: "They are a table of nftables.", do: "Change scripts and dashboards that read iptables; network plugins that look for KUBE- chains must know the mode."},
	{from: []string{"iptables", "ipvs", "userspace"}, to: inNFTables, sev: Same, about: "kernel", differs: "Linux 5.10 or later is needed, and no program", why: "Rules are written by netlink.", do: "Run kube-proxy check on each kind of node."},

	// To iptables.
	{from: inNFTables, to: []string{"iptables", "ipvs"}, sev: Change, about: "programs", differs: "the image needs iptables with both back ends, ip6tables, and for ipvs nothing more", why: "Rules are written by these programs.", do: "Use the image that has them."},

	// From ipvs.
	{from: inIPVS, to: []string{"iptables", "nftables", "userspace"}, sev: Change, about: "connections through IPVS", differs: "connections through virtual servers go on for 30 s at most after the new rules are in force, and end then",
		why: "They live in IPVS, which goes.", do: "Drain the node first where long connections matter; docs/migrating.md has the steps."},
	{from: inIPVS, to: []string{"iptables", "nftables"}, sev: Change, about: "ipvs.scheduler", differs: "endpoints get equal shares at random", why: "Schedulers are of IPVS.", do: "Nothing, unless rr, lc or sh was counted on: sessionAffinity: ClientIP stands for sh."},
	{from: inIPVS, to: []string{"iptables", "nftables", "userspace"}, sev: Change, about: "kube-ipvs0", differs: "the device goes, and service addresses are no addresses of the node any more: ping to a cluster IP is not answered, and programs cannot bind to them",
		why: "Mode ipvs holds every address.", do: "Look for programs and checks that ping or bind service addresses."},
	{from: inIPVS, to: []string{"iptables", "nftables"}, given: []string{"ipvs.strictARP"}, sev: Change, about: "ipvs.strictARP", differs: "arp_ignore and arp_announce are not set any more; they stay as they are until the node starts anew",
		why: "It is of mode ipvs, whose addresses are on a device of the node.", do: "MetalLB in layer 2 mode does not need it in other modes."},
	{from: inIPVS, to: []string{"iptables", "nftables"}, given: []string{"ipvs.tcpTimeout", "ipvs.tcpFinTimeout", "ipvs.udpTimeout"}, sev: Change, about: "ipvs.tcpTimeout, ipvs.tcpFinTimeout, ipvs.udpTimeout", differs: "idle times are those of conntrack",
		why: "IPVS has its own.", do: "Say conntrack.tcpEstablishedTimeout, conntrack.tcpCloseWaitTimeout, conntrack.udpTimeout and conntrack.udpStreamTimeout."},
	{from: inIPVS, to: []string{"iptables", "nftables"}, sev: Change, about: "net.ipv4.ip_forward", differs: "the proxy does not turn on forwarding", why: "Of the modes, ipvs alone does.", do: "Have the machine set it when it starts; kube-proxy check says whether it is on."},
	// To ipvs.
	{from: []string{"iptables", "nftables"}, to: inIPVS, sev: Change, about: "kernel modules", differs: "ip_vs, its schedulers, ip_set and dummy are needed", why: "Virtual servers are of IPVS.", do: "Run kube-proxy check --load-modules on each kind of node."},
	{from: []string{"iptables", "nftables"}, to: inIPVS, sev: Change, about: "kube-ipvs0", differs: "service addresses become addresses of the node: it answers ping and ARP for them", why: "Mode ipvs holds every address.", do: "With MetalLB in layer 2 mode or another that answers ARP, set ipvs.strictARP."},

	// Userspace.
	{from: []string{"iptables", "ipvs", "nftables"}, to: inUser, sev: Missing, about: "client addresses", differs: "endpoints see an address of the node, always", why: "Connections end at the proxy (docs/userspace.md).", do: "Use another mode where endpoints tell clients by their address, such as for NetworkPolicy."},
	{from: []string{"iptables", "ipvs", "nftables"}, to: inUser, sev: Change, about: "restarts", differs: "open connections end with the process, userspace.drainTimeout after it was asked to end", why: "They are the process's (docs/userspace.md).", do: "Set userspace.drainTimeout: it is as long as new connections are refused, but where pods surge (docs/userspace.md)."},
	{from: inUser, to: []string{"iptables", "ipvs", "nftables"}, sev: Change, about: "endpoints that do not answer", differs: "clients of an endpoint that does not answer fail", why: "The kernel does not try another.", do: "Give pods readiness probes."},

	// Cilium.
	{from: []string{ciliumMode}, sev: Change, about: "connections", differs: "connections that pods opened to Services go on, those from outside that Cilium translated end when its programs go",
		why: "Cilium translates at the socket for pods, and in its own table of connections for others.", do: "Drain each node before its agent starts anew; docs/migrating.md has the steps."},
	{from: []string{ciliumMode}, sev: Change, about: "order", differs: "the proxy must serve before Cilium's replacement goes", why: "Without either no cluster IP works, the API server's included.",
		do: "Start the proxy first, on nodes that still have the replacement, then restart their agents without it; agents need k8sServiceHost until then."},
	{from: []string{ciliumMode}, sev: Change, about: "session affinity", differs: "clients are led anew", why: "Who was led where is in Cilium's maps.", do: "Nothing."},
	{from: []string{ciliumMode}, sev: Same, about: "monitoring", differs: "hubble and cilium service list do not show Services any more", why: "They look at Cilium's maps.", do: "Use this proxy's metrics, and kube-proxy render."},
}
