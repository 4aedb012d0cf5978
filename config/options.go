package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"kube-proxy/config/option"
	"kube-proxy/mode"
)

// Compatible is the newest Kubernetes whose kube-proxy this one replaces.
const Compatible = "v1.37.0"

// previousMinor is the version before Compatible.
const previousMinor = "1.36"

// Options holds the command line before it is merged with the file and validated.
type Options struct {
	// ConfigFile is --config.
	ConfigFile string
	// WriteConfigTo is --write-config-to.
	WriteConfigTo string
	// Manifests is --manifests.
	Manifests string
	// Master is --master.
	Master string
	// Version is --version: "", "false", "true", "raw" or a version "vX.Y.Z" to report instead.
	Version string
	// Renders: the process prints rules, and does not run; so the mode may be one of another
	// operating system.
	Renders bool
	// Cleanup is --cleanup, InitOnly is --init-only.
	Cleanup, InitOnly bool

	nodeFlags
	deprecatedFlags
	klog            Logging // of it the parts that no file has
	stderrThreshold severity

	file          *settings // values of the flags, or of the file
	defaults      *settings
	proxy         *proxyBlock      // of file
	servers       *serversBlock    // of file
	snapshot      *snapshotBlock   // of file
	failover      *failoverBlock   // of file
	sections      []option.Section // of modes
	table         table
	set           *pflag.FlagSet // to find the flags that were given
	modes         mode.List      // all modes
	system        string         // as runtime.GOOS
	problems      Problems
	warnings      []string
	loaded        bool     // file holds the values of the file
	inFile        []string // paths of the fields that the file sets to a non-zero value
	reportedFlags []string // flags that a warning was given about

	hostname   func() (string, error)
	getenv     func(string) string
	readFile   func(string) ([]byte, error) // for files whose absence is no error
	readConfig func(string) ([]byte, error) // for the file of --config
}

// NewOptions returns Options with the defaults of all flags. Defaults apply before parsing, so that
// a flag can ask for 0. In a file 0 means "not given", unless the type distinguishes the two
// (FL-08).
func NewOptions(modes mode.List) *Options {
	o := &Options{
		hostname: os.Hostname, getenv: os.Getenv, readFile: os.ReadFile, readConfig: readAtStart, modes: modes,
		system: runtime.GOOS,
		file:   &settings{}, proxy: &proxyBlock{}, servers: &serversBlock{}, snapshot: &snapshotBlock{},
		failover: &failoverBlock{},
	}
	sections := []option.Section{o.proxySection(), o.nodeSection(), o.snapshotSection(), o.serversSection(),
		o.failoverSection(), windowsSection(), o.conntrackSection(), o.loggingSection(), o.deprecatedSection()}
	for _, m := range modes {
		var s option.Section
		if m.Options != nil {
			s = m.Options()
		}
		o.sections = append(o.sections, s)
	}
	sections = append(sections, o.sections...)
	for _, s := range sections {
		if s.Values != nil {
			o.file.blocks = append(o.file.blocks, s.Values)
		}
	}
	slices.SortStableFunc(sections, func(a, b option.Section) int { return cmp.Compare(a.Order, b.Order) })
	o.table = newTable(sections, modes)
	o.defaults = o.file.copy()
	return o
}

func orDefault[T comparable](at *T, value T) {
	var zero T
	if *at == zero {
		*at = value
	}
}

var versions = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// PrintsVersion reports whether --version requests the version, which comes before all else
// (FL-05), and whether in full ("raw").
func (o *Options) PrintsVersion() (print, raw bool) {
	return o.Version == "true" || o.Version == "raw", o.Version == "raw"
}

// reported returns the version that all interfaces report: that of this program, or the one in
// --version.
func (o *Options) reported() string {
	if strings.HasPrefix(o.Version, "v") {
		return o.Version
	}
	return Compatible
}

