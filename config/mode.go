package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"kube-proxy/config/option"
	"kube-proxy/mode"
)

// mode is CF-19. A blank mode and one that gives way are left to the process.
func (o *Options) mode(gates map[string]bool) string {
	name := string(o.file.Mode)
	off := func(m mode.Mode) bool { return m.Gate != "" && !gates[m.Gate] }
	want := "want " + strings.Join(
		slices.Sorted(slices.Values(o.modes.Names(func(m mode.Mode) bool { return m.On(o.system) && !off(m) }))),
		", ") + ", or nothing for the default"
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
	}
	return name
}

// once reports whether the process ends without serving.
func (o *Options) once() bool {
	return o.Cleanup || o.cleanupIPTables || o.InitOnly || o.WriteConfigTo != ""
}

// Resolved holds the values of a [Config] for the running mode. That may differ from the configured
// one: the process chooses a blank mode, and a mode that cannot run here may have a fallback.
type Resolved struct {
	Mode mode.Mode
	// Tables are the block of this mode.
	Tables    Tables
	NodePorts NodePorts
	// LocalhostNodePorts: NodePorts can answer on 127.0.0.1, and the configuration does not forbid
	// it.
	LocalhostNodePorts bool
	// LocalhostProxy: the mode's gate for NodePorts on localhost is on.
	LocalhostProxy bool
	// Warnings are those that [Config.Warnings] lacks because they depend on the mode.
	Warnings []string
}

// For returns the configuration for a mode. The error is [Problems] of fields that only some modes
// read; they were not checked before if another mode is configured.
func (c *Config) For(m mode.Mode) (Resolved, error) {
	if ps := c.unchecked[m.Name]; len(ps) > 0 {
		return Resolved{}, ps
	}
	r := Resolved{Mode: m, Tables: c.Tables(m), NodePorts: c.NodePorts, Warnings: c.inMode[m.Name]}
	r.LocalhostNodePorts = m.LocalhostNodePorts && (r.Tables.LocalhostNodePorts ||
		!m.ReadsField(m.Block+".localhostNodePorts"))
	r.LocalhostProxy = m.LocalhostGate != "" && c.Gates[m.LocalhostGate]
	if r.NodePorts.Unset {
		r.NodePorts.Primary = m.NodePortsPrimary
		if !r.NodePorts.Primary {
			r.NodePorts.Prefixes = everyAddress()
		}
	}
	return r, nil
}

// Tables returns the common values for this mode: from its blocks, or the defaults.
func (c *Config) Tables(m mode.Mode) Tables {
	t := Tables{MasqueradeBit: mode.MasqueradeBit, LocalhostNodePorts: m.LocalhostNodePorts}
	read(c.file, m.Block+".masqueradeBit", &t.MasqueradeBit)
	read(c.file, m.Block+".masqueradeAll", &t.MasqueradeAll)
	read(c.file, m.Block+".localhostNodePorts", &t.LocalhostNodePorts)
	var period, least option.Duration
	periods := cmp.Or(m.Periods, m.Block)
	read(c.file, periods+".syncPeriod", &period)
	read(c.file, periods+".minSyncPeriod", &least)
	t.SyncPeriod, t.MinSyncPeriod = period.Duration, option.Exact(least)
	return t
}

func everyAddress() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

// reportEffects adds warnings about flags and fields that were set and have no effect (G1, G7): in
// any mode, or in some.
func (o *Options) reportEffects(c *Config) {
	other := map[string][]string{}
	addReport := func(name string, e *entry, isDefault bool) {
		switch {
		case e.Gone != "" && isDefault:
		case e.Gone != "":
			o.warn("%s has no effect: %s", name, e.Gone)
		case isDefault:
		case e.System != "" && e.System != o.system, e.modes != nil:
			for _, m := range o.modes {
				if !slices.Contains(e.modes, m.Name) {
					other[m.Name] = append(other[m.Name], name)
				}
			}
		}
	}
	for f := range o.table.flags() {
		if o.changed(f.Flag) && !slices.Contains(o.reportedFlags, f.Flag) && (!o.loaded || f.Path == "") {
			addReport("--"+f.Flag, f.asFlag(o.modes), false)
		}
	}
	for _, path := range o.inFile {
		if f, ok := o.table.field(path); ok {
			same := reflect.DeepEqual(o.defaults.at(f.Path).Interface(), o.file.at(f.Path).Interface())
			addReport(path, f, same)
		}
	}
	for _, m := range o.modes {
		if names := other[m.Name]; len(names) > 0 {
			c.inMode[m.Name] = append(c.inMode[m.Name], fmt.Sprintf("without effect in mode %s: %s", m.Name,
				strings.Join(names, ", ")))
		}
		c.inMode[m.Name] = append(c.inMode[m.Name], o.reportLoopback(c, m)...)
	}
}

