package event

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Entry is one line of the catalogue.
type Entry struct {
	Reason, Action string
	Type           Type
	// Regards is the kind of object that the event is about.
	Regards string
	// Note is the text; words in braces are replaced.
	Note string
	// Meaning describes when the event is sent and how to react.
	Meaning string
	// Row names the rows of docs/behaviour.md.
	Row string
}

// The actions.
const (
	actionStart     = "StartKubeProxy"
	actionListen    = "Listen"
	actionEndpoints = "GatherEndpoints"
	actionSync      = "SyncRules"
	actionReload    = "ReloadConfiguration"
)

var catalogue = []Entry{
	{"Starting", actionStart, Normal, KindNode,
		"Starting kube-proxy on node {node}",
		"Sent at each start of the process.", "EV-01"},
	{"FailedToStartProxierHealthcheck", actionStart, Warning, KindNode,
		"kube-proxy on node {node} cannot serve health checks on {addr}: {err}",
		"Sent only with bindAddressHardFail, before the process ends. Usually another program has the port of " +
			"healthzBindAddress.", "EV-02"},
	{"FailedToStartMetricServer", actionStart, Warning, KindNode,
		"kube-proxy on node {node} cannot serve metrics on {addr}: {err}",
		"Sent only with bindAddressHardFail, before the process ends. Usually another program has the port of " +
			"metricsBindAddress.", "EV-03"},
	{"readOnlySysFS", actionStart, Warning, KindNode,
		"cannot resize conntrack's hash table on node {node}, because /sys is read-only: {err}",
		"A small hash table makes lookups slow. Mount /sys writable, or set the module's parameter at boot.",
		"EV-04, PR-10"},
	{"FailedToStartServiceHealthcheck", actionListen, Warning, KindService,
		"node {node} cannot serve the Service's health check on port {port}: {err}",
		"Another program on the node has the healthCheckNodePort, so load balancers send no traffic to this node. " +
			"The proxy retries with backoff, up to a minute.", "EV-05, HT-15"},
	{"KubeProxyIncorrectIPVersion", actionEndpoints, Warning, "Service or EndpointSlice",
		"{field}: {value} {what}",
		"An address has another IP family than its object says; it is ignored.", "EV-06"},
	{"KubeProxyDefaultMode", actionStart, Warning, KindNode,
		"no mode is configured, so kube-proxy on node {node} uses {mode}; the default of Kubernetes v1.40 will be " +
			"nftables. Set mode to keep {mode}",
		"Neither the file nor --proxy-mode names a mode.", "EV-07"},
	{"IPVSDeprecation", actionStart, Warning, KindNode,
		"kube-proxy on node {node} runs in mode ipvs, which is deprecated: it is off by default in Kubernetes v1.40 " +
			"and removed in v1.43; use nftables",
		"Mode ipvs works, but is no longer developed.", "EV-07"},
	{"KubeProxyModeFallback", actionStart, Warning, KindNode,
		"kube-proxy on node {node} uses mode {to}, because mode {from} is unavailable: {why}{caution}",
		"The node does not support the configured mode. Install what the text names, or configure the mode in use.",
		"EXT"},
	{"KubeProxyModeFromAnnotation", actionStart, Normal, KindNode,
		"kube-proxy on node {node} uses mode {mode} from the Node's annotation {annotation}",
		"No mode is configured, and the annotation names one. Set mode to override it, or remove the annotation to " +
			"get the default.", "EXT"},
	{"KubeProxySourceRangesUnsupported", actionSync, Warning, KindNode,
		"kube-proxy on node {node} cannot enforce loadBalancerSourceRanges of {service} at {key}: {what}",
		"The Host Networking Service of Windows has no source ranges. Let the cloud's load balancer enforce them and " +
			"set windowsIgnoreSourceRanges, or keep such Services off Windows nodes.", "WN-20"},
	{"KubeProxyNodeNotFound", actionStart, Warning, KindNode,
		"kube-proxy runs as node {node}, but cannot find or read a Node of that name; it continues without the " +
			"Node's data",
		"The host's name differs from the Node's, which affects topology, node addresses, pod CIDRs and local " +
			"traffic policies: set --hostname-override. Or the proxy may not read Nodes: check the role " +
			"system:node-proxier.", "PN-71"},
	{"KubeProxyDriftRepaired", actionSync, Warning, KindNode,
		"another program changed or removed {count} of kube-proxy's {family} rules on node {node}; kube-proxy " +
			"restored them",
		"Find the other program. Repetitions are counted in the event's series.", "EXT"},
	{"KubeProxyContestedKey", actionSync, Warning, KindService,
		"{key} belongs to Service {winner}, which {why}; this Service gets no traffic there{more}",
		"Two Services claim the same address, port and protocol. A cluster IP precedes a load balancer's address, " +
			"which precedes an external IP; among equals the oldest Service wins, then the first by name. A Service " +
			"that loses several has one event.", "SV-24"},
	{"KubeProxyRulesOverridden", actionSync, Warning, KindNode,
		"eBPF programs of mode ebpf decide about connections before the rules of kube-proxy on node {node}: {err}",
		"The node left mode ebpf, but its programs remain and connect sockets to endpoints that may be gone. The " +
			"proxy is not ready. Run kube-proxy --init-only in a privileged container, as the chart's init container " +
			"does (docs/migrating.md#from-mode-ebpf).", "EB-31"},
	{"KubeProxyServiceNetworkAddress", actionSync, Warning, KindService,
		"{key} is in the service network, but this Service uses it as its {kind}{more}; it is served until it is " +
			"assigned as a cluster IP",
		"The cluster allocates the service network. The Service loses this address when another Service gets it as " +
			"its cluster IP. Use another address.", "SV-24"},
	{"KubeProxyAddressRefused", actionSync, Warning, KindService,
		"not served: {what}",
		"The Service or its slices name special addresses (loopback, link-local, multicast, broadcast, unspecified, " +
			"reserved), addresses outside externalIPCIDRs, or too many: a Service may have 16,384 load-balancer and " +
			"external addresses times ports, and 262,144 endpoints times ports. The rest of the Service is served, " +
			"unless the cluster IP is refused.", "SV-26, SV-13"},
	{"KubeProxyNodePortInUse", actionListen, Warning, KindService,
		"NodePort {port}/{proto} {takes} a program on node {node} that listens on {listener}",
		"The NodePort wins: the program gets no new connections from other hosts. At 127.0.0.1 and ::1 in mode " +
			"nftables the program wins instead. Change one of the ports.", "PN-60, TN-58"},
	{"KubeProxyNodeAddressTaken", actionListen, Warning, KindService,
		"{key} is at an address of node {node} itself and takes traffic from {from}{more}",
		"An external or load-balancer address of the Service is an address of the node. The Service wins: the " +
			"program, or the other Service's NodePort, gets no new connections there. Change the Service's port or " +
			"address. externalIPCIDRs can exclude the nodes' networks.", "SV-65, EXT"},
	{"KubeProxyAffinityNearlyFull", actionSync, Warning, KindNode,
		"the session affinity map of {family} on node {node} is {percent} % full; Services with the most clients: " +
			"{services}",
		"If it is full, the hash of a new client's address selects the endpoint, which changes with the number of " +
			"endpoints. Check the clients of the named Services, and shorten timeoutSeconds. Sent again after the " +
			"map was below 60 %.", "EXT"},
	{"KubeProxyNodeUnreachable", actionSync, Warning, KindNode,
		"node {other} is unreachable from node {node}; endpoints there: {endpoints}",
		"Probes by this node of the other node's ports and of endpoints on it got no answer, while other nodes " +
			"answer. With failover, this node's clients get other endpoints. Check the other node, and the network " +
			"between the two. Sent at most once in 10 minutes for a node.", "FO-14"},
	{"KubeProxyConfigReloaded", actionReload, Normal, KindNode,
		"kube-proxy on node {node} applied the changed configuration {file}: {changes}",
		"A change of the configuration file took effect without a restart.", "EXT"},
	{"KubeProxyConfigInvalid", actionReload, Warning, KindNode,
		"kube-proxy on node {node} ignores the changed configuration {file} and keeps its settings: {err}",
		"The configuration file is invalid. The next start would fail.", "EXT"},
	{"KubeProxyServingSnapshot", actionStart, Warning, KindNode,
		"kube-proxy on node {node} started without the API server and served {services} Services from its snapshot " +
			"of {written}",
		"The node has booted before the API server answered. Sent when it answers, after which the lists are in force.",
		"SN-03"},
}

