package event

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Entry is one line of the catalogue.
type Entry struct {
	Reason, Action string
	Type           Type
	// Regards is the kind of object that the event is about.
	Regards string
	// Note is the text; a word in braces stands for what differs.
	Note string
	// Meaning says when it comes and what to do.
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
		"Once for each start of the process.", "EV-01"},
	{"FailedToStartProxierHealthcheck", actionStart, Warning, KindNode,
		"kube-proxy on node {node} cannot serve health checks on {addr}: {err}",
		"Only where bindAddressHardFail asks to end because of it. Mostly another program has the port of healthzBindAddress.", "EV-02"},
	{"FailedToStartMetricServer", actionStart, Warning, KindNode,
		"kube-proxy on node {node} cannot serve metrics on {addr}: {err}",
		"Only where bindAddressHardFail asks to end because of it. Mostly another program has the port of metricsBindAddress.", "EV-03"},
	{"readOnlySysFS", actionStart, Warning, KindNode,
		"conntrack's hash table on node {node} keeps its size, because /sys is read-only: {err}",
		"The table may have more entries than the hash table is good for, which costs time. Mount /sys writable, or set the module's parameter at boot.", "EV-04, PR-10"},
	{"FailedToStartServiceHealthcheck", actionListen, Warning, KindService,
		"node {node} cannot serve the Service's health check on port {port}: {err}",
		"Another program on the node has the healthCheckNodePort; load balancers will not send traffic to this node. It is tried again, once a minute in the end.", "EV-05, HT-15"},
	{"KubeProxyIncorrectIPVersion", actionEndpoints, Warning, "Service or EndpointSlice",
		"{field}: {value} {what}",
		"An address is of another IP family than the object says; it is ignored.", "EV-06"},
	{"default-mode-will-change", actionStart, Warning, KindNode,
		"no mode is configured, so kube-proxy on node {node} uses {mode}; a later version will choose another. Set mode to keep it",
		"Neither the file nor --proxy-mode names a mode.", "EV-07"},
	{"ipvs-deprecated", actionStart, Warning, KindNode,
		"kube-proxy on node {node} runs in the mode ipvs, which is deprecated; nftables takes its place",
		"The mode ipvs works, but is not developed any further.", "EV-07"},
	{"KubeProxyModeFallback", actionStart, Warning, KindNode,
		"kube-proxy on node {node} uses the mode {to}, because {from} cannot work here: {why}{caution}",
		"The configured mode cannot work on this node. Install what the text names, or configure the mode that is used.", "EXT"},
	{"KubeProxyModeFromAnnotation", actionStart, Normal, KindNode,
		"kube-proxy on node {node} takes the mode {mode} from the Node's annotation {annotation}",
		"No mode is configured, and the annotation names one. Set mode to choose another; remove the annotation to get the default.", "EXT"},
	{"KubeProxySourceRangesUnsupported", actionSync, Warning, KindNode,
		"kube-proxy on node {node} cannot enforce loadBalancerSourceRanges, which {service} has at {key}: {what}",
		"The Host Networking Service of Windows knows no source ranges. Let the cloud's load balancer enforce them and set windowsIgnoreSourceRanges, or keep such Services off Windows nodes.", "WN-20"},
	{"KubeProxyNodeNotFound", actionStart, Warning, KindNode,
		"kube-proxy runs as node {node}, but there is no Node of that name, or none that it may read; what depends on the Node does without it",
		"The host's name is not the Node's: topology, node addresses, pod CIDRs and local traffic policies are affected. Set --hostname-override. Or the role system:node-proxier does not let the proxy read Nodes.", "PN-71"},
	{"KubeProxyDriftRepaired", actionSync, Warning, KindNode,
		"another program changed or removed {count} of kube-proxy's {family} rules on node {node}; they are restored",
		"Somebody else removes or changes the rules. Repetitions are counted, not sent one by one.", "EXT"},
	{"KubeProxyContestedKey", actionSync, Warning, KindService,
		"{key} belongs to Service {winner}, which {why}; this Service does not get traffic there{more}",
		"Two Services ask for the same address, port and protocol. A cluster IP counts more than a load balancer's address, and that more than an external IP; among equals the oldest Service has it, then the first by name. Of a Service that loses many there is one event.", "SV-24"},
	{"KubeProxyServiceNetworkAddress", actionSync, Warning, KindService,
		"{key} is an address of the service network that this Service has as its {kind}{more}; it is served until it is assigned as a cluster IP",
		"Addresses of the service network are given out by the cluster. The Service loses this one, without notice, when another gets it as its cluster IP. Take another address.", "SV-24"},
	{"KubeProxyAddressRefused", actionSync, Warning, KindService,
		"not served: {what}",
		"The Service, or a slice of it, names addresses that nobody can have in the network (loopback, link-local, multicast, broadcast, unspecified, reserved) or that externalIPCIDRs leaves out, or too many of them: a Service may have 16,384 rows of load-balancer and external addresses, each counted once for each port, and 262,144 endpoints so counted. The rest of the Service is served; without a cluster IP there is no rest.", "SV-26, SV-13"},
	{"KubeProxyNodePortInUse", actionListen, Warning, KindService,
		"NodePort {port}/{proto} {takes} a program on node {node} that listens on {listener}",
		"The Service's NodePort wins over the program, which gets no more new connections from other hosts. Only at 127.0.0.1 and ::1 in mode nftables the program wins, and the NodePort is not served there. Give one of them another port.", "PN-60, TN-58"},
	{"KubeProxyNodeAddressTaken", actionListen, Warning, KindService,
		"{key} is at an address of node {node} itself and takes traffic from {from}{more}",
		"The Service has an address of the node as its external IP, or as its load balancer's. It is served and comes first: the program gets no more new connections there, or the other Service's NodePort none at this address. Give the Service another port or address. externalIPCIDRs can leave the nodes' networks out.", "SV-65, EXT"},
	{"KubeProxyAffinityNearlyFull", actionSync, Warning, KindNode,
		"the memory of session affinity of {family} on node {node} is {percent} % full; Services with the most clients: {services}",
		"When it is full, new clients are led by a hash of their address: they stay with an endpoint until the number of endpoints changes. Look at what the Services named are visited by; shorten their timeoutSeconds. Told again after it was below 60 %.", "EXT"},
	{"KubeProxyConfigReloaded", actionReload, Normal, KindNode,
		"kube-proxy on node {node} applied the changed configuration {file}: {changes}",
		"A change of the configuration file took effect without a restart.", "EXT"},
	{"KubeProxyConfigInvalid", actionReload, Warning, KindNode,
		"kube-proxy on node {node} ignores the changed configuration {file} and keeps its settings: {err}",
		"The configuration file became invalid. The next start would fail.", "EXT"},
}

