package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"kube-proxy/config/option"
	"kube-proxy/internal/nearest"
	"kube-proxy/mode"
)

// Conversion is a configuration of some proxy, as a file of today for a mode.
type Conversion struct {
	// YAML has the fields that differ from the default; loaded, it gives the same configuration.
	YAML []byte
	// From is the configured mode, To the mode of the file; "" is the best that the machine
	// supports.
	From, To string
	// Carried lists fields that the file has because the new mode would not have read their old
	// place.
	Carried []Carried
	// Unknown lists fields of the old file that no version had.
	Unknown []UnknownField
	// Flags are those with an effect that have no field: they stay on the command line.
	Flags []string
	// Warnings are those of a start with the old command line and file.
	Warnings []string
	// NodePortsUnset: the configuration does not say which addresses answer NodePorts.
	NodePortsUnset bool
	// Localhost: NodePorts of the old mode answered on 127.0.0.1.
	Localhost bool
	// Dropped lists fields and gates without effect, which the file does not have, each with the
	// reason.
	Dropped []DroppedField
	// Given are the paths of the fields of the old configuration that differ from the default.
	Given []string
}

// Carried is a value that moved to the field of another mode.
type Carried struct{ From, To, Value string }

// DroppedField is a set field, or a feature gate below one, without effect.
type DroppedField struct{ Path, Why string }

// UnknownField is a field that does not exist, and the one with the nearest name; "" if none is
// near.
type UnknownField struct{ Path, Near string }

// fileName replaces the name of a converted file in messages.
const fileName = "config.conf"

