package config

import (
	_ "embed" // gates.txt
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
)

//go:embed gates.txt
var gatesText string

// gate is one feature gate that is accepted.
type gate struct {
	name   string
	stage  string // alpha, beta, ga, deprecated
	on     bool   // by default
	locked bool   // cannot be changed
	// now: a proxy of today knows it. The others are named by the documents of older versions: they are
	// taken with a warning.
	now bool
}

// gates returns all feature gates but AllAlpha and AllBeta, which package featuregate knows by itself.
func gates() []gate {
	var all []gate
	for line := range strings.Lines(gatesText) {
		if f := strings.Fields(line); f[0] != "#" {
			all = append(all, gate{f[0], f[1], f[2] == "true", f[3] == "locked", f[4] == "now"})
		}
	}
	return all
}

// working are the gates that do something when they are changed.
var working = []string{"AllAlpha", "LoggingAlphaOptions"}

// featureGates is CF-01. It returns the state of every gate that a proxy of today knows.
func (o *Options) featureGates() map[string]bool {
	names := map[string]gate{}
	for _, g := range gates() {
		names[g.name] = g
	}
	var historic, idle []string
	good := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(o.file.FeatureGates)) {
		on := o.file.FeatureGates[name]
		text := fmt.Sprintf("%s=%t", name, on)
		g, ok := names[name]
		// A set of its own for each: one that refused a gate refuses all that follow.
		if err := newGateSet().SetFromMapWithLogger(klog.Logger{}, map[string]bool{name: on}); err != nil {
			want := err.Error()
			if !ok {
				want += "; docs/configuration.md lists those that are known"
			}
			o.wrong("featureGates", text, want)
			continue
		}
		good[name] = on
		switch {
		case ok && !g.now:
			historic = append(historic, text)
		case ok && on != g.on && !slices.Contains(working, name), name == "AllBeta" && !on:
			idle = append(idle, text)
		}
	}
	if len(historic) > 0 {
		o.warn("%s: these gates are of the past or of other programs, and do nothing here: %s", o.where("featureGates"), strings.Join(historic, ", "))
	}
	if len(idle) > 0 {
		o.warn("%s: accepted, without effect in this version: %s", o.where("featureGates"), strings.Join(idle, ", "))
	}
	all := newGateSet()
	if err := all.SetFromMapWithLogger(klog.Logger{}, good); err != nil {
		o.wrong("featureGates", fmt.Sprint(good), err.Error())
	}
	state := map[string]bool{}
	for name := range all.GetAll() {
		if g, ok := names[string(name)]; !ok || g.now {
			state[string(name)] = all.Enabled(name)
		}
	}
	return state
}

// gateSet is what package featuregate's set can do; its type has no public name.
type gateSet interface {
	SetFromMapWithLogger(logger klog.Logger, m map[string]bool) error
	GetAll() map[featuregate.Feature]featuregate.FeatureSpec
	Enabled(name featuregate.Feature) bool
}

// newGateSet returns all gates as they are by default.
func newGateSet() gateSet {
	known := map[featuregate.Feature]featuregate.FeatureSpec{}
	for _, g := range gates() {
		spec := featuregate.FeatureSpec{Default: g.on, LockToDefault: g.locked}
		switch g.stage {
		case "alpha":
			spec.PreRelease = featuregate.Alpha
		case "beta":
			spec.PreRelease = featuregate.Beta
		case "deprecated":
			spec.PreRelease = featuregate.Deprecated
		default:
			spec.PreRelease = featuregate.GA
		}
		known[featuregate.Feature(g.name)] = spec
	}
	set := featuregate.NewFeatureGate()
	if err := set.Add(known); err != nil {
		panic(fmt.Sprintf("config: gates.txt: %v", err)) // a mistake in our table, which every test meets
	}
	return set
}