// Catalogue returns all events that the proxy can send.
func Catalogue() []Entry { return catalogue }

// about makes an event of the entry with the reason. with alternates words of the note and their
// values.
func about(reason string, o Object, subject string, with ...string) Event {
	e := catalogue[slices.IndexFunc(catalogue, func(e Entry) bool { return e.Reason == reason })]
	for i := 0; i < len(with); i += 2 {
		with[i] = "{" + with[i] + "}"
	}
	return Event{Type: e.Type, Reason: e.Reason, Action: e.Action, Regarding: o, Subject: subject,
		Note: strings.NewReplacer(with...).Replace(e.Note)}
}

// Starting reports a start of the process (EV-01).
func Starting(node string) Event {
	return about("Starting", Node(node), "", "node", node)
}

// FailedToStartProxierHealthcheck reports that the health server cannot listen, which ends the
// process (EV-02).
func FailedToStartProxierHealthcheck(node, addr string, err error) Event {
	return about("FailedToStartProxierHealthcheck", Node(node), "", "node", node, "addr", addr, "err", err.Error())
}

// FailedToStartMetricServer reports that the metrics server cannot listen, which ends the process
// (EV-03).
func FailedToStartMetricServer(node, addr string, err error) Event {
	return about("FailedToStartMetricServer", Node(node), "", "node", node, "addr", addr, "err", err.Error())
}

