package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kube-proxy/mode"
)

// settings is what flags and file fill: the published type, a field that it once had, and those that are ours.
type settings struct {
	v1alpha1.KubeProxyConfiguration
	// UDPIdleTimeout left the type with the mode userspace (CF-45).
	UDPIdleTimeout metav1.Duration `json:"udpIdleTimeout"`
	// ExternalIPCIDRs is ours (EXT).
	ExternalIPCIDRs []string `json:"externalIPCIDRs"`
	// MaxNamespaceObjects is ours (EXT).
	MaxNamespaceObjects *int32 `json:"maxNamespaceObjects"`
	// Userspace is ours (EXT).
	Userspace userspaceBlock `json:"userspace"`
	// UserspaceFallback is ours (EXT).
	UserspaceFallback *bool `json:"userspaceFallback"`
	// WindowsIgnoreSourceRanges is ours (EXT).
	WindowsIgnoreSourceRanges bool `json:"windowsIgnoreSourceRanges"`
	// AdminSocket is ours (EXT).
	AdminSocket *string `json:"adminSocket"`
	// ServiceMetrics is ours (EXT).
	ServiceMetrics int32 `json:"serviceMetrics"`
}

// userspaceBlock is what the mode userspace has beside the fields that the published type once gave it.
type userspaceBlock struct {
	TerminationGracePeriod metav1.Duration `json:"terminationGracePeriod"`
	DrainTimeout           metav1.Duration `json:"drainTimeout"`
	NodeEndpoints          *bool           `json:"nodeEndpoints"`
}

// effect says what becomes of a flag or field that somebody sets.
type effect struct {
	// modes are the only ones in which it does something; nil means all.
	modes []string
	// later: this version takes it, checks it, and does nothing with it yet (G7).
	later bool
	// system is the only operating system on which it does something; "" for all.
	system string
	// gone is what became of something that no proxy has any more; "" if it is still there.
	gone string
}

var (
	works = effect{}
	later = effect{later: true}
)

var (
	onLinux   = effect{system: "linux"}
	onWindows = effect{system: "windows"}
)

func only(modes ...string) effect { return effect{modes: modes} }

func gone(why string) effect { return effect{gone: why} }

// says returns the effect in words, for people who read docs.
func (e effect) says() string {
	switch {
	case e.gone != "":
		return "accepted, without effect: " + e.gone
	case e.later:
		return "accepted, without effect in this version"
	case e.system != "":
		return "only on " + systemName(e.system)
	case e.modes != nil:
		return "only in " + strings.Join(e.modes, ", ")
	}
	return ""
}

// systemName is how people write the name of an operating system.
func systemName(goos string) string { return strings.ToUpper(goos[:1]) + goos[1:] }

// field is one entry of the table of fields: a path in the file, with dots between.
type field struct {
	path string
	// row of the behaviour book
	row string
	// restart says why a change of it needs a new process; "", it takes effect in the running one.
	restart string
	effect  effect
	// help is also that of the flag that stands for the field; the word in backquotes is its value's name.
	help string
}

// Why a change needs a new process, where several fields share the reason.
const (
	live    = ""
	client  = "the client of the API server is made once"
	logFile = "the log is opened once"
	atStart = "the mode reads it when it begins"
)

// watched is why configSyncPeriod does nothing: elsewhere it has known objects looked at again, which changes nothing.
const watched = "the API server is watched all the time, and objects that are known need no second look"

// fields are all fields of a KubeProxyConfiguration, in the order of the type. Which only some modes read, the modes say.
func fields(modes mode.List) []field {
	all := fieldTable(modes)
	for i := range all {
		if readers := modes.Reading(all[i].path); readers != nil {
			all[i].effect = only(readers...)
		}
	}
	return all
}