// Convert reads a command line, without the program's name, and the file of its --config, nil for
// none, as a starting proxy does, and writes them as one file for the mode to; "" keeps the mode.
// It reads nothing else: not this machine's name, environment or files. The error is [Problems], or
// that the file could not be decoded.
func Convert(modes mode.List, args []string, file []byte, to string) (*Conversion, error) {
	was := pureOptions(modes, file)
	set := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	was.AddFlags(set)
	if err := set.Parse(args); err != nil {
		return nil, Unparsed(args, err, modes)
	}
	if file == nil && was.ConfigFile != "" {
		return nil, Problems{{"--config", was.ConfigFile, "its file is missing: pass it too"}}
	}
	if file != nil {
		was.ConfigFile = fileName
	}
	cfg, err := was.Complete(set.Args())
	if err != nil {
		return nil, err
	}
	c := &Conversion{From: string(was.file.Mode), Warnings: was.Warnings(), NodePortsUnset: cfg.NodePorts.Unset,
		Unknown: was.unknownFields(file)}
	c.To = cmp.Or(to, c.From)
	c.Flags = was.fieldless(args)
	if m, ok := modes.Find(cmp.Or(c.From, was.usual())); ok {
		c.Warnings = append(c.Warnings, cfg.inMode[m.Name]...)
		if r, err := cfg.For(m); err == nil {
			c.Localhost = r.LocalhostNodePorts && slices.ContainsFunc(r.NodePorts.Prefixes, func(p netip.Prefix) bool {
				return p.Contains(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
			})
		}
	}
	s := was.file.copy()
	s.Mode = v1alpha1.ProxyMode(c.To)
	c.Given = was.differing(s)
	c.carry(was, s, cmp.Or(c.From, was.usual()), cmp.Or(c.To, was.usual()))
	c.carryLocalhost(cfg, s, modes)
	c.drop(was, s, cmp.Or(c.To, was.usual()))
	c.YAML, err = was.shortYAML(s)
	if err != nil {
		return nil, err
	}
	return c, c.verify(modes, s)
}

// usual is the mode that a blank one means on a machine that can do all.
func (o *Options) usual() string {
	return strings.Join(o.modes.Names(func(m mode.Mode) bool { return m.Unasked == o.system })[:1], "")
}

// pureOptions returns options with one file that use nothing of this machine; the system is Linux.
func pureOptions(modes mode.List, file []byte) *Options {
	o := NewOptions(modes)
	o.system = "linux"
	o.hostname = func() (string, error) { return "node", nil }
	o.getenv = func(string) string { return "" }
	o.readFile = func(string) ([]byte, error) { return nil, nil } // ids of the machine, which no configuration has
	o.readConfig = func(string) ([]byte, error) { return file, nil }
	return o
}

// fieldless returns the arguments whose flags have no field, except those that have no effect any
// longer and those that name the file.
func (o *Options) fieldless(args []string) (keep []string) {
	for f := range o.table.flags() {
		apart := slices.Contains([]string{"config", "healthz-port", "metrics-port"}, f.Flag)
		if o.changed(f.Flag) && f.Path == "" && f.Gone == "" && !apart {
			keep = append(keep, "--"+f.Flag+"="+o.set.Lookup(f.Flag).Value.String())
		}
	}
	return keep
}

// FlagUse describes how a command line uses a flag.
type FlagUse struct {
	// TakesValue: its value is the next word, unless it follows "=".
	TakesValue bool
	// IgnoredBesideFile: it has no effect with --config (FL-03, FL-04).
	IgnoredBesideFile bool
}

// FlagUses returns the flags that exist, by name without dashes.
func FlagUses(modes mode.List) map[string]FlagUse {
	o := NewOptions(modes)
	set := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	o.AddFlags(set)
	uses := map[string]FlagUse{}
	set.VisitAll(func(f *pflag.Flag) { uses[f.Name] = FlagUse{TakesValue: f.NoOptDefVal == ""} })
	for f := range o.table.flags() {
		use := uses[f.Flag]
		use.IgnoredBesideFile = f.ignored()
		uses[f.Flag] = use
	}
	return uses
}

// differing returns the paths of fields whose values are not the default's.
func (o *Options) differing(s *settings) (paths []string) {
	usual := o.defaults.leaves()
	for i, l := range s.leaves() {
		if !bytes.Equal(written(l), written(usual[i])) {
			paths = append(paths, l.Path)
		}
	}
	return paths
}

// carried are the names of fields that each mode reads in its own block.
var carried = []string{"masqueradeAll", "masqueradeBit", "syncPeriod", "minSyncPeriod"}

// fieldFor returns the field of that name that a mode reads; "" without one.
func fieldFor(s *settings, m mode.Mode, name string) string {
	for _, path := range []string{m.Name + "." + name, m.Block + "." + name} {
		if slices.ContainsFunc(s.leaves(), func(l option.Leaf) bool { return l.Path == path }) && m.ReadsField(path) {
			return path
		}
	}
	return ""
}

// carry copies values of one mode's block to that of another, and keeps NodePorts on their former
// addresses.
func (c *Conversion) carry(o *Options, s *settings, from, to string) {
	was, ok := o.modes.Find(from)
	will, ok2 := o.modes.Find(to)
	if from == to || !ok || !ok2 {
		return
	}
	is := func(path string) []byte { return written(option.Leaf{Path: path, Value: s.at(path)}) }
	usual := func(path string) []byte { return written(option.Leaf{Path: path, Value: o.defaults.at(path)}) }
	for _, name := range carried {
		old, now := fieldFor(s, was, name), fieldFor(s, will, name)
		if old == "" || now == "" || old == now || bytes.Equal(is(old), usual(old)) ||
			!bytes.Equal(is(now), usual(now)) {
			continue
		}
		s.at(now).Set(s.at(old))
		c.Carried = append(c.Carried, Carried{old, now, strings.Trim(string(is(now)), `"`)})
	}
	switch {
	case !c.NodePortsUnset || was.NodePortsPrimary == will.NodePortsPrimary:
		return
	case will.NodePortsPrimary:
		for _, p := range everyAddress() {
			s.NodePortAddresses = append(s.NodePortAddresses, p.String())
		}
	default:
		s.NodePortAddresses = []string{"primary"}
	}
	c.Carried = append(c.Carried, Carried{"", "nodePortAddresses", strings.Join(s.NodePortAddresses, ",")})
}

// carryLocalhost keeps TCP NodePorts on 127.0.0.1 in a mode whose proxy listens there only if
// nodePortAddresses selects it, for which a /0 does not suffice.
func (c *Conversion) carryLocalhost(cfg *Config, s *settings, modes mode.List) {
	will, ok := modes.Find(c.To)
	if !ok || !c.Localhost || !cfg.Gates[will.LocalhostGate] ||
		slices.ContainsFunc(s.NodePortAddresses, selectsLocalhost) {
		return
	}
	const localhost = "127.0.0.0/8"
	s.NodePortAddresses = append(slices.Clone(s.NodePortAddresses), localhost)
	c.Carried = append(c.Carried, Carried{"", "nodePortAddresses", localhost + ", for NodePorts on 127.0.0.1"})
}

// drop removes settings without effect: fields that neither the mode nor one of its fallbacks
// reads, those of other systems, and gates of the past.
func (c *Conversion) drop(o *Options, s *settings, to string) {
	chain := o.modes.Chain(to).Names(func(mode.Mode) bool { return true })
	for _, path := range o.differing(s) {
		f, ok := o.table.field(path)
		if !ok {
			continue
		}
		why := f.says()
		switch e := f; {
		case e.Gone != "":
			why = e.Gone
		case e.System != "" && e.System != "linux":
		case e.modes != nil && !slices.ContainsFunc(e.modes, func(m string) bool { return slices.Contains(chain, m) }):
		default:
			continue
		}
		s.at(path).Set(o.defaults.at(path))
		c.Dropped = append(c.Dropped, DroppedField{path, why})
	}
	now := map[string]bool{"AllAlpha": true, "AllBeta": true}
	for _, g := range gates() {
		now[g.name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(s.FeatureGates)) {
		if !now[name] {
			s.FeatureGates = maps.Clone(s.FeatureGates) // do not change the map of the old one
			delete(s.FeatureGates, name)
			c.Dropped = append(c.Dropped, DroppedField{"featureGates." + name,
				"a gate of another version or of another program"})
		}
	}
	if len(s.FeatureGates) == 0 {
		s.FeatureGates = nil
	}
}

// shortYAML writes the fields that differ from the defaults.
func (o *Options) shortYAML(s *settings) ([]byte, error) {
	root, err := s.root()
	if err != nil {
		return nil, err
	}
	short := map[string]any{"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "KubeProxyConfiguration"}
	for _, path := range o.differing(s) {
		if value, ok := take(root, path); ok {
			put(short, path, value)
		}
	}
	data, err := yaml.Marshal(short)
	if err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	return data, nil
}

// verify loads the written file, strictly, and compares it with the original settings.
func (c *Conversion) verify(modes mode.List, meant *settings) error {
	o := pureOptions(modes, c.YAML)
	o.ConfigFile = fileName
	d, err := decode(c.YAML, o.file.ours())
	if err == nil && len(d.warnings) > 0 {
		err = errors.New(strings.Join(d.warnings, "; "))
	}
	if err != nil {
		return fmt.Errorf("the written configuration does not load: %w\n%s", err, c.YAML)
	}
	if _, err := o.Complete(nil); err != nil {
		return fmt.Errorf("the configuration is invalid for mode %s: %w", c.To, err)
	}
	now := o.file.leaves()
	for i, l := range meant.leaves() {
		if got := written(now[i]); !bytes.Equal(got, written(l)) {
			return Problems{{l.Path, strings.Trim(string(written(l)), `"`),
				"a file cannot express this (it means unset, which is " + strings.Trim(string(got), `"`) +
					"): use another value, such as 1ms for a period"}}
		}
	}
	return nil
}

// unknownFields returns the fields of a file that no version had, each with the one with the
// nearest name.
func (o *Options) unknownFields(file []byte) (unknown []UnknownField) {
	var root map[string]any
	if yaml.Unmarshal(file, &root) != nil {
		return nil // the loader has reported it
	}
	known := slices.Sorted(maps.Keys(moved))
	blocks := map[string]bool{}
	for f := range o.table.fields() {
		known = append(known, f.Path)
		for i, r := range f.Path {
			if r == '.' {
				blocks[f.Path[:i]] = true
			}
		}
	}
	var walk func(prefix string, m map[string]any)
	walk = func(prefix string, m map[string]any) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			at := prefix + name
			sub, isMap := m[name].(map[string]any)
			switch {
			case slices.Contains(known, at), at == "apiVersion", at == "kind":
			case blocks[at] && (isMap || m[name] == nil):
				walk(at+".", sub)
			default:
				near := append(nearest.Of(at, slices.Values(known)), "")
				unknown = append(unknown, UnknownField{at, near[0]})
			}
		}
	}
	walk("", root)
	return unknown
}