// ReadOnlySysFS reports that conntrack's hash table cannot be resized (EV-04).
func ReadOnlySysFS(node string, err error) Event {
	return about("readOnlySysFS", Node(node), "", "node", node, "err", err.Error())
}

// FailedToStartServiceHealthcheck reports an occupied healthCheckNodePort (EV-05). service is
// "ns/name".
func FailedToStartServiceHealthcheck(service, node string, port uint16, err error) Event {
	p := strconv.Itoa(int(port))
	return about("FailedToStartServiceHealthcheck", Service(service), p, "node", node, "port", p, "err", err.Error())
}

// IncorrectIPVersion reports an address of the wrong family (EV-06): its field, its value, and the
// fault.
func IncorrectIPVersion(o Object, field, value, what string) Event {
	return about("KubeProxyIncorrectIPVersion", o, withoutIndexes(field)+" "+value, "field", field, "value", value,
		"what", what)
}

// withoutIndexes turns "endpoints[3].addresses[0]" into "endpoints[].addresses[]", because indexes
// change with the neighbours.
func withoutIndexes(field string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, field)
}

// DefaultModeWillChange reports that no mode is configured (EV-07); mode is the running one.
func DefaultModeWillChange(node, mode string) Event {
	return about("KubeProxyDefaultMode", Node(node), "", "node", node, "mode", mode)
}

// IPVSDeprecated reports that mode ipvs runs (EV-07).
func IPVSDeprecated(node string) Event {
	return about("IPVSDeprecation", Node(node), "", "node", node)
}

// ModeFallback reports that mode to replaces from, with the reason and an optional caution about
// to.
func ModeFallback(node, from, to string, why error, caution string) Event {
	if caution != "" {
		caution = ". " + caution
	}
	return about("KubeProxyModeFallback", Node(node), from, "node", node, "from", from, "to", to, "why", why.Error(),
		"caution", caution)
}

// ModeFromAnnotation reports that the Node's annotation of that name selected the mode.
func ModeFromAnnotation(node, mode, annotation string) Event {
	return about("KubeProxyModeFromAnnotation", Node(node), "", "node", node, "mode", mode, "annotation", annotation)
}

// SourceRangesUnsupported reports that the mode cannot enforce source ranges, and its behaviour
// instead. service and key are the first of such frontends (WN-20).
func SourceRangesUnsupported(node, service, key, what string) Event {
	return about("KubeProxySourceRangesUnsupported", Node(node), key, "node", node, "service", service, "key", key,
		"what", what)
}

// NodeNotFound reports that this host's name is not the name of a Node (PN-71).
func NodeNotFound(node string) Event {
	return about("KubeProxyNodeNotFound", Node(node), "", "node", node)
}

// DriftRepaired reports that other programs changed rules of one family, "IPv4" or "IPv6".
func DriftRepaired(node, family string, count int) Event {
	return about("KubeProxyDriftRepaired", Node(node), family, "node", node, "family", family, "count",
		strconv.Itoa(count))
}