// asFlag returns the entry of a flag, which may apply to other modes than its field: those that
// inherit it.
func (e *entry) asFlag(modes mode.List) *entry {
	as := *e
	heirs := modes.Names(func(m mode.Mode) bool {
		return slices.Contains(slices.Collect(maps.Values(m.Inherits)), e.Path)
	})
	if e.modes != nil {
		as.modes = slices.Concat(heirs, e.modes)
	}
	return &as
}

// inherit copies the flags of one block to another, if a flag selects a mode that inherits them
// (CF-62), or may select it; the block's own flags take precedence.
func (o *Options) inherit() {
	for _, m := range o.modes {
		if cmp.Or(string(o.file.Mode), m.Name) != m.Name {
			continue
		}
		for own, other := range m.Inherits {
			if o.given(other) && !o.given(own) {
				o.file.at(own).Set(o.file.at(other))
			}
		}
	}
}

// reportLoopback warns if NodePorts are configured on addresses on which the mode cannot serve them
// (CF-37, SV-64).
func (o *Options) reportLoopback(c *Config, m mode.Mode) []string {
	field := m.Block + ".localhostNodePorts"
	off := m.ReadsField(field) && !c.Tables(m).LocalhostNodePorts
	var all []string
	where := o.where("nodePortAddresses")
	named, proxied := false, m.LocalhostGate != "" && c.Gates[m.LocalhostGate]
	for _, entry := range o.file.NodePortAddresses {
		v4, v6 := loopbacks(entry)
		named = named || selectsLocalhost(entry)
		switch {
		case !v4 && !v6, proxied, m.LocalhostSockets:
		case m.LocalhostGate != "":
			all = append(all, fmt.Sprintf("%s %q has no effect: in mode %s NodePorts do not answer on loopback "+
				"addresses without the feature gate %s", where, entry, m.Name, m.LocalhostGate))
		case !m.LocalhostNodePorts:
			all = append(all, fmt.Sprintf("%s %q has no effect: in mode %s NodePorts do not answer on loopback "+
				"addresses", where, entry, m.Name))
		case v4 && off:
			all = append(all, fmt.Sprintf("%s %q has no effect: %s is false", where, entry, o.where(field)))
		case v4 && v6:
			all = append(all, fmt.Sprintf("%s %q: in mode %s NodePorts answer on 127.0.0.1, not on ::1", where, entry,
				m.Name))
		case v6:
			all = append(all, fmt.Sprintf("%s %q has no effect: in mode %s NodePorts do not answer on ::1", where,
				entry, m.Name))
		}
	}
	if proxied && !named && o.file.FeatureGates[m.LocalhostGate] {
		all = append(all, fmt.Sprintf("%s: %s=true has no effect: %s names no loopback addresses, such as localhost",
			o.where("featureGates"), m.LocalhostGate, where))
	}
	return all
}

// selectsLocalhost reports whether an entry of nodePortAddresses selects 127.0.0.1 or ::1 for the
// proxy's listeners (TN-56).
func selectsLocalhost(entry string) bool {
	p, err := option.ParsePrefix(entry)
	return entry == "localhost" || err == nil && p.Bits() > 0 &&
		(p.Contains(netip.AddrFrom4([4]byte{127, 0, 0, 1})) || p.Contains(netip.IPv6Loopback()))
}

// loopbacks reports for each family whether an entry of nodePortAddresses contains loopback
// addresses only.
func loopbacks(entry string) (v4, v6 bool) {
	if entry == "localhost" {
		return true, true
	}
	p, err := option.ParsePrefix(entry)
	return err == nil && p.Addr().Is4() && p.Addr().IsLoopback() && p.Bits() >= 8,
		err == nil && p.Addr().Is6() && p.Addr().IsLoopback() && p.Bits() == 128
}