func fieldTable(modes mode.List) []field {
	return []field{
		{"featureGates", "CF-01", "gates hold for the life of a process", works, "`name=bool,...` of features that are off, or not for ever on"},
		{"clientConnection.kubeconfig", "CF-02", client, works, "`file` with the API server's address and credentials; without it and --master those of the pod are used"},
		{"clientConnection.acceptContentTypes", "CF-03", client, works, "media `types` that the API server may answer with, with commas between; contentType and JSON if not given"},
		{"clientConnection.contentType", "CF-04", client, works, "media `type` of what is sent to the API server and asked of it: protobuf or JSON"},
		{"clientConnection.qps", "CF-05", client, works, "requests to the API server a second; negative means no limit"},
		{"clientConnection.burst", "CF-06", client, works, "requests that may come at once"},
		{"logging.format", "CF-07", logFile, works, "`format` of the log: text, which is klog's, or json"},
		{"logging.flushFrequency", "CF-08", logFile, works, "longest time that lines wait in a buffer"},
		{"logging.verbosity", "CF-09", live, works, "`level` of detail in the log: 0, the least, to 10"},
		{"logging.vmodule", "CF-10", live, works, "`pattern=N,...`: level of detail for source files whose name matches the pattern; text format only"},
		{"logging.options.text.splitStream", "CF-11", logFile, works, "in text format, errors to stderr and the rest to stdout; needs the gate LoggingAlphaOptions"},
		{"logging.options.text.infoBufferSize", "CF-11", logFile, works, "`bytes` to collect before writing to a split stdout in text format; needs the gate LoggingAlphaOptions"},
		{"logging.options.json.splitStream", "CF-11", logFile, works, "in json format, errors to stderr and the rest to stdout; needs the gate LoggingAlphaOptions"},
		{"logging.options.json.infoBufferSize", "CF-11", logFile, works, "`bytes` to collect before writing to a split stdout in json format; needs the gate LoggingAlphaOptions"},
		{"hostnameOverride", "CF-12", "a process serves one Node", works, "`name` of this node; $NODE_NAME, then the host's own name, if not given"},
		{"bindAddress", "CF-13", live, works, "`IP` that stands for this node instead of its Node object's; 0.0.0.0 or :: means none; nothing is bound to it"},
		{"healthzBindAddress", "CF-14", live, works, "`IP:port` of the health server; a port may be left out; empty as a flag, or none in a file, means no server"},
		{"metricsBindAddress", "CF-15", live, works, "`IP:port` of the metrics server; a port may be left out; empty as a flag, or none in a file, means no server"},
		{"bindAddressHardFail", "CF-16", "it is about the start of the servers", works, "end the process when the health or metrics server cannot listen, instead of trying again"},
		{"enableProfiling", "CF-17", live, works, "profiles of the process on the metrics server, below /debug"},
		{"showHiddenMetricsForVersion", "CF-18", "metrics are registered once", works, "show the metrics that were hidden since the `version`, which can only be the one before ours: " + previousMinor},
		{"mode", "CF-19", "the data plane is chosen once", works, modeHelp(modes)},
		{"iptables.masqueradeBit", "CF-20", "packets on their way carry it", works, "bit of the packet mark that asks for masquerading, 0 to 31; as a flag it also holds for nftables"},
		{"iptables.masqueradeAll", "CF-21", live, works, "masquerade every connection to a cluster IP; as a flag it also holds for nftables"},
		{"iptables.localhostNodePorts", "CF-22", "a setting of the kernel and the rules that guard it go together, made at the start", works, "NodePorts answer on 127.0.0.1 too"},
		{"iptables.syncPeriod", "CF-23", live, works, "time between two complete comparisons with the kernel; as a flag it also holds for nftables"},
		{"iptables.minSyncPeriod", "CF-24", live, works, "least time between two writes to the kernel; as a flag it also holds for nftables"},
		{"ipvs.syncPeriod", "CF-25", live, works, "time between two complete comparisons with the kernel"},
		{"ipvs.minSyncPeriod", "CF-25", live, works, "least time between two writes to the kernel"},
		{"ipvs.scheduler", "CF-26", atStart, works, "`name` of the kernel's scheduler; rr if not given"},
		{"ipvs.excludeCIDRs", "CF-27", atStart, works, "`CIDRs` whose virtual servers are not ours to remove"},
		{"ipvs.strictARP", "CF-28", atStart, works, "answer ARP only for addresses of the asked interface: arp_ignore 1, arp_announce 2"},
		{"ipvs.tcpTimeout", "CF-29", atStart, works, "idle time of a TCP connection; 0 leaves the kernel's"},
		{"ipvs.tcpFinTimeout", "CF-29", atStart, works, "idle time of a TCP connection after a FIN; 0 leaves the kernel's"},
		{"ipvs.udpTimeout", "CF-29", atStart, works, "idle time of a UDP flow; 0 leaves the kernel's"},
		{"nftables.masqueradeBit", "CF-30", "packets on their way carry it", works, "bit of the packet mark that asks for masquerading, 0 to 31"},
		{"nftables.masqueradeAll", "CF-30", live, works, "masquerade every connection to a cluster IP"},
		{"nftables.syncPeriod", "CF-30", live, works, "time between two full comparisons of our table with the kernel, besides the watch for changes of others; 0 means some minutes"},
		{"nftables.minSyncPeriod", "CF-30", live, works, "least time between two writes to the kernel; 0 by default, unlike upstream's 1s"},
		{"winkernel.networkName", "CF-31", atStart, works, "`name` of the HNS network"},
		{"winkernel.sourceVip", "CF-31", atStart, works, "`IP` that stands for clients in an overlay network"},
		{"winkernel.enableDSR", "CF-31", atStart, works, "backends answer clients directly"},
		{"winkernel.rootHnsEndpointName", "CF-32", atStart, works, "`name` of the node's own HNS endpoint; nothing means cbr0"},
		{"winkernel.forwardHealthCheckVip", "CF-32", atStart, works, "health checks of load balancers reach the load balancer's address"},
		{"detectLocalMode", "CF-33", live, works, "`mode` of recognising traffic of this node's pods: " + strings.Join(localModes, ", ") + "; blank means ClusterCIDR"},
		{"detectLocal.bridgeInterface", "CF-34", live, works, "bridge `interface` that pods are attached to, for BridgeInterface"},
		{"detectLocal.interfaceNamePrefix", "CF-35", live, works, "what the `names` of the pods' interfaces begin with, for InterfaceNamePrefix"},
		{"clusterCIDR", "CF-36", live, works, "pod network of the cluster, one `CIDR` or one of each IP family with a comma between"},
		{"nodePortAddresses", "CF-37", live, works, nodePortsHelp(modes)},
		{"oomScoreAdj", "CF-38", "it is written once, at the start", onLinux, "how readily the kernel ends this process when memory is short, -1000 to 1000"},
		{"conntrack.maxPerCore", "CF-39", live, onLinux, "connections that the kernel may track, for each CPU; 0 leaves its limit"},
		{"conntrack.min", "CF-39", live, onLinux, "connections that the kernel may track at least, however few CPUs there are"},
		{"conntrack.tcpEstablishedTimeout", "CF-40", live, onLinux, "how long an idle TCP connection is tracked, and kept by mode userspace; 0 leaves the kernel's"},
		{"conntrack.tcpCloseWaitTimeout", "CF-40", live, onLinux, "how long a TCP connection in CLOSE_WAIT is tracked; 0 leaves the kernel's"},
		{"conntrack.tcpBeLiberal", "CF-41", live, onLinux, "let packets outside of a TCP connection's window pass"},
		{"conntrack.udpTimeout", "CF-42", live, onLinux, "how long a UDP flow without an answer is tracked; 0 leaves the kernel's"},
		{"conntrack.udpStreamTimeout", "CF-42", live, onLinux, "how long a UDP flow with answers is tracked; 0 leaves the kernel's"},
		{"configSyncPeriod", "CF-43", live, gone(watched), "without effect: " + watched},
		{"portRange", "CF-44", atStart, works, "host `ports` to listen on: first-last, first+more, or one; nothing means any"},
		{"windowsRunAsService", "CF-46", "a service is made once", onWindows, "run as a Windows service"},
		{"udpIdleTimeout", "CF-45", atStart, works, "how long an idle UDP flow is kept"},
		{"externalIPCIDRs", "EXT", live, works, "`CIDRs`, with commas between, of which spec.externalIPs are served at all, in either IP family; nothing means all but loopback and the like"},
		{"maxNamespaceObjects", "EXT", live, works, "how many objects kube-proxy writes at most for the Services of one namespace, in each IP family, a quarter of them for one Service; an object takes some 128 bytes, and docs/modes.md has what counts how much; 0 for any number"},
		{"userspace.terminationGracePeriod", "EXT", atStart, works, "how long open connections to an endpoint or Service that was removed go on at most; 0 until they end by themselves, as in other modes"},
		{"userspace.drainTimeout", "EXT", live, works, "how long open connections go on at most when the process is asked to end"},
		{"userspace.nodeEndpoints", "EXT", atStart, works, "connect to endpoints at this node's own addresses; without it they get no connections, so that no Service leads past the node's firewall to programs of the node"},
		{"userspaceFallback", "EXT", "the data plane is chosen once", works, "run mode userspace where the mode that is asked for cannot run here; without it the process ends with an error instead, unless userspace itself is asked for"},
		{"windowsIgnoreSourceRanges", "EXT", atStart, works, "serve load-balancer addresses of Services with loadBalancerSourceRanges to all clients, for clouds whose load balancers enforce the ranges themselves; without it this node does not serve them, because Windows cannot enforce ranges"},
		{"adminSocket", "EXT", live, works, "`path` of the unix socket at which kube-proxy trace, why, diff, ui and the like ask this process; root alone may; nothing turns it off. On Windows it is a named pipe for administrators, and the default means `" + adminPipe + "`"},
		{"serviceMetrics", "EXT", atStart, works, "how many Services have their connections in metrics of their own, 0 to 1000: those with the most, all others together; 0 counts nothing"},
	}
}

