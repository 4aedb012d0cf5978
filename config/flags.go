package config

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

// group orders the help text.
type group string

const (
	groupProxy    group = "Proxy"
	groupNode     group = "Node and API server"
	groupNFTables group = "nftables"
	groupLogging  group = "Logging"
)

var groups = []group{groupProxy, groupNode, groupNFTables, groupLogging}

// flag is one entry of the flag table.
type flag struct {
	name, short string
	group       group
	// field is the path of the file's field that the flag stands for, "" for flags that no file has. With
	// --config such a flag is ignored (FL-03), unless it wins.
	field string
	// wins: the flag beats the field of the file.
	wins bool
	// alone is the value of a flag that is given without one.
	alone string
	help  string
	value maker
}

// flags is the table of all flags, with their values in o. The defaults are what o holds.
func flags(o *Options) []flag {
	f := &o.file
	return []flag{
		{name: "proxy-mode", group: groupProxy, field: "mode", value: text(&f.Mode),
			help: "`mode` of the data plane: nftables"},
		{name: "config", group: groupProxy, value: text(&o.ConfigFile),
			help: "`file` with a KubeProxyConfiguration, YAML or JSON; flags that stand for its fields are then ignored"},
		{name: "manifests", group: groupProxy, value: text(&o.Manifests),
			help: "`folder` of YAML or JSON files with Services and EndpointSlices to serve instead of an API server's; watched"},
		{name: "cluster-cidr", group: groupProxy, field: "clusterCIDR", value: text(&f.ClusterCIDR),
			help: "pod network of the cluster, one `CIDR` or one of each IP family with a comma between"},
		{name: "detect-local-mode", group: groupProxy, field: "detectLocalMode", value: text(&f.DetectLocalMode),
			help: "`mode` of recognising traffic of this node's pods: " + strings.Join(localModes, ", ") + "; blank means ClusterCIDR"},
		{name: "pod-bridge-interface", group: groupProxy, field: "detectLocal.bridgeInterface", value: text(&f.DetectLocal.BridgeInterface),
			help: "bridge `interface` that pods are attached to, for BridgeInterface"},
		{name: "pod-interface-name-prefix", group: groupProxy, field: "detectLocal.interfaceNamePrefix", value: text(&f.DetectLocal.InterfaceNamePrefix),
			help: "what the names of the pods' interfaces begin with, for InterfaceNamePrefix"},
		{name: "nodeport-addresses", group: groupProxy, field: "nodePortAddresses", value: list(&f.NodePortAddresses),
			help: "addresses of this node that answer NodePorts: CIDRs, primary or all; nothing means primary in nftables mode"},
		{name: "masquerade-all", group: groupProxy, field: "nftables.masqueradeAll", value: boolean(&f.NFTables.MasqueradeAll),
			help: "masquerade every connection to a cluster IP"},
		{name: "bind-address", group: groupProxy, field: "bindAddress", value: text(&f.BindAddress),
			help: "`IP` that stands for this node instead of its Node object's; 0.0.0.0 or :: means none; nothing is bound to it"},
		{name: "version", group: groupProxy, value: text(&o.Version), alone: "true",
			help: "print the version and exit; --version=raw prints all that is known of the build"},

		{name: "kubeconfig", group: groupNode, field: "clientConnection.kubeconfig", value: text(&f.ClientConnection.Kubeconfig),
			help: "`file` with the API server's address and credentials; without it and --master those of the pod are used"},
		{name: "master", group: groupNode, value: text(&o.Master),
			help: "`URL` of the API server; beats the one in the kubeconfig file"},
		{name: "hostname-override", group: groupNode, field: "hostnameOverride", wins: true, value: text(&f.HostnameOverride),
			help: "`name` of this node; the host's own name if not given"},
		{name: "kube-api-qps", group: groupNode, field: "clientConnection.qps", value: float(&f.ClientConnection.QPS),
			help: "requests to the API server a second; negative means no limit"},
		{name: "kube-api-burst", group: groupNode, field: "clientConnection.burst", value: number(&f.ClientConnection.Burst),
			help: "requests that may come at once"},

		{name: "nftables-min-sync-period", group: groupNFTables, field: "nftables.minSyncPeriod", value: duration(&f.NFTables.MinSyncPeriod),
			help: "least time between two writes to the kernel"},
		{name: "nftables-sync-period", group: groupNFTables, field: "nftables.syncPeriod", value: duration(&f.NFTables.SyncPeriod),
			help: "time between two full comparisons of our table with the kernel, besides the watch for changes of others; 0 means some minutes"},
		{name: "nftables-masquerade-bit", group: groupNFTables, field: "nftables.masqueradeBit", value: optional(&f.NFTables.MasqueradeBit),
			help: "bit of the packet mark that asks for masquerading, 0 to 31"},

		{name: "v", short: "v", group: groupLogging, field: "logging.verbosity", wins: true, value: number(&f.Logging.Verbosity),
			help: "`level` of detail in the log: 0, the least, to 10"},
	}
}

// AddFlags defines all flags in fs, and makes "_" and "-" the same there (G2). Parsing never fails for a
// bad value: [Options.Complete] reports it with all other problems.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	fs.SortFlags = false
	note := func(p Problem) { o.problems = append(o.problems, p) }
	for _, f := range flags(o) {
		v := f.value(f.name, note)
		pf := fs.VarPF(v, f.name, f.short, f.help)
		pf.NoOptDefVal = f.alone
		if v.Type() == "bool" {
			pf.NoOptDefVal = "true"
		}
	}
	o.set = fs
}

// Usage writes the help text: flags by group, in our order.
func Usage(w io.Writer, program string) {
	fmt.Fprintf(w, "Usage: %s [flags]\n\nMakes the addresses of Kubernetes Services work on this machine.\n", program)
	o := NewOptions()
	all := pflag.NewFlagSet(program, pflag.ContinueOnError)
	o.AddFlags(all)
	for _, g := range groups {
		some := pflag.NewFlagSet(program, pflag.ContinueOnError)
		some.SortFlags = false
		for _, f := range flags(o) {
			if f.group == g {
				some.AddFlag(all.Lookup(f.name))
			}
		}
		fmt.Fprintf(w, "\n%s:\n%s", g, some.FlagUsagesWrapped(100))
	}
}
