package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"kube-proxy/mode"
)

// runs reports whether a process that is asked for m serves, in this mode or in one that it falls back to.
func runs(modes mode.List, m mode.Mode) bool {
	return slices.ContainsFunc(modes.Chain(m.Name), mode.Mode.Built)
}

// modeHelp is the help of the field mode.
func modeHelp(modes mode.List) string {
	var names []string
	for _, m := range modes {
		switch {
		case m.Built() && m.OS == "windows":
			names = append(names, m.Name+" ("+systemName(m.OS)+")")
		case m.Built():
			names = append(names, m.Name)
		}
	}
	help := "`mode` of the data plane: " + strings.Join(names, ", ")
	for _, m := range modes {
		if !m.Built() && runs(modes, m) {
			help += fmt.Sprintf("; %s gives way to %s in this version", m.Name, m.FallsBackTo)
		}
	}
	help += "; nothing means the best that this machine can do"
	if unasked := modes.Names(func(m mode.Mode) bool { return m.Unasked != "" }); len(unasked) > 0 {
		help += ", " + unasked[0] + " first"
	}
	return help
}

// nodePortsHelp is the help of the field nodePortAddresses.
func nodePortsHelp(modes mode.List) string {
	primary := modes.Names(func(m mode.Mode) bool { return m.NodePortsPrimary })
	return "`addresses` of this node that answer NodePorts: CIDRs and the words primary, localhost (where the mode can), all; nothing means primary in " +
		strings.Join(primary, " and ") + " mode, all in the others"
}

// counts reports whether something with this effect does anything in the mode that runs.
func (e effect) counts(running string) bool {
	return e.gone == "" && (e.system == "" || e.system == runtime.GOOS) && (e.modes == nil || slices.Contains(e.modes, running))
}

// mode is CF-19, as far as modes are built. A blank mode and one that gives way are left to the process.
func (o *Options) mode(gates map[string]bool) string {
	name := string(o.file.Mode)
	off := func(m mode.Mode) bool { return m.Gate != "" && !gates[m.Gate] }
	want := "want " + strings.Join(slices.Sorted(slices.Values(o.modes.Names(func(m mode.Mode) bool { return m.On(o.system) && !off(m) && runs(o.modes, m) }))), ", ") +
		", or nothing for the best that this machine can do"
	m, known := o.modes.Find(name)
	switch {
	case name == "":
	case !known:
		o.wrong("mode", name, want)
	case off(m):
		o.wrong("mode", name, "the feature gate "+m.Gate+" is off: "+want)
	case o.once(), o.Renders && m.Render != nil:
	case !m.On(o.system):
		o.wrong("mode", name, "this mode is for "+systemName(m.OS)+": "+want)
	case runs(o.modes, m):
	default:
		o.wrong("mode", name, "this mode is not built yet: "+want)
	}
	return name
}

// once reports whether the process ends without serving.
func (o *Options) once() bool {
	return o.Cleanup || o.cleanupIPTables || o.InitOnly || o.WriteConfigTo != ""
}

// Resolved is what a [Config] says for the mode that runs. It may be another than what was asked for: a blank mode
// is chosen by the process, and one that cannot run here may give way.
type Resolved struct {
	Mode mode.Mode
	// Tables are the block of this mode.
	Tables    Tables
	NodePorts NodePorts
	// LocalhostNodePorts: NodePorts can answer on 127.0.0.1, and nobody asked that they do not.
	LocalhostNodePorts bool
	// LocalhostProxy: the mode's gate for NodePorts on localhost is on.
	LocalhostProxy bool
	// Warnings are those that [Config.Warnings] lacks because they depend on the mode.
	Warnings []string
}

// For returns what the configuration says for a mode. The error is [Problems] of what only some modes read, which was
// not checked before if another mode was asked for.
func (c *Config) For(m mode.Mode) (Resolved, error) {
	if ps := c.unchecked[m.Name]; len(ps) > 0 {
		return Resolved{}, ps
	}
	r := Resolved{Mode: m, Tables: c.block(m), NodePorts: c.NodePorts, Warnings: c.inMode[m.Name]}
	r.LocalhostNodePorts = m.LocalhostNodePorts && (r.Tables.LocalhostNodePorts || !m.ReadsField(m.Block+".localhostNodePorts"))
	r.LocalhostProxy = m.LocalhostGate != "" && c.Gates[m.LocalhostGate]
	if r.NodePorts.Unset {
		r.NodePorts.Primary = m.NodePortsPrimary
		if !r.NodePorts.Primary {
			r.NodePorts.Prefixes = everyAddress()
		}
	}
	return r, nil
}

// block returns the settings that the mode has for itself: those of its blocks, or its defaults.
func (c *Config) block(m mode.Mode) Tables {
	t := c.tables(m)
	if m.Periods == "ipvs" {
		t.SyncPeriod, t.MinSyncPeriod = c.IPVS.SyncPeriod, c.IPVS.MinSyncPeriod
	}
	return t
}

func (c *Config) tables(m mode.Mode) Tables {
	switch m.Block {
	case "iptables":
		return c.IPTables
	case "nftables":
		return c.NFTables
	case "ebpf":
		return c.EBPF
	}
	return Tables{MasqueradeBit: masqueradeBit, LocalhostNodePorts: m.LocalhostNodePorts, SyncPeriod: m.SyncPeriod, MinSyncPeriod: m.MinSyncPeriod}
}