// NodeUnreachable reports that this node does not reach another one, which has so many endpoints
// (FO-14).
func NodeUnreachable(node, other string, endpoints int) Event {
	return about("KubeProxyNodeUnreachable", Node(node), other, "node", node, "other", other, "endpoints",
		strconv.Itoa(endpoints))
}

// ContestedKey reports that winner, "which {why}", has key instead of loser (SV-24). Both are
// "ns/name". The same change lost more further keys.
func ContestedKey(loser, winner, key, why string, more int) Event {
	others := ""
	if more > 0 {
		others = fmt.Sprintf(", and %d more of its addresses and ports belong to others", more)
	}
	return about("KubeProxyContestedKey", Service(loser), key+" "+winner, "key", key, "winner", winner, "why", why,
		"more", others)
}

// RulesOverridden reports that programs of mode ebpf, which could not be removed, decide about
// connections before the rules of the running mode.
func RulesOverridden(node string, err error) Event {
	return about("KubeProxyRulesOverridden", Node(node), "", "node", node, "err", err.Error())
}

// AddressLent reports that the Service "ns/name" uses an address of the service network as another
// kind of address (SV-24). more counts further ones.
func AddressLent(service, key, kind string, more int) Event {
	others := ""
	if more > 0 {
		others = fmt.Sprintf(", as are %d more", more)
	}
	return about("KubeProxyServiceNetworkAddress", Service(service), key, "key", key, "kind", kind, "more", others)
}

// AddressRefused reports that addresses of the Service "ns/name" are not served (SV-26). what has
// the addresses and the reason; subject identifies them across repetitions.
func AddressRefused(service, what, subject string) Event {
	return about("KubeProxyAddressRefused", Service(service), subject, "what", what)
}

// AffinityNearlyFull reports that the session affinity map of one family is nearly full. services
// are those with the most clients.
func AffinityNearlyFull(node, family string, percent int, services []string) Event {
	return about("KubeProxyAffinityNearlyFull", Node(node), family, "node", node, "family", family, "percent",
		strconv.Itoa(percent),
		"services", strings.Join(services, ", "))
}

// NodePortInUse reports that a program of this node listens on a NodePort (PN-60). service is
// "ns/name[:port]"; proto is "tcp", "udp" or "sctp". kept: the program keeps its traffic.
func NodePortInUse(service, node string, port uint16, proto string, listener netip.AddrPort, kept bool) Event {
	takes := "takes traffic from"
	if kept {
		takes = "is not served at the address of"
	}
	return about("KubeProxyNodePortInUse", Service(service), fmt.Sprintf("%d/%s %s %v", port, proto, node, listener),
		"port", strconv.Itoa(int(port)), "proto", proto, "takes", takes, "node", node, "listener", listener.String())
}

// NodeAddressTaken reports that the Service "ns/name[:port]" takes a port at the node's own address
// from a program that listens there or, if listener is invalid, from another Service's NodePort.
// more counts further ports.
func NodeAddressTaken(service, node, key string, listener netip.AddrPort, nodePort string, more int) Event {
	from := "a program that listens on " + listener.String()
	if !listener.IsValid() {
		from = "the NodePort of Service " + nodePort
	}
	others := ""
	if more > 0 {
		others = fmt.Sprintf("; there are %d more such ports of this Service", more)
	}
	return about("KubeProxyNodeAddressTaken", Service(service), key+" "+node+" "+from, "key", key, "node", node, "from",
		from, "more", others)
}

// ConfigReloaded reports that a changed file is in force. changes lists its fields.
func ConfigReloaded(node, file, changes string) Event {
	return about("KubeProxyConfigReloaded", Node(node), changes, "node", node, "file", file, "changes", changes)
}

// ConfigIgnored reports that a changed file is invalid; the previous settings stay in force.
func ConfigIgnored(node, file string, err error) Event {
	return about("KubeProxyConfigInvalid", Node(node), err.Error(), "node", node, "file", file, "err", err.Error())
}

// ServingSnapshot reports that the node serves facts that were written before its boot (SN-03).
func ServingSnapshot(node string, written time.Time, services int) Event {
	return about("KubeProxyServingSnapshot", Node(node), "", "node", node, "services", strconv.Itoa(services),
		"written", written.UTC().Format(time.RFC3339))
}