// Catalogue returns all events that the proxy can tell.
func Catalogue() []Entry { return catalogue }

// about makes an event of the entry with the reason. with alternates words of the note and their values.
func about(reason string, o Object, subject string, with ...string) Event {
	e := catalogue[slices.IndexFunc(catalogue, func(e Entry) bool { return e.Reason == reason })]
	for i := 0; i < len(with); i += 2 {
		with[i] = "{" + with[i] + "}"
	}
	return Event{Type: e.Type, Reason: e.Reason, Action: e.Action, Regarding: o, Subject: subject,
		Note: strings.NewReplacer(with...).Replace(e.Note)}
}

// Starting says that the process starts (EV-01).
func Starting(node string) Event {
	return about("Starting", Node(node), "", "node", node)
}

// FailedToStartProxierHealthcheck says that the health server cannot listen, which ends the process (EV-02).
func FailedToStartProxierHealthcheck(node, addr string, err error) Event {
	return about("FailedToStartProxierHealthcheck", Node(node), "", "node", node, "addr", addr, "err", err.Error())
}

// FailedToStartMetricServer says that the metrics server cannot listen, which ends the process (EV-03).
func FailedToStartMetricServer(node, addr string, err error) Event {
	return about("FailedToStartMetricServer", Node(node), "", "node", node, "addr", addr, "err", err.Error())
}

// ReadOnlySysFS says that conntrack's hash table could not be sized (EV-04).
func ReadOnlySysFS(node string, err error) Event {
	return about("readOnlySysFS", Node(node), "", "node", node, "err", err.Error())
}

// FailedToStartServiceHealthcheck says that a healthCheckNodePort is occupied (EV-05). service is "ns/name".
func FailedToStartServiceHealthcheck(service, node string, port uint16, err error) Event {
	p := strconv.Itoa(int(port))
	return about("FailedToStartServiceHealthcheck", Service(service), p, "node", node, "port", p, "err", err.Error())
}

// IncorrectIPVersion says that an address of the object is of the wrong family (EV-06). field and value say
// which, what says what is wrong with it.
func IncorrectIPVersion(o Object, field, value, what string) Event {
	return about("KubeProxyIncorrectIPVersion", o, withoutIndexes(field)+" "+value, "field", field, "value", value, "what", what)
}

// withoutIndexes makes "endpoints[].addresses[]" of "endpoints[3].addresses[0]": places change with what stands beside.
func withoutIndexes(field string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, field)
}

// DefaultModeWillChange says that no mode is configured (EV-07); mode is the one that is used.
func DefaultModeWillChange(node, mode string) Event {
	return about("default-mode-will-change", Node(node), "", "node", node, "mode", mode)
}

// IPVSDeprecated says that the mode ipvs runs (EV-07).
func IPVSDeprecated(node string) Event {
	return about("ipvs-deprecated", Node(node), "", "node", node)
}