func everyAddress() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

// onlyIn runs a check of a block that only some modes read. Where another mode was asked for, its problems count only if
// one of them runs in the end; counts reports whether they do already.
func (o *Options) onlyIn(c *Config, block string, check func()) (counts bool) {
	others := o.problems
	o.problems = nil
	check()
	found := o.problems
	o.problems = others
	asked := string(o.file.Mode)
	_, known := o.modes.Find(asked)
	for _, name := range o.modes.Reading(block) {
		m, _ := o.modes.Find(name)
		misspelt := asked != "" && !known && m.Built() // it may be this one
		counts = counts || asked == name || misspelt
	}
	if counts {
		o.problems = append(o.problems, found...)
		return true
	}
	for _, name := range o.modes.Reading(block) {
		c.unchecked[name] = append(c.unchecked[name], found...)
	}
	return false
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
		case e.system != "" && e.system != o.system && !isDefault:
			for _, m := range o.modes {
				other[m.Name] = append(other[m.Name], name)
			}
		case e.modes != nil && !isDefault:
			for _, m := range o.modes {
				if !slices.Contains(e.modes, m.Name) {
					other[m.Name] = append(other[m.Name], name)
				}
			}
		}
	}
	for _, f := range flags(o) {
		if o.changed(f.name) && !slices.Contains(o.told, f.name) && (!o.loaded || f.field == "") {
			tell("--"+f.name, f.asFlag(o.modes), false)
		}
	}
	var defaults settings
	setDefaults(&defaults, o.modes)
	for _, path := range o.inFile {
		if f, ok := fieldAt(o.modes, path); ok {
			same := reflect.DeepEqual(leafAt(&defaults, f.path).Interface(), leafAt(&o.file, f.path).Interface())
			tell(path, f.effect, same)
		}
	}
	if len(later) > 0 {
		o.warn("accepted, without effect in this version: %s", strings.Join(later, ", "))
	}
	for _, m := range o.modes {
		if names := other[m.Name]; len(names) > 0 {
			c.inMode[m.Name] = append(c.inMode[m.Name], fmt.Sprintf("without effect in mode %s: %s", m.Name, strings.Join(names, ", ")))
		}
		c.inMode[m.Name] = append(c.inMode[m.Name], o.tellLoopback(c, m)...)
	}
}

// asFlag is the effect of a flag, which may hold for other modes than its field: those that inherit it.
func (f flag) asFlag(modes mode.List) effect {
	heirs := modes.Names(func(m mode.Mode) bool { return slices.Contains(slices.Collect(maps.Values(m.Inherits)), f.field) })
	if f.effect.modes == nil || len(heirs) == 0 {
		return f.effect
	}
	return only(slices.Concat(heirs, f.effect.modes)...)
}

// inherit has the flags of one block feed those of another, where a mode that wants that is chosen by a flag (CF-62), or may
// be; its own flags win.
func (o *Options) inherit() {
	byField := map[string]string{}
	for _, f := range flags(o) {
		byField[f.field] = f.name
	}
	for _, m := range o.modes {
		if cmp.Or(string(o.file.Mode), m.Name) != m.Name {
			continue
		}
		for own, other := range m.Inherits {
			if o.changed(byField[other]) && !o.changed(byField[own]) {
				leafAt(&o.file, own).Set(leafAt(&o.file, other))
			}
		}
	}
}

// tellLoopback warns where NodePorts are asked for on addresses on which the mode cannot serve them (CF-37, SV-64).
func (o *Options) tellLoopback(c *Config, m mode.Mode) []string {
	field := m.Block + ".localhostNodePorts"
	off := m.ReadsField(field) && !c.block(m).LocalhostNodePorts
	var all []string
	where := o.where("nodePortAddresses")
	named, proxied := false, m.LocalhostGate != "" && c.Gates[m.LocalhostGate]
	for _, entry := range o.file.NodePortAddresses {
		v4, v6 := loopbacks(entry)
		named = named || v4 || v6
		switch {
		case !v4 && !v6, proxied:
		case m.LocalhostGate != "":
			all = append(all, fmt.Sprintf("%s %q has no effect: in mode %s NodePorts do not answer on loopback addresses without the feature gate %s",
				where, entry, m.Name, m.LocalhostGate))
		case !m.LocalhostNodePorts:
			all = append(all, fmt.Sprintf("%s %q has no effect: in mode %s NodePorts do not answer on loopback addresses", where, entry, m.Name))
		case v4 && off:
			all = append(all, fmt.Sprintf("%s %q has no effect: %s is false", where, entry, o.where(field)))
		case v4 && v6:
			all = append(all, fmt.Sprintf("%s %q: in mode %s NodePorts answer on 127.0.0.1, not on ::1", where, entry, m.Name))
		case v6:
			all = append(all, fmt.Sprintf("%s %q has no effect: in mode %s NodePorts do not answer on ::1", where, entry, m.Name))
		}
	}
	if proxied && !named && o.file.FeatureGates[m.LocalhostGate] {
		all = append(all, fmt.Sprintf("%s: %s=true has no effect: %s names no loopback addresses, such as localhost", o.where("featureGates"), m.LocalhostGate, where))
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
