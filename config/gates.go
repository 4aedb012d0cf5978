package config

import (
	_ "embed" // gates.txt
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"

	"kube-proxy/internal/nearest"
)

//go:embed gates.txt
var gatesText string

// gate is one feature gate that is accepted.
type gate struct {
	name   string
	stage  string // alpha, beta, ga, deprecated
	on     bool   // by default
	locked bool   // cannot be changed
}

// gates returns the feature gates of the current kube-proxy except AllAlpha and AllBeta, which
// package featuregate adds itself.
func gates() []gate {
	var all []gate
	for line := range strings.Lines(gatesText) {
		if f := strings.Fields(line); f[0] != "#" {
			all = append(all, gate{f[0], f[1], f[2] == "true", f[3] == "locked"})
		}
	}
	return all
}

// Gate is one feature gate as the metric kubernetes_feature_enabled shows it.
type Gate struct {
	Name string
	// Stage is ALPHA, BETA or DEPRECATED, or "" for generally available gates.
	Stage string
	On    bool
}

// GateStages returns all gates that a current proxy has, by name.
func (c *Config) GateStages() []Gate {
	specs := newGateSet().GetAll()
	var all []Gate
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		all = append(all, Gate{name, string(specs[featuregate.Feature(name)].PreRelease), c.Gates[name]})
	}
	return all
}

// does describes the effect of gates that can be changed and have one.
var does = map[string]string{
	"AllowServiceExternalIPs": "off: spec.externalIPs of Services are not served",
	"ComponentFlagz":          "off: no /flagz",
	"ComponentSLIs":           "off: no /metrics/slis",
	"ComponentStatusz":        "off: no /statusz",
	"KubeProxyIPVS":           "off: the mode ipvs is an error",
	"KubeProxyNFTablesLocalhostNodePorts": "on: in mode nftables TCP NodePorts answer on 127.0.0.1 and ::1 where " +
		"nodePortAddresses selects them: localhost, or a CIDR that contains them, except /0; other packets to " +
		"NodePorts " +
		"are rejected there and counted",
	"LoggingAlphaOptions": "on: logging.options may be set",
	"NativeHistograms":    "off: no native histograms; they are sent to scrapers that ask for protobuf",
}

// idle gives the reason why changing a gate has no effect here: of a current gate, or one that
// earlier proxies had. Current gates that are not in it are in does, or locked.
var idle = map[string]string{
	"ContextualLogging":  "lines of the log always say what they are about",
	"LoggingBetaOptions": "no option of the log is beta",
	"NFTablesNetlink":    "the mode nftables always speaks netlink, never through the program nft",

	"AllowExtTrafficLocalEndpoints":     "externalTrafficPolicy always counts",
	"EndpointSlice":                     "EndpointSlices are always used",
	"EndpointSliceProxying":             "EndpointSlices are always used",
	"EndpointSliceTerminatingCondition": "terminating endpoints are always distinguished from others",
	"IPv6DualStack":                     "both IP families are served wherever the machine has them",
	"MixedProtocolLBService":            "a Service may always have ports of several protocols",
	"SCTPSupport":                       "SCTP is always served",
	"ServiceLBNodePortControl":          "a Service without NodePorts never gets one here",
	"ServiceLoadBalancerClass":          "load balancers of every class are served alike",
	"ServiceTopology":                   "the API has no topologyKeys any more; the hints of EndpointSlices count",
	"SupportIPVSProxyMode":              "the mode ipvs needs no gate",
	"WatchBookmark":                     "bookmarks are always requested",
	"WindowsEndpointSliceProxying":      "EndpointSlices are always used",

	"ProxyTerminatingEndpoints":    "terminating endpoints always serve where no other endpoint is ready",
	"ServiceInternalTrafficPolicy": "internalTrafficPolicy is always honoured",
	"TopologyAwareHints":           "hints of EndpointSlices are always honoured",
	"WinDSR":                       "use --enable-dsr=false",
	"WinOverlay":                   "overlay networks are always supported",
}

// silentOn are locked gates of one operating system: on another one they deserve no warning.
var silentOn = map[string]string{"WinDSR": "linux", "WinOverlay": "linux"}

// documentedOff reports whether the gate is locked today but the documents of v1.14 to v1.24 let it
// be off, some as the default. Such a setting is accepted without effect (CF-01).
func (g gate) documentedOff() bool { return g.locked && idle[g.name] != "" }

// featureGates is CF-01. It returns the state of every gate that a current proxy has.
func (o *Options) featureGates() map[string]bool {
	current := map[string]gate{"AllAlpha": {}, "AllBeta": {on: true}} // off and unset are the same
	for _, g := range gates() {
		current[g.name] = g
	}
	var others []string
	good := map[string]bool{}
	where := o.where("featureGates")
	for _, name := range slices.Sorted(maps.Keys(o.file.FeatureGates)) {
		on := o.file.FeatureGates[name]
		text := fmt.Sprintf("%s=%t", name, on)
		g, ok := current[name]
		if !ok {
			switch near := nearest.DidYouMean(name, maps.Keys(current), ""); {
			case idle[name] != "":
				o.warn("%s: %s has no effect: %s", where, text, idle[name])
			case near != "":
				o.wrong("featureGates", text, "unknown feature gate"+near)
			default:
				others = append(others, text)
			}
			continue
		}
		if on != g.on && g.documentedOff() {
			if silentOn[name] != o.system {
				o.warn("%s: %s has no effect: %s", where, text, idle[name])
			}
			continue
		}
		// Each gate has its own set: a set that refused one gate refuses all later ones.
		if err := newGateSet().SetFromMapWithLogger(klog.Logger{}, map[string]bool{name: on}); err != nil {
			o.wrong("featureGates", text, err.Error())
			continue
		}
		good[name] = on
		if why := idle[name]; why != "" && on != g.on {
			o.warn("%s: %s has no effect: %s", where, text, why)
		}
	}
	if len(others) > 0 {
		o.warn("%s: these gates belong to other versions or to other programs and have no effect: %s", where,
			strings.Join(others, ", "))
	}
	all := newGateSet()
	if err := all.SetFromMapWithLogger(klog.Logger{}, good); err != nil {
		o.wrong("featureGates", fmt.Sprint(good), err.Error())
	}
	state := map[string]bool{}
	for name := range all.GetAll() {
		state[string(name)] = all.Enabled(name)
	}
	return state
}

// gateSet has the methods of package featuregate's set that are used; its type has no public name.
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
