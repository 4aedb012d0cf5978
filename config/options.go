package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/internal/nearest"
	"kube-proxy/mode"
)

// Compatible is the newest Kubernetes whose kube-proxy this one stands in for.
const Compatible = "v1.37.0"

// previousMinor is the version before Compatible.
const previousMinor = "1.36"

// Options is what the command line says, before it is put together with the file and validated.
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
	// Renders: rules are printed, and nothing runs; so the mode may be one of another operating system.
	Renders bool
	// Cleanup is --cleanup, InitOnly is --init-only.
	Cleanup, InitOnly bool

	cleanupIPTables, cleanupIPVS bool
	healthzPort, metricsPort     int32
	conntrackMax                 int32
	nftLocalhost                 bool
	bootIDFiles, machineIDFiles  string // with commas between
	ebpf                         ebpfOptions
	klog                         Logging // of it the parts that no file has

	file     settings       // what flags say, or what the file says
	set      *pflag.FlagSet // to know which flags were given
	modes    mode.List      // all that there are
	system   string         // as runtime.GOOS
	problems Problems
	warnings []string
	loaded   bool     // file holds what the file says
	inFile   []string // paths of the fields that the file sets to more than nothing
	told     []string // flags that a warning was given about

	hostname   func() (string, error)
	getenv     func(string) string
	readFile   func(string) ([]byte, error) // for files whose absence is no error
	readConfig func(string) ([]byte, error) // for the file of --config
}

type ebpfOptions struct {
	masqueradeBit                     int32
	masqueradeAll, localhostNodePorts bool
	syncPeriod, minSyncPeriod         metav1.Duration
}

// NewOptions returns Options with the defaults of all flags. Defaults of flags apply before parsing, so
// that 0 can be asked for; those of the file after it (FL-08).
func NewOptions(modes mode.List) *Options {
	o := &Options{
		hostname: os.Hostname, getenv: os.Getenv, readFile: os.ReadFile, readConfig: readAtStart, modes: modes, system: runtime.GOOS,
		bootIDFiles: "/proc/sys/kernel/random/boot_id", machineIDFiles: "/etc/machine-id,/var/lib/dbus/machine-id",
		cleanupIPVS: true, healthzPort: healthzPort, metricsPort: metricsPort,
		ebpf: ebpfOptions{masqueradeBit: masqueradeBit, localhostNodePorts: true},
		klog: Logging{ToStderr: true, StderrThreshold: 2, FileMaxMB: 1800, BacktraceAt: ":0"},
	}
	setDefaults(&o.file, modes)
	return o
}

const (
	healthzPort = 10256
	metricsPort = 10249
	protobuf    = "application/vnd.kubernetes.protobuf"

	flushFrequency = 5 * time.Second // of the log
)

// masqueradeBit is the default of all blocks (G3).
const masqueradeBit = 14

// drainTimeout is enough for requests that are under way. Connections that last longer are opened anew by their clients in any
// case, and as long as the process waits, nobody takes new ones.
const drainTimeout = 5 * time.Second

