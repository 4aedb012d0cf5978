package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"kube-proxy/mode"
)

var localModes = []string{"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"}

// validate turns what flags or file say into a Config, and notes all problems.
func (o *Options) validate() *Config {
	f := &o.file
	// The client takes 0 as "not given", and so does a file. Of the log, old proxies took it as a flag.
	orDefault(&f.ClientConnection.QPS, 5)
	orDefault(&f.ClientConnection.Burst, 10)
	orDefault(&f.ClientConnection.ContentType, protobuf)
	orDefault(&f.Logging.FlushFrequency.Duration.Duration, flushFrequency)
	c := &Config{
		Version:   o.reported(),
		Manifests: o.Manifests,
		API: API{
			Kubeconfig: f.ClientConnection.Kubeconfig, Master: o.Master,
			QPS: f.ClientConnection.QPS, Burst: int(f.ClientConnection.Burst),
			ContentType: f.ClientConnection.ContentType, AcceptContentTypes: f.ClientConnection.AcceptContentTypes,
		},
		InitOnly: o.InitOnly, WriteConfigTo: o.WriteConfigTo, File: o.ConfigFile, Flags: o.flagLines(),
		modes: o.modes, unchecked: map[string]Problems{}, inMode: map[string][]string{}, names: map[string]string{},
	}
	c.Gates = o.featureGates()
	c.Mode = o.mode(c.Gates)
	o.source(c)
	c.ClusterCIDRs = o.clusterCIDRs()
	c.DetectLocal = o.detectLocal()
	c.NodePorts = o.nodePorts()
	c.ExternalIPCIDRs = o.externalIPCIDRs(c.Gates)
	c.MaxNamespaceObjects = o.within("maxNamespaceObjects", *o.file.MaxNamespaceObjects, 0, 1<<31-1)
	c.BindAddress = o.bindAddress()
	c.NodeName = o.nodeName()
	c.Servers = o.servers()
	o.tables(c)
	c.IPVS = o.ipvs(c)
	c.Userspace = o.userspace()
	c.Windows = o.windows()
	c.Conntrack = o.conntrack()
	c.OOMScoreAdj = o.within("oomScoreAdj", *f.OOMScoreAdj, -1000, 1000) // CF-38
	o.positive("configSyncPeriod", f.ConfigSyncPeriod.Duration)          // CF-43
	c.MachineID, c.BootID = o.identity("machine-id-file", o.machineIDFiles), o.identity("boot-id-file", o.bootIDFiles)
	c.Logging = o.logging(c.Gates["LoggingAlphaOptions"])
	c.Cleanup = o.cleanup()
	c.file = *f
	all := flags(o)
	for _, f := range fields(o.modes) {
		c.names[f.path] = o.whereAmong(all, f.path)
	}
	return c
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

// flagLines are the lines of FL-05.
func (o *Options) flagLines() []string {
	var all []string
	if o.set != nil {
		o.set.VisitAll(func(f *pflag.Flag) { all = append(all, fmt.Sprintf("FLAG: --%s=%q", f.Name, f.Value.String())) })
	}
	slices.Sort(all)
	return all
}

// source checks where Services come from.
func (o *Options) source(c *Config) {
	if c.API.Burst < 0 {
		o.wrong("clientConnection.burst", fmt.Sprint(c.API.Burst), "want 0 or more") // CF-06
	}
	if c.Manifests == "" {
		return
	}
	if c.API.Master != "" {
		o.problem("--manifests", c.Manifests, "Services come from this folder or from the API server of --master, not from both")
	}
	switch {
	case c.API.Kubeconfig == "":
	case o.loaded:
		o.warn("clientConnection.kubeconfig is ignored because --manifests is given")
		c.API.Kubeconfig = ""
	default:
		o.problem("--manifests", c.Manifests, "Services come from this folder or from the API server of --kubeconfig, not from both")
	}
}

// clusterCIDRs is CF-36. In the modes that do not look at pod networks, a bad one does no harm.
func (o *Options) clusterCIDRs() []netip.Prefix {
	const want = "want a CIDR such as 10.244.0.0/16, or one of each IP family with a comma between"
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
		p, err := parsePrefix(strings.TrimSpace(part))
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
	mode := string(o.file.DetectLocalMode)
	if mode == "" {
		mode = "ClusterCIDR"
	}
	d := DetectLocal{Mode: mode}
	var field string
	switch mode {
	case "BridgeInterface":
		field, d.Interface = "detectLocal.bridgeInterface", o.file.DetectLocal.BridgeInterface
	case "InterfaceNamePrefix":
		field, d.Interface = "detectLocal.interfaceNamePrefix", o.file.DetectLocal.InterfaceNamePrefix
	default:
		if !slices.Contains(localModes, mode) {
			o.wrong("detectLocalMode", mode, "want "+strings.Join(localModes, ", ")+" or nothing, which means ClusterCIDR")
		}
		return d
	}
	switch n := d.Interface; {
	case n == "":
		o.wrong(field, n, "must not be empty with the mode "+mode)
	case len(n) > 15 || strings.ContainsAny(n, "/: \t\n"): // IFNAMSIZ, dev_valid_name
		o.wrong(field, n, "no interface can have such a name: want 1 to 15 bytes without blanks, slashes and colons")
	}
	return d
}

// nodePorts is CF-37: what is asked for. What nothing means depends on the mode.
func (o *Options) nodePorts() NodePorts {
	n := NodePorts{Unset: len(o.file.NodePortAddresses) == 0}
	add := func(ps ...netip.Prefix) {
		for _, p := range ps {
			if !slices.Contains(n.Prefixes, p) {
				n.Prefixes = append(n.Prefixes, p)
			}
		}
	}
	for _, s := range o.file.NodePortAddresses {
		switch p, err := parsePrefix(s); {
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

// DefaultMaxNamespaceObjects is the default of --max-namespace-objects.
const DefaultMaxNamespaceObjects int32 = 1 << 22

// externalIPCIDRs is which external IPs are served (SV-13). A list of which something is wrong must not come out as an
// empty one, which would serve all.
func (o *Options) externalIPCIDRs(gates map[string]bool) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range o.file.ExternalIPCIDRs {
		p, err := parsePrefix(s)
		if err != nil {
			o.wrong("externalIPCIDRs", s, "want a CIDR such as 192.0.2.0/24")
			continue
		}
		all = append(all, p)
	}
	if len(all) > 0 && !gates["AllowServiceExternalIPs"] {
		o.warn("%s has no effect, because the feature gate AllowServiceExternalIPs is off", o.where("externalIPCIDRs"))
	}
	return all
}

// bindAddress is CF-13.
func (o *Options) bindAddress() netip.Addr {
	a, err := parseAddr(o.file.BindAddress)
	if err != nil {
		o.wrong("bindAddress", o.file.BindAddress, "want an IP address; 0.0.0.0 or :: for none of its own")
	}
	return a
}

// identity returns what stands in the first file of a list, paths with commas between, that is there.
func (o *Options) identity(flag, files string) string {
	for name := range strings.SplitSeq(files, ",") {
		if data, err := o.readFile(strings.TrimSpace(name)); err == nil {
			return strings.TrimSpace(string(data))
		}
	}
	if o.changed(flag) {
		o.warn("--%s %q: none of these files can be read", flag, files)
	}
	return ""
}

// nodeName is CF-12: without an override it is what the host calls itself.
func (o *Options) nodeName() string {
	override := o.file.HostnameOverride
	if override == "" {
		override = o.getenv("NODE_NAME")
	}
	if strings.TrimSpace(override) == "" && o.file.HostnameOverride == "" {
		name, err := o.hostname()
		if err != nil {
			o.problem("--hostname-override", "", "not given, and the host's own name is not known: "+err.Error())
			return ""
		}
		override = name
	}
	name := strings.ToLower(strings.TrimSpace(override))
	if name == "" {
		o.wrong("hostnameOverride", override, "empty hostname-override is invalid")
	}
	return name
}