// Complete loads the file, applies the rules for flags beside it (FL-03), and validates everything.
// args are the arguments left after the flags (FL-01). The error is [Problems], or that the file
// could not be read or decoded, or both.
func (o *Options) Complete(args []string) (*Config, error) {
	if slices.ContainsFunc(args, func(a string) bool { return a != "" }) {
		o.problem(fmt.Sprintf("%q does not take any arguments, got %q", "kube-proxy", args), "", "")
	}
	switch o.Version {
	case "", "true", "false", "raw":
	default:
		if !versions.MatchString(o.Version) {
			o.problem("--version", o.Version, "want true, false, raw or a version such as v1.36.0")
		}
	}
	if o.ConfigFile != "" {
		if err := o.load(); err != nil && len(o.problems) > 0 {
			return nil, errors.Join(o.problems, err)
		} else if err != nil {
			return nil, err
		}
	} else {
		o.flagsAlone()
	}
	o.ofTheFamily()
	c := o.validate()
	o.reportEffects(c)
	if len(o.problems) > 0 {
		return nil, o.problems
	}
	c.Warnings = o.warnings
	return c, nil
}

// validate converts the values of flags or file to a Config, and records all problems.
func (o *Options) validate() *Config {
	r := o.report()
	c := &Config{
		Version: o.reported(), Manifests: o.Manifests, InitOnly: o.InitOnly, WriteConfigTo: o.WriteConfigTo,
		File:  o.ConfigFile,
		Flags: o.flagLines(), WindowsService: o.file.WindowsRunAsService,
		modes: o.modes, unchecked: map[string]Problems{}, inMode: map[string][]string{}, names: map[string]string{},
	}
	c.Gates = o.featureGates()
	c.Mode = o.mode(c.Gates)
	c.API = o.api()
	c.ClusterCIDRs = o.clusterCIDRs()
	c.DetectLocal = o.detectLocal()
	c.NodePorts = o.nodePorts()
	c.ExternalIPCIDRs = o.externalIPCIDRs(c.Gates)
	c.MaxNamespaceObjects = r.Within("maxNamespaceObjects", *o.proxy.MaxNamespaceObjects, 0, 1<<31-1)
	c.BindAddress = o.bindAddress()
	c.NodeName = o.nodeName()
	c.Servers = o.checkServers(r)
	c.Snapshot = o.checkSnapshot(r)
	c.Failover = o.checkFailover(r)
	for i, s := range o.sections {
		if s.Values != nil {
			c.Blocks = append(c.Blocks, s.Values)
		}
		if s.Check != nil {
			o.check(c, o.modes[i], s)
		}
	}
	c.Conntrack = o.conntrack(r)
	c.OOMScoreAdj = r.Within("oomScoreAdj", *o.file.OOMScoreAdj, -1000, 1000) // CF-38
	r.Positive("configSyncPeriod", o.file.ConfigSyncPeriod)                   // CF-43
	c.MachineID, c.BootID = o.identity("machine-id-file", o.machineIDFiles), o.identity("boot-id-file", o.bootIDFiles)
	c.Logging = o.logging(r, c.Gates["LoggingAlphaOptions"])
	c.Cleanup = o.cleanup()
	c.file, c.table = o.file, o.table
	for f := range o.table.fields() {
		c.names[f.Path] = o.where(f.Path)
	}
	return c
}

// report returns a Report for problems of fields.
func (o *Options) report() *option.Report {
	return &option.Report{Wrong: o.wrong, Insist: o.wrong, Warn: o.warn, Name: o.where, Given: o.given, Runs: true,
		Cleanup: o.Cleanup}
}

// given reports whether a flag or the file sets the field.
func (o *Options) given(path string) bool {
	if o.loaded {
		return slices.Contains(o.inFile, path)
	}
	return o.changed(o.table.flagOf(path))
}

// check checks the section of a mode. In some sections, problems count only if the mode is
// configured or finally runs.
func (o *Options) check(c *Config, m mode.Mode, s option.Section) {
	r := o.report()
	asked := string(o.file.Mode)
	_, known := o.modes.Find(asked)
	r.Runs = asked == m.Name || asked != "" && !known // a misspelt name may be this one
	if s.OnlyInMode && !r.Runs {
		r.Wrong = func(path, value, want string) {
			c.unchecked[m.Name] = append(c.unchecked[m.Name], Problem{o.where(path), value, want})
		}
	}
	s.Check(r)
}

// flagLines are the lines of FL-05.
func (o *Options) flagLines() []string {
	var all []string
	if o.set != nil {
		o.set.VisitAll(func(f *pflag.Flag) {
			all = append(all, fmt.Sprintf("FLAG: --%s=%q", f.Name, f.Value.String()))
		})
	}
	slices.Sort(all)
	return all
}