// setDefaults fills what is missing in c.
func setDefaults(c *settings, modes mode.List) {
	orDefault(&c.ClientConnection.ContentType, protobuf)
	orDefault(&c.ClientConnection.QPS, 5)
	orDefault(&c.ClientConnection.Burst, 10)
	orDefault(&c.Logging.Format, "text")
	if c.Logging.FlushFrequency.Duration.Duration == 0 {
		c.Logging.FlushFrequency.Duration.Duration = flushFrequency
		c.Logging.FlushFrequency.SerializeAsString = true
	}
	orDefault(&c.BindAddress, "0.0.0.0")
	healthz, metrics := "0.0.0.0", "127.0.0.1"
	if a, err := parseAddr(c.BindAddress); err == nil && a.Is6() {
		healthz, metrics = "[::]", "[::1]"
	}
	orDefault(&c.HealthzBindAddress, fmt.Sprintf("%s:%d", healthz, healthzPort))
	orDefault(&c.MetricsBindAddress, fmt.Sprintf("%s:%d", metrics, metricsPort))
	for _, m := range modes {
		if period, least := c.periods(m.Name); period != nil {
			orDefault(&period.Duration, m.SyncPeriod)
			if period.Duration > 0 {
				orDefault(&least.Duration, min(m.MinSyncPeriod, period.Duration))
			}
		}
	}
	orPoint(&c.IPTables.MasqueradeBit, masqueradeBit)
	orPoint(&c.IPTables.LocalhostNodePorts, true)
	orPoint(&c.NFTables.MasqueradeBit, masqueradeBit)
	orPoint(&c.OOMScoreAdj, -999)
	orPoint(&c.Conntrack.MaxPerCore, 32*1024)
	orPoint(&c.Conntrack.Min, 128*1024)
	orPoint(&c.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	orPoint(&c.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
	orDefault(&c.ConfigSyncPeriod.Duration, 15*time.Minute)
	orDefault(&c.UDPIdleTimeout.Duration, 250*time.Millisecond)
	orDefault(&c.Userspace.DrainTimeout.Duration, drainTimeout)
	orPoint(&c.Userspace.NodeEndpoints, true)
	orPoint(&c.UserspaceFallback, true)
	orPoint(&c.MaxNamespaceObjects, DefaultMaxNamespaceObjects)
	orPoint(&c.AdminSocket, DefaultAdminSocket)
}

// periods returns the periods of a block of the file; nil if it has none of that name.
func (c *settings) periods(block string) (sync, least *metav1.Duration) {
	switch block {
	case "iptables":
		return &c.IPTables.SyncPeriod, &c.IPTables.MinSyncPeriod
	case "ipvs":
		return &c.IPVS.SyncPeriod, &c.IPVS.MinSyncPeriod
	case "nftables":
		return &c.NFTables.SyncPeriod, &c.NFTables.MinSyncPeriod
	}
	return nil, nil
}

func orDefault[T comparable](at *T, value T) {
	var zero T
	if *at == zero {
		*at = value
	}
}

func orPoint[T any](at **T, value T) {
	if *at == nil {
		*at = &value
	}
}

var versions = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// PrintsVersion reports whether --version asks to print the version and exit, which comes before all else
// (FL-05), and whether in full ("raw").
func (o *Options) PrintsVersion() (print, raw bool) {
	return o.Version == "true" || o.Version == "raw", o.Version == "raw"
}

// reported is the version that everything which asks is told: ours, or another that --version asks for.
func (o *Options) reported() string {
	if strings.HasPrefix(o.Version, "v") {
		return o.Version
	}
	return Compatible
}

// Complete loads the file, applies the rules for flags beside it (FL-03), and validates all. args are the
// arguments that are left after the flags (FL-01). The error is [Problems], or says that the file could
// not be read or decoded, or both.
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
	c := o.validate()
	o.tellEffects(c)
	if len(o.problems) > 0 {
		return nil, o.problems
	}
	c.Warnings = o.warnings
	return c, nil
}

// Unparsed returns all that is wrong with a command line that the parser gave up with an error, such as for an
// unknown flag (FL-02): that error, and what there is to say of the rest.
func Unparsed(args []string, err error, modes mode.List) error {
	o := NewOptions(modes)
	fs := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	fs.ParseErrorsAllowlist.UnknownFlags = true
	fs.Usage = func() {}
	o.AddFlags(fs)
	problems := FlagError(fs, err)
	if fs.Parse(args) != nil { // what is wrong keeps us from reading on, like a flag without its value
		return append(problems, o.problems...)
	}
	for _, p := range unknown(fs, args) {
		if p != problems[0] {
			problems = append(problems, p)
		}
	}
	if _, more := o.Complete(fs.Args()); more != nil { // problems, or what is wrong with the file, or both
		for line := range strings.SplitSeq(more.Error(), "\n") {
			problems = append(problems, Problem{Where: line})
		}
	}
	return problems.In(o.ConfigFile, "")
}

// FlagError is an error of the parser of flags as problems; of an unknown flag it names the one that may have been meant.
func FlagError(fs *pflag.FlagSet, err error) Problems {
	where := err.Error()
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		where += suggestion(fs, unknown.GetSpecifiedName())
	}
	return Problems{{Where: where}}
}

// unknown returns a problem, in the parser's words, for each flag that fs does not have: the parser gives up at the first.
func unknown(fs *pflag.FlagSet, args []string) Problems {
	var all Problems
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		name, long := strings.CutPrefix(args[i], "--")
		name, _, valued := strings.Cut(name, "=")
		switch f := fs.Lookup(name); {
		case !long || name == "help":
		case f == nil:
			all = append(all, Problem{Where: "unknown flag: --" + name + suggestion(fs, name)})
		case !valued && f.NoOptDefVal == "":
			i++ // what follows is its value
		}
	}
	return all
}

// suggestion names the flag that is like an unknown one; "" if none is.
func suggestion(fs *pflag.FlagSet, name string) string {
	var known []string
	fs.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	return nearest.DidYouMean(name, slices.Values(known), "--")
}

// Warnings returns what is worth a warning so far; it is of use where Complete failed.
func (o *Options) Warnings() []string { return o.warnings }

