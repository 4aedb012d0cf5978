package config

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/config/option"
	"kube-proxy/mode"
)

// DetectLocal configures how traffic of this node's pods is recognised.
type DetectLocal struct {
	// Mode is ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.
	Mode string
	// Interface is the bridge's name, or the prefix of interface names; "" in the other modes.
	Interface string
}

// NodePorts configures which addresses of this machine answer NodePorts.
type NodePorts struct {
	// Primary: the node's own addresses.
	Primary bool
	// Prefixes: all local addresses in them; a /0 means all of its family. Without host bits.
	Prefixes []netip.Prefix
	// Unset: none of that is configured; the mode has the default (CF-64).
	Unset bool
}

// proxyBlock has the fields that the published type lacks.
type proxyBlock struct {
	ExternalIPCIDRs     []string `json:"externalIPCIDRs"`
	MaxNamespaceObjects *int32   `json:"maxNamespaceObjects"`
}

// DefaultMaxNamespaceObjects is the default of --max-namespace-objects.
const DefaultMaxNamespaceObjects int32 = 1 << 22

var localModes = []string{"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"}

func (o *Options) proxySection() option.Section {
	o.file.BindAddress, o.file.OOMScoreAdj = "0.0.0.0", new(int32(-999))
	o.proxy.MaxNamespaceObjects = new(DefaultMaxNamespaceObjects)
	return option.Section{Title: "Proxy", Order: 10, Values: o.proxy, Fields: []option.Field{
		{Path: "mode", Flag: "proxy-mode", Row: "CF-19", Restart: "the mode is chosen once", Once: true,
			Help: modeHelp(o.modes)},
		{At: &o.ConfigFile, Flag: "config",
			Help: "`file` with a KubeProxyConfiguration, in YAML or JSON; flags that set the same fields are then " +
				"ignored"},
		{At: &o.WriteConfigTo, Flag: "write-config-to", Help: "write the configuration with all defaults to the " +
			"`file`, and exit"},
		{At: &o.Manifests, Flag: "manifests",
			Help: "`folder` of YAML or JSON files with Services and EndpointSlices, watched instead of an API server"},
		{Path: "clusterCIDR", Flag: "cluster-cidr", Row: "CF-36",
			Help: "pod network of the cluster: one `CIDR`, or one for each IP family, separated by a comma"},
		{Path: "detectLocalMode", Flag: "detect-local-mode", Row: "CF-33",
			Help: "how to recognize traffic from this node's pods, a `mode`: " + strings.Join(localModes, ", ") +
				"; default ClusterCIDR"},
		{Path: "detectLocal.bridgeInterface", Flag: "pod-bridge-interface", Row: "CF-34",
			Help: "bridge `interface` of the pods, for BridgeInterface"},
		{Path: "detectLocal.interfaceNamePrefix", Flag: "pod-interface-name-prefix", Row: "CF-35",
			Help: "`prefix` of the pods' interface names, for InterfaceNamePrefix"},
		{Path: "nodePortAddresses", Flag: "nodeport-addresses", Row: "CF-37", Help: nodePortsHelp(o.modes)},
		{Path: "externalIPCIDRs", Flag: "external-ip-cidrs", Row: "EXT",
			Help: "`CIDRs`, comma-separated: only spec.externalIPs within them are served; default all, except " +
				"loopback and similar addresses"},
		{Path: "maxNamespaceObjects", Flag: "max-namespace-objects", Row: "EXT",
			Help: "limit of objects for the Services of one namespace, for each IP family; one Service may have a " +
				"quarter. An object takes about 128 bytes; docs/modes.md explains the count. 0 means no limit"},
		{Path: "bindAddress", Flag: "bind-address", Row: "CF-13",
			Help: "`IP` of this node; 0.0.0.0 or :: means that of its Node object; the proxy does not listen on it"},
		{Path: "iptables.masqueradeAll", Flag: "masquerade-all"},
		{Path: "featureGates", Flag: "feature-gates", Row: "CF-01", Restart: "gates are read at the start",
			Help: "`name=bool,...`: feature gates to turn on or off"},
		{Path: "oomScoreAdj", Flag: "oom-score-adj", Row: "CF-38", Restart: "it is written once", Effect: onLinux,
			Help: "oom_score_adj of this process, -1000 to 1000"},
		{At: &o.Cleanup, Flag: "cleanup", Help: "remove the rules of all modes, and exit"},
		{At: &o.InitOnly, Flag: "init-only", Effect: onLinux,
			Help: "apply the kernel settings that need full privileges, and exit"},
		{At: &o.Version, Flag: "version", Alone: "true",
			Help: "print the version and exit; --version=raw prints build details; with --version=v1.36.0 " +
				"the proxy runs and reports that version as its own"},
	}}
}

// windowsSection configures the process itself on Windows; the modes there have the rest.
func windowsSection() option.Section {
	return option.Section{Title: "Windows", Order: 70, Fields: []option.Field{
		{Path: "windowsRunAsService", Flag: "windows-service", Row: "CF-46", Restart: "a service is made once",
			Effect: onWindows,
			Help:   "run as a Windows service"},
	}}
}

// modeHelp is the help of the field mode.
func modeHelp(modes mode.List) string {
	var names []string
	for _, m := range modes {
		switch {
		case m.Built() && m.OS != "" && m.OS != "linux":
			names = append(names, m.Name+" ("+systemName(m.OS)+")")
		case m.Built():
			names = append(names, m.Name)
		}
	}
	unasked := modes.Names(func(m mode.Mode) bool { return m.Unasked != "" })
	return "`mode` of the data plane: " + strings.Join(names, ", ") +
		"; default the first of " + strings.Join(unasked, ", ") + " that this host supports"
}