// ModeFallback says that the mode to runs, because from cannot, and what the administrator must know of to; "" for nothing.
func ModeFallback(node, from, to string, why error, caution string) Event {
	if caution != "" {
		caution = ". " + caution
	}
	return about("KubeProxyModeFallback", Node(node), from, "node", node, "from", from, "to", to, "why", why.Error(), "caution", caution)
}

// ModeFromAnnotation says that the mode was taken from the Node's annotation of that name.
func ModeFromAnnotation(node, mode, annotation string) Event {
	return about("KubeProxyModeFromAnnotation", Node(node), "", "node", node, "mode", mode, "annotation", annotation)
}

// SourceRangesUnsupported says that the mode cannot keep clients out by source ranges, and what it does with such rows; service and key
// are the first of them (WN-20).
func SourceRangesUnsupported(node, service, key, what string) Event {
	return about("KubeProxySourceRangesUnsupported", Node(node), key, "node", node, "service", service, "key", key, "what", what)
}

// NodeNotFound says that this host's name is not the name of a Node (PN-71).
func NodeNotFound(node string) Event {
	return about("KubeProxyNodeNotFound", Node(node), "", "node", node)
}

// DriftRepaired says that rules of one family, "IPv4" or "IPv6", had been changed by others.
func DriftRepaired(node, family string, count int) Event {
	return about("KubeProxyDriftRepaired", Node(node), family, "node", node, "family", family, "count", strconv.Itoa(count))
}

// ContestedKey says that loser does not get key, because winner, "which {why}", has it (SV-24). Both are "ns/name". It
// lost so many more keys by the same change.
func ContestedKey(loser, winner, key, why string, more int) Event {
	others := ""
	if more > 0 {
		others = fmt.Sprintf(", and %d more of its addresses and ports belong to others", more)
	}
	return about("KubeProxyContestedKey", Service(loser), key+" "+winner, "key", key, "winner", winner, "why", why, "more", others)
}

// AddressLent says that the Service, "ns/name", has an address of the service network though it is not its cluster IP
// (SV-24): kind says as what. So it is with so many more of its addresses and ports.
func AddressLent(service, key, kind string, more int) Event {
	others := ""
	if more > 0 {
		others = fmt.Sprintf(", as are %d more", more)
	}
	return about("KubeProxyServiceNetworkAddress", Service(service), key, "key", key, "kind", kind, "more", others)
}

// AddressRefused says that addresses of a Service, "ns/name", are not served (SV-26); what says which and why, and
// subject which, without what changes from one look to the next.
func AddressRefused(service, what, subject string) Event {
	return about("KubeProxyAddressRefused", Service(service), subject, "what", what)
}

// AffinityNearlyFull says that session affinity of one family will soon not remember new clients. services are those
// with the most clients.
func AffinityNearlyFull(node, family string, percent int, services []string) Event {
	return about("KubeProxyAffinityNearlyFull", Node(node), family, "node", node, "family", family, "percent", strconv.Itoa(percent),
		"services", strings.Join(services, ", "))
}

// NodePortInUse says that a program of this node listens on a NodePort (PN-60). service is "ns/name", with or
// without ":port"; proto is "tcp", "udp" or "sctp". kept: the program keeps its traffic.
func NodePortInUse(service, node string, port uint16, proto string, listener netip.AddrPort, kept bool) Event {
	takes := "takes traffic from"
	if kept {
		takes = "is not served at the address of"
	}
	return about("KubeProxyNodePortInUse", Service(service), fmt.Sprintf("%d/%s %s %v", port, proto, node, listener),
		"port", strconv.Itoa(int(port)), "proto", proto, "takes", takes, "node", node, "listener", listener.String())
}

// NodeAddressTaken says that a Service, "ns/name", with or without ":port", takes a port of this node at the node's own
// address from a program that listens there or, where listener is not valid, from the NodePort of another Service. So it
// does with so many more of its ports.
func NodeAddressTaken(service, node, key string, listener netip.AddrPort, nodePort string, more int) Event {
	from := "a program that listens on " + listener.String()
	if !listener.IsValid() {
		from = "the NodePort of Service " + nodePort
	}
	others := ""
	if more > 0 {
		others = fmt.Sprintf("; there are %d more such ports of this Service", more)
	}
	return about("KubeProxyNodeAddressTaken", Service(service), key+" "+node+" "+from, "key", key, "node", node, "from", from, "more", others)
}

// ConfigReloaded says that a changed file is in force; changes is a list of its fields, for people.
func ConfigReloaded(node, file, changes string) Event {
	return about("KubeProxyConfigReloaded", Node(node), changes, "node", node, "file", file, "changes", changes)
}

// ConfigIgnored says that a changed file is invalid, and the settings before stay.
func ConfigIgnored(node, file string, err error) Event {
	return about("KubeProxyConfigInvalid", Node(node), err.Error(), "node", node, "file", file, "err", err.Error())
}