// load puts the file in the place of what flags said, except those that win.
func (o *Options) load() error {
	data, err := o.readConfig(o.ConfigFile)
	if err != nil {
		return fmt.Errorf("read --config: %w", err)
	}
	doc, err := decode(data)
	if err != nil {
		return fmt.Errorf("--config %s: %w", o.ConfigFile, err)
	}
	o.warnings = append(o.warnings, doc.warnings...)
	o.problems = append(o.problems, doc.problems...)
	file := &doc.settings
	setDefaults(file, o.modes)
	var ignored []string
	for _, f := range flags(o) {
		switch {
		case !o.changed(f.name):
		case f.name == "hostname-override" && o.file.HostnameOverride == "": // says nothing
		case f.name == "vmodule": // entries of the flag are looked at first
			file.Logging.VModule = append(slices.Clone(o.file.Logging.VModule), file.Logging.VModule...)
		case f.wins:
			leafAt(file, f.field).Set(leafAt(&o.file, f.field))
		case f.ignored():
			ignored = append(ignored, "--"+f.name)
			o.told = append(o.told, f.name)
		}
	}
	if len(ignored) > 0 {
		o.warn("ignored because --config is given: %s", strings.Join(ignored, " "))
	}
	o.file, o.loaded, o.inFile = *file, true, doc.given
	return nil
}

// flagsAlone applies the rules between flags where no file is given.
func (o *Options) flagsAlone() {
	f := &o.file
	if o.WriteConfigTo == "" { // FL-04
		o.port("healthz", o.healthzPort, &f.HealthzBindAddress)
		o.port("metrics", o.metricsPort, &f.MetricsBindAddress)
	} else if o.changed("healthz-port") || o.changed("metrics-port") {
		o.warn("--healthz-port and --metrics-port are ignored because --write-config-to is given")
		o.told = append(o.told, "healthz-port", "metrics-port")
	}
	if a, err := parseAddr(f.BindAddress); err == nil && a.Is6() {
		for name, at := range map[string]*string{"healthz": &f.HealthzBindAddress, "metrics": &f.MetricsBindAddress} {
			if !o.changed(name+"-bind-address") && *at != "" {
				*at = strings.NewReplacer("0.0.0.0", "[::]", "127.0.0.1", "[::1]").Replace(*at)
			}
		}
	}
	if f.IPTables.SyncPeriod.Duration > 0 && !o.changed("iptables-min-sync-period") {
		f.IPTables.MinSyncPeriod.Duration = min(f.IPTables.MinSyncPeriod.Duration, f.IPTables.SyncPeriod.Duration)
	}
	o.oldConntrackMax()
	o.inherit()
}

// oldConntrackMax is the flag of the first versions for the number of connections. It overrides those
// that came later, as it did there (CF-39).
func (o *Options) oldConntrackMax() {
	switch n := o.conntrackMax; {
	case n < 0:
		o.problem("--conntrack-max", fmt.Sprint(n), "want 0 or more")
	case n > 0:
		one := int32(1)
		o.file.Conntrack.MaxPerCore, o.file.Conntrack.Min = &one, &n
		o.warn("--conntrack-max is deprecated: use --conntrack-min=%d --conntrack-max-per-core=1", n)
	}
}

// port is what --healthz-port and --metrics-port do: 0 disables the server, else the port is for an address
// without one. The default address counts as one without (FL-04).
func (o *Options) port(name string, port int32, at *string) {
	if !o.changed(name + "-port") {
		return
	}
	old, flag := "--"+name+"-port", "--"+name+"-bind-address"
	_, err := parseAddr(*at)
	switch {
	case port < 0 || port > 65535:
		o.problem(old, fmt.Sprint(port), "want 0 to 65535")
	case port == 0:
		if o.changed(flag[2:]) && *at != "" {
			o.warn("%s 0 disables the server, whatever %s says", old, flag)
			o.told = append(o.told, old[2:])
		}
		*at = ""
	case err == nil: // a bare IP
		a, _ := parseAddr(*at)
		*at = netip.AddrPortFrom(a, uint16(port)).String()
	case !o.changed(flag[2:]):
		host, _, _ := strings.Cut(*at, ":")
		*at = fmt.Sprintf("%s:%d", host, port)
	default:
		o.warn("%s is ignored: %s %s wins", old, flag, *at)
		o.told = append(o.told, old[2:])
	}
}

func (o *Options) changed(flag string) bool { return o.set != nil && o.set.Changed(flag) }

func (o *Options) problem(where, value, want string) {
	o.problems = append(o.problems, Problem{where, value, want})
}

// wrong notes a problem of the field, under the name that the user knows it by.
func (o *Options) wrong(field, value, want string) { o.problem(o.where(field), value, want) }

// inFile is what the name of a field of the file begins with.
const inFile = "KubeProxyConfiguration."

// where returns the flag that stands for the field, or the field itself where the file said it.
func (o *Options) where(field string) string { return o.whereAmong(flags(o), field) }

func (o *Options) whereAmong(all []flag, field string) string {
	path, rest, _ := strings.Cut(field, "[")
	for _, f := range all {
		if f.field == path && (!o.loaded || f.wins && o.changed(f.name)) {
			return "--" + f.name
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