// nodePortsHelp is the help of the field nodePortAddresses.
func nodePortsHelp(modes mode.List) string {
	primary := modes.Names(func(m mode.Mode) bool { return m.NodePortsPrimary })
	return "`addresses` of this node that answer NodePorts: CIDRs, primary, localhost (if the mode supports it) or " +
		"all; default primary in " +
		strings.Join(primary, " and ") + " mode, all in the others"
}

// cleanup turns the three flags into the modes whose rules are removed.
func (o *Options) cleanup() []string {
	if o.cleanupIPTables && o.changed("cleanup") && !o.Cleanup {
		o.problem("--cleanup", "false", "contradicts --cleanup-iptables: want one of them")
	}
	if o.InitOnly && (o.Cleanup || o.cleanupIPTables) {
		o.problem("--init-only", "true", "contradicts --cleanup: want one of them")
	}
	if o.changed("cleanup-ipvs") && !o.Cleanup {
		o.warn("--cleanup-ipvs has no effect without --cleanup")
	}
	asked := map[string]bool{"iptables": o.Cleanup || o.cleanupIPTables, "ipvs": o.Cleanup && o.cleanupIPVS}
	return o.modes.Names(func(m mode.Mode) bool {
		is, own := asked[m.Name]
		return m.Remove != nil && m.On(o.system) && (is || o.Cleanup && !own)
	})
}

// clusterCIDRs is CF-36. In the modes that do not look at pod networks, a bad one does no harm.
func (o *Options) clusterCIDRs() []netip.Prefix {
	const want = "want a CIDR such as 10.244.0.0/16, or one for each IP family, separated by a comma"
	s := o.file.ClusterCIDR
	if s == "" {
		return nil
	}
	report := func() {
		switch o.file.DetectLocalMode {
		case "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix":
			o.warn("%s %q is ignored: %s", o.where("clusterCIDR"), s, want)
		default:
			o.wrong("clusterCIDR", s, want)
		}
	}
	var all []netip.Prefix
	for part := range strings.SplitSeq(s, ",") {
		p, err := option.ParsePrefix(strings.TrimSpace(part))
		if err != nil || len(all) == 2 || len(all) == 1 && all[0].Addr().Is4() == p.Addr().Is4() {
			report()
			return nil
		}
		all = append(all, p)
	}
	return all
}

// detectLocal is CF-33 to CF-35.
func (o *Options) detectLocal() DetectLocal {
	mode := cmp.Or(string(o.file.DetectLocalMode), "ClusterCIDR")
	d := DetectLocal{Mode: mode}
	var field string
	switch mode {
	case "BridgeInterface":
		field, d.Interface = "detectLocal.bridgeInterface", o.file.DetectLocal.BridgeInterface
	case "InterfaceNamePrefix":
		field, d.Interface = "detectLocal.interfaceNamePrefix", o.file.DetectLocal.InterfaceNamePrefix
	default:
		if !slices.Contains(localModes, mode) {
			o.wrong("detectLocalMode", mode, "want "+strings.Join(localModes, ", ")+" or nothing for ClusterCIDR")
		}
		return d
	}
	switch n := d.Interface; {
	case n == "":
		o.wrong(field, n, "must not be empty with the mode "+mode)
	case len(n) > 15 || strings.ContainsAny(n, "/: \t\n"): // IFNAMSIZ, dev_valid_name
		o.wrong(field, n, "want 1 to 15 bytes without blanks, slashes and colons")
	}
	return d
}

// nodePorts is CF-37: the configured addresses. The meaning of none depends on the mode.
func (o *Options) nodePorts() NodePorts {
	n := NodePorts{Unset: len(o.file.NodePortAddresses) == 0}
	add := func(ps ...netip.Prefix) {
		for _, p := range ps {
			if !slices.Contains(n.Prefixes, p) {
				n.Prefixes = append(n.Prefixes, p)
			}
		}
	}
	for i, s := range o.file.NodePortAddresses {
		if slices.Contains(o.file.NodePortAddresses[:i], s) {
			o.warn("%s has %q twice; it counts once", o.where("nodePortAddresses"), s)
		}
		switch p, err := option.ParsePrefix(s); {
		case s == "primary":
			n.Primary = true
		case s == "all":
			add(everyAddress()...)
		case s == "localhost":
			add(netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
		case err != nil:
			o.wrong("nodePortAddresses", s, "want a CIDR such as 192.0.2.0/24, or primary, localhost or all")
		default:
			add(p)
		}
	}
	return n
}

// externalIPCIDRs returns which external IPs are served (SV-13). A list with an error must not
// become an empty one, which would serve all.
func (o *Options) externalIPCIDRs(gates map[string]bool) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range o.proxy.ExternalIPCIDRs {
		p, err := option.ParsePrefix(s)
		if err != nil {
			o.wrong("externalIPCIDRs", s, "want a CIDR such as 192.0.2.0/24")
			continue
		}
		all = append(all, p)
	}
	if len(all) > 0 && !gates["AllowServiceExternalIPs"] {
		o.warn("%s has no effect: the feature gate AllowServiceExternalIPs is off", o.where("externalIPCIDRs"))
	}
	return all
}

// bindAddress is CF-13.
func (o *Options) bindAddress() netip.Addr {
	a, err := option.ParseAddr(o.file.BindAddress)
	if err != nil {
		o.wrong("bindAddress", o.file.BindAddress, "want an IP address; 0.0.0.0 or :: for none")
	}
	return a
}
