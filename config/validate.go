package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

var localModes = []string{"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"}

// validate turns what flags or file say into a Config, and notes all problems.
func (o *Options) validate() *Config {
	f := &o.file
	c := &Config{
		Manifests: o.Manifests,
		API: API{
			Kubeconfig: f.ClientConnection.Kubeconfig,
			Master:     o.Master,
			QPS:        f.ClientConnection.QPS,
			Burst:      int(f.ClientConnection.Burst),
		},
		MasqueradeAll: f.NFTables.MasqueradeAll,
		Verbosity:     int(f.Logging.Verbosity),
	}
	c.Mode = o.mode()
	o.source(c)
	c.ClusterCIDRs = o.clusterCIDRs()
	c.DetectLocal = o.detectLocal()
	c.NodePorts = o.nodePorts()
	c.BindAddress = o.bindAddress()
	c.NodeName = o.nodeName()
	c.NFTables = o.nftables()
	if f.Logging.Verbosity > 1<<31-1 {
		o.wrong("logging.verbosity", fmt.Sprint(f.Logging.Verbosity), "want at most 2147483647") // CF-09
	}
	return c
}

// mode is CF-19, as far as modes are built.
func (o *Options) mode() string {
	mode := string(o.file.Mode)
	switch mode {
	case "nftables":
	case "":
		o.wrong("mode", mode, "a blank mode means the best that this machine can do, iptables first, and iptables is not built yet: say nftables")
	case "iptables", "ipvs", "userspace", "ebpf", "kernelspace":
		o.wrong("mode", mode, "this mode is not built yet: want nftables")
	default:
		o.wrong("mode", mode, "want nftables")
	}
	return mode
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

// nodePorts is CF-37. Nothing means primary: this is the mode nftables.
func (o *Options) nodePorts() NodePorts {
	var n NodePorts
	for _, s := range o.file.NodePortAddresses {
		switch s {
		case "primary":
			n.Primary = true
			continue
		case "all":
			n.Prefixes = append(n.Prefixes, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
			continue
		case "localhost":
			o.wrong("nodePortAddresses", s, "NodePorts on loopback addresses are not built yet: want CIDRs, primary or all")
			continue
		}
		p, err := parsePrefix(s)
		if err != nil {
			o.wrong("nodePortAddresses", s, "want a CIDR such as 192.0.2.0/24, primary or all")
			continue
		}
		if !slices.Contains(n.Prefixes, p) {
			n.Prefixes = append(n.Prefixes, p)
		}
	}
	if len(o.file.NodePortAddresses) == 0 {
		n.Primary = true
	}
	return n
}

// bindAddress is CF-13.
func (o *Options) bindAddress() netip.Addr {
	a, err := parseAddr(o.file.BindAddress)
	if err != nil {
		o.wrong("bindAddress", o.file.BindAddress, "want an IP address; 0.0.0.0 or :: for none of its own")
	}
	return a
}

// nodeName is CF-12: without an override it is what the host calls itself.
func (o *Options) nodeName() string {
	override := o.file.HostnameOverride
	if override == "" {
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

// nftables is CF-30.
func (o *Options) nftables() NFTables {
	f := &o.file.NFTables
	n := NFTables{int(*f.MasqueradeBit), f.SyncPeriod.Duration, f.MinSyncPeriod.Duration}
	if n.MasqueradeBit < 0 || n.MasqueradeBit > 31 {
		o.wrong("nftables.masqueradeBit", fmt.Sprint(n.MasqueradeBit), "want 0 to 31")
	}
	if n.SyncPeriod < 0 {
		o.wrong("nftables.syncPeriod", n.SyncPeriod.String(), "want more than 0, or 0 for the default")
	}
	switch {
	case n.MinSyncPeriod < 0:
		o.wrong("nftables.minSyncPeriod", n.MinSyncPeriod.String(), "want 0 or more")
	case n.MinSyncPeriod > n.SyncPeriod && n.SyncPeriod > 0:
		o.wrong("nftables.minSyncPeriod", n.MinSyncPeriod.String(), "want at most the sync period, "+n.SyncPeriod.String())
	}
	return n
}

// parseAddr reads an IP address; octets of IPv4 may have leading zeros, which do not make them octal (FL-07).
func parseAddr(s string) (netip.Addr, error) {
	if strings.Contains(s, ".") && !strings.Contains(s, ":") {
		octets := strings.Split(s, ".")
		for i, octet := range octets {
			if short := strings.TrimLeft(octet, "0"); short != "" || octet == "" {
				octets[i] = short
			} else {
				octets[i] = "0"
			}
		}
		s = strings.Join(octets, ".")
	}
	a, err := netip.ParseAddr(s)
	if err == nil && a.Zone() != "" {
		err = fmt.Errorf("address %q has a zone", s)
	}
	return a.Unmap(), err
}

// parsePrefix reads a CIDR and clears its host bits.
func parsePrefix(s string) (netip.Prefix, error) {
	addr, bits, ok := strings.Cut(s, "/")
	if !ok {
		return netip.Prefix{}, fmt.Errorf("%q has no prefix length", s)
	}
	a, err := parseAddr(addr)
	if err != nil {
		return netip.Prefix{}, err
	}
	p, err := netip.ParsePrefix(a.String() + "/" + bits)
	if err != nil {
		return netip.Prefix{}, err
	}
	return p.Masked(), nil
}