// fieldAt returns the entry of a path; a path below one, such as a gate's, has the entry of what is above.
func fieldAt(modes mode.List, path string) (field, bool) {
	for _, f := range fields(modes) {
		if f.path == path || strings.HasPrefix(path, f.path+".") {
			return f, true
		}
	}
	return field{}, false
}

// leaf is one value of settings, where the path of its field leads.
type leaf struct {
	path  string
	value reflect.Value
}

// leaves returns all values of s that fields may be, in the order of the type; setting one sets s.
func leaves(s *settings) []leaf {
	var all []leaf
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			f, sub := v.Type().Field(i), v.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Type == reflect.TypeFor[metav1.TypeMeta]():
			case f.Anonymous && name == "":
				walk(prefix, sub)
			case sub.Kind() == reflect.Struct && !scalar(sub.Type()):
				walk(prefix+name+".", sub)
			default:
				all = append(all, leaf{prefix + name, sub})
			}
		}
	}
	walk("", reflect.ValueOf(s).Elem())
	return all
}

// scalar reports whether a struct stands for one value in the file: it reads itself.
func scalar(t reflect.Type) bool {
	_, ok := reflect.PointerTo(t).MethodByName("UnmarshalJSON")
	return ok
}

func leafAt(s *settings, path string) reflect.Value {
	all := leaves(s)
	i := slices.IndexFunc(all, func(l leaf) bool { return l.path == path })
	if i < 0 {
		panic(fmt.Sprintf("config: no field %q in the type: the tables are wrong", path))
	}
	return all[i].value
}