// Warnings returns the warnings so far; it is useful after Complete failed.
func (o *Options) Warnings() []string { return o.warnings }

// Running takes the configuration of a running proxy in place of a file: the object of
// [Config.Configz], and its folder of manifests. Call it before Complete.
func (o *Options) Running(object []byte, manifests string) {
	o.ConfigFile, o.Manifests = "of the running kube-proxy", manifests
	o.readConfig = func(string) ([]byte, error) { return object, nil }
}

// load replaces the values of flags by those of the file, except flags with Wins.
func (o *Options) load() error {
	data, err := o.readConfig(o.ConfigFile)
	if err != nil {
		return fmt.Errorf("read --config: %w", err)
	}
	doc, err := decode(data, o.file.ours())
	if err != nil {
		return fmt.Errorf("--config %s: %w", o.ConfigFile, err)
	}
	o.warnings = append(o.warnings, doc.warnings...)
	flags := o.file.copy()
	o.file.set(o.defaults)
	o.problems = append(o.problems, o.file.fill(doc.root)...)
	var ignored []string
	for f := range o.table.flags() {
		switch {
		case !o.changed(f.Flag):
		case f.Flag == "hostname-override" && flags.HostnameOverride == "": // has no value
		case f.Flag == "vmodule": // entries of the flag are looked at first
			o.file.Logging.VModule = append(slices.Clone(flags.Logging.VModule), o.file.Logging.VModule...)
		case f.Wins:
			o.file.at(f.Path).Set(flags.at(f.Path))
		case f.ignored():
			ignored = append(ignored, "--"+f.Flag)
			o.reportedFlags = append(o.reportedFlags, f.Flag)
		}
	}
	if len(ignored) > 0 {
		o.warn("ignored because --config is given: %s", strings.Join(ignored, " "))
	}
	o.loaded, o.inFile = true, given(doc.root)
	return nil
}

// flagsAlone applies the rules between flags where no file is given.
func (o *Options) flagsAlone() {
	f := o.file
	if o.WriteConfigTo == "" { // FL-04
		o.port("healthz", o.oldHealthzPort, &f.HealthzBindAddress)
		o.port("metrics", o.oldMetricsPort, &f.MetricsBindAddress)
	} else if o.changed("healthz-port") || o.changed("metrics-port") {
		o.warn("--healthz-port and --metrics-port are ignored because --write-config-to is given")
		o.reportedFlags = append(o.reportedFlags, "healthz-port", "metrics-port")
	}
	o.oldConntrackMax()
	o.inherit()
}

// ofTheFamily moves the servers to IPv6 if the node's address is IPv6 and theirs are not configured
// (CF-14).
func (o *Options) ofTheFamily() {
	f := o.file
	if a, err := option.ParseAddr(f.BindAddress); err == nil && a.Is6() {
		for path, at := range map[string]*string{"healthzBindAddress": &f.HealthzBindAddress,
			"metricsBindAddress": &f.MetricsBindAddress} {
			if !o.given(path) && *at != "" {
				*at = strings.NewReplacer("0.0.0.0", "[::]", "127.0.0.1", "[::1]").Replace(*at)
			}
		}
	}
}

func (o *Options) changed(flag string) bool { return o.set != nil && o.set.Changed(flag) }

func (o *Options) problem(where, value, want string) {
	o.problems = append(o.problems, Problem{where, value, want})
}

// wrong records a problem of the field, under the user's name of it.
func (o *Options) wrong(field, value, want string) { o.problem(o.where(field), value, want) }

// inFile is the prefix of the names of the file's fields.
const inFile = "KubeProxyConfiguration."

// where returns the flag of the field, or the field itself if its value is from the file.
func (o *Options) where(field string) string {
	path, rest, _ := strings.Cut(field, "[")
	for f := range o.table.flags() {
		if f.Path == path && (!o.loaded || f.Wins && o.changed(f.Flag)) {
			return "--" + f.Flag
		}
	}
	if rest != "" {
		path += "[" + rest
	}
	return inFile + path
}

func (o *Options) warn(format string, args ...any) {
	o.warnings = append(o.warnings, fmt.Sprintf(format, args...))
}
