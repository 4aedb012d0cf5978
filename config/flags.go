package config

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"kube-proxy/mode"
)

// group orders the help text.
type group string

const (
	groupProxy      group = "Proxy"
	groupNode       group = "Node and API server"
	groupIPTables   group = "iptables"
	groupIPVS       group = "ipvs"
	groupNFTables   group = "nftables"
	groupEBPF       group = "ebpf"
	groupUserspace  group = "userspace"
	groupWindows    group = "Windows"
	groupConntrack  group = "Conntrack"
	groupServers    group = "Health and metrics"
	groupLogging    group = "Logging"
	groupDeprecated group = "Deprecated"
)

var groups = []group{groupProxy, groupNode, groupServers, groupNFTables, groupIPTables, groupIPVS, groupEBPF, groupUserspace,
	groupWindows, groupConntrack, groupLogging, groupDeprecated}

// flag is one entry of the flag table.
type flag struct {
	name, short string
	group       group
	// field is the path of the file's field that the flag stands for, "" for flags that no file has. With
	// --config such a flag is ignored (FL-03), unless it wins.
	field string
	// block is the block that a flag without a field belongs to.
	block string
	// wins: the flag beats the field of the file.
	wins bool
	// alone is the value of a flag that is given without one.
	alone string
	// help and effect are the field's, where there is one.
	help   string
	effect effect
	value  maker
}

// ignored reports whether the flag has no effect beside a file: the file has a field for it (FL-03), or for what it
// changes (FL-04).
func (f flag) ignored() bool {
	return f.field != "" && !f.wins && f.name != "vmodule" || slices.Contains([]string{"healthz-port", "metrics-port", "conntrack-max"}, f.name)
}

// flags is the table of all flags, with their values in o. The defaults are what o holds.
func flags(o *Options) []flag {
	all := slices.Concat(proxyFlags(o), nodeFlags(o), serverFlags(o), nftablesFlags(o), iptablesFlags(o), ipvsFlags(o),
		ebpfFlags(o), userspaceFlags(o), windowsFlags(o), conntrackFlags(o), loggingFlags(o), deprecatedFlags(o))
	byPath := map[string]field{}
	for _, f := range fields(o.modes) {
		byPath[f.path] = f
	}
	for i := range all {
		if readers := o.modes.Reading(all[i].block); all[i].block != "" {
			all[i].effect = only(readers...)
		}
		if f, ok := byPath[all[i].field]; ok {
			all[i].effect = f.effect
			if all[i].help == "" {
				all[i].help = f.help
			}
		}
	}
	return all
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
		help := f.help
		if f.effect.later {
			help += " (" + f.effect.says() + ")"
		}
		pf := fs.VarPF(v, f.name, f.short, help)
		pf.NoOptDefVal = f.alone
		if v.Type() == "bool" {
			pf.NoOptDefVal = "true"
		}
	}
	o.set = fs
}

// Usage writes the help text of all flags: by group, in our order.
func Usage(w io.Writer, modes mode.List) {
	o := NewOptions(modes)
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(all)
	for _, g := range groups {
		some := pflag.NewFlagSet("", pflag.ContinueOnError)
		some.SortFlags = false
		for _, f := range flags(o) {
			if f.group == g {
				some.AddFlag(all.Lookup(f.name))
			}
		}
		fmt.Fprintf(w, "\n%s:\n%s", g, some.FlagUsagesWrapped(100))
	}
}
