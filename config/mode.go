package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
)

// builtModes are the data planes that this version contains. A new one is added here and in cmd/kube-proxy.
func builtModes() []string { return []string{"iptables", "nftables"} }

// givesWay are modes that may be asked for though they are not built: the documents say which other mode runs then,
// and package mode chooses it.
var givesWay = []string{"ipvs"}

// modes are all that there ever were, and ours. Windows has kernelspace alone.
var modes = []string{"iptables", "ipvs", "nftables", "userspace", "ebpf", "kernelspace"}

// counts reports whether something with this effect does anything in the mode that runs.
func (e effect) counts(running string) bool {
	return e.gone == "" && (e.modes == nil || slices.Contains(e.modes, running))
}

// mode is CF-19, as far as modes are built. A blank mode and one that gives way are left to the process.
func (o *Options) mode(gates map[string]bool) string {
	mode := string(o.file.Mode)
	want := "want " + strings.Join(slices.Compact(slices.Sorted(slices.Values(slices.Concat(o.modes, givesWay)))), ", ") +
		", or nothing for the best that this machine can do"
	switch {
	case mode == "ipvs" && !gates["KubeProxyIPVS"]:
		o.wrong("mode", mode, "the feature gate KubeProxyIPVS is off: "+want)
	case mode == "", slices.Contains(o.modes, mode), slices.Contains(givesWay, mode):
	case mode == "kernelspace" && runtime.GOOS != "windows" && !o.once():
		o.wrong("mode", mode, "this mode is for Windows: "+want)
	case slices.Contains(modes, mode) && !o.once():
		o.wrong("mode", mode, "this mode is not built yet: "+want)
	case !slices.Contains(modes, mode):
		o.wrong("mode", mode, want)
	}
	return mode
}

// once reports whether the process ends without serving.
func (o *Options) once() bool {
	return o.Cleanup || o.cleanupIPTables || o.InitOnly || o.WriteConfigTo != ""
}

// Resolved is what a [Config] says for the mode that runs. It may be another than what was asked for: a blank mode
// is chosen by the process, and one that cannot run here may give way.
type Resolved struct {
	Mode string
	// Tables are the block of this mode.
	Tables    Tables
	NodePorts NodePorts
	// Warnings are those that [Config.Warnings] lacks because they depend on the mode.
	Warnings []string
}

// For returns what the configuration says for a mode. The error is [Problems] of what only this mode reads, which was
// not checked before if another mode was asked for.
func (c *Config) For(mode string) (Resolved, error) {
	if ps := c.unchecked[mode]; len(ps) > 0 {
		return Resolved{}, ps
	}
	r := Resolved{Mode: mode, Tables: c.IPTables, NodePorts: c.NodePorts, Warnings: c.inMode[mode]}
	switch mode {
	case "nftables":
		r.Tables = c.NFTables
	case "ebpf":
		r.Tables = c.EBPF
	}
	if r.NodePorts.Unset {
		r.NodePorts.Primary = mode == "nftables"
		if !r.NodePorts.Primary {
			r.NodePorts.Prefixes = everyAddress()
		}
	}
	return r, nil
}

func everyAddress() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

// onlyIn runs a check of what only one mode reads. Where another mode was asked for, its problems count only if the
// mode runs in the end.
func (o *Options) onlyIn(c *Config, mode string, check func()) {
	others := o.problems
	o.problems = nil
	check()
	found := o.problems
	o.problems = others
	asked := string(o.file.Mode)
	misspelt := asked != "" && !slices.Contains(modes, asked) // it may be this one
	if asked == mode || misspelt && mode == "nftables" {
		o.problems = append(o.problems, found...)
	} else if len(found) > 0 {
		c.unchecked[mode] = found
	}
}

// tellEffects warns of flags and fields that were set and have no effect (G1, G7): at all, or in some mode.
func (o *Options) tellEffects(c *Config) {
	var later []string
	other := map[string][]string{}
	tell := func(name string, e effect, isDefault bool) {
		switch {
		case e.gone != "" && isDefault:
		case e.gone != "":
			o.warn("%s has no effect: %s", name, e.gone)
		case e.later:
			later = append(later, name)
		case e.modes != nil && !isDefault:
			for _, mode := range modes {
				if !slices.Contains(e.modes, mode) {
					other[mode] = append(other[mode], name)
				}
			}
		}
	}
	for _, f := range flags(o) {
		if o.changed(f.name) && !slices.Contains(o.told, f.name) && (!o.loaded || f.field == "") {
			e := f.effect
			if slices.Contains(feeders, f.name) {
				e = only(append([]string{"nftables"}, e.modes...)...)
			}
			tell("--"+f.name, e, false)
		}
	}
	var defaults settings
	setDefaults(&defaults)
	for _, path := range o.inFile {
		if f, ok := fieldAt(path); ok {
			same := reflect.DeepEqual(leafAt(&defaults, f.path).Interface(), leafAt(&o.file, f.path).Interface())
			tell(path, f.effect, same)
		}
	}
	if len(later) > 0 {
		o.warn("accepted, without effect in this version: %s", strings.Join(later, ", "))
	}
	for _, mode := range modes {
		if names := other[mode]; len(names) > 0 {
			c.inMode[mode] = append(c.inMode[mode], fmt.Sprintf("without effect in mode %s: %s", mode, strings.Join(names, ", ")))
		}
		c.inMode[mode] = append(c.inMode[mode], o.tellLoopback(mode)...)
	}
}

// feeders are the flags of iptables that hold for nftables too.
var feeders = []string{"iptables-sync-period", "iptables-min-sync-period", "iptables-masquerade-bit", "masquerade-all"}

// tellLoopback warns where NodePorts are asked for on addresses on which the mode cannot serve them (CF-37, SV-64).
func (o *Options) tellLoopback(mode string) []string {
	var all []string
	where := o.where("nodePortAddresses")
	for _, entry := range o.file.NodePortAddresses {
		v4, v6 := loopbacks(entry)
		switch {
		case !v4 && !v6:
		case mode != "iptables" && mode != "userspace":
			all = append(all, fmt.Sprintf("%s %q has no effect: in mode %s NodePorts do not answer on loopback addresses", where, entry, mode))
		case v4 && mode == "iptables" && !*o.file.IPTables.LocalhostNodePorts:
			all = append(all, fmt.Sprintf("%s %q has no effect: %s is false", where, entry, o.where("iptables.localhostNodePorts")))
		case v4 && v6:
			all = append(all, fmt.Sprintf("%s %q: in mode %s NodePorts answer on 127.0.0.1, not on ::1", where, entry, mode))
		case v6:
			all = append(all, fmt.Sprintf("%s %q has no effect: in mode %s NodePorts do not answer on ::1", where, entry, mode))
		}
	}
	return all
}

// loopbacks reports of which families an entry of nodePortAddresses is loopback addresses alone.
func loopbacks(entry string) (v4, v6 bool) {
	if entry == "localhost" {
		return true, true
	}
	p, err := parsePrefix(entry)
	return err == nil && p.Addr().Is4() && p.Addr().IsLoopback() && p.Bits() >= 8,
		err == nil && p.Addr().Is6() && p.Addr().IsLoopback() && p.Bits() == 128
}
