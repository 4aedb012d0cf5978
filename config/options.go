package config

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Options is what the command line says, before it is put together with the file and validated.
type Options struct {
	// ConfigFile is --config.
	ConfigFile string
	// Manifests is --manifests.
	Manifests string
	// Master is --master.
	Master string
	// Version is --version: "", "false", "true", "raw" or a version "vX.Y.Z" to report instead.
	Version string

	file     v1alpha1.KubeProxyConfiguration // what flags say, or what the file says
	set      *pflag.FlagSet                  // to know which flags were given
	problems Problems
	warnings []string
	loaded   bool // file holds what the file says

	hostname func() (string, error)
}

// NewOptions returns Options with the defaults of all flags. Defaults of flags apply before parsing, so
// that 0 can be asked for; those of the file after it (FL-08).
func NewOptions() *Options {
	o := &Options{hostname: os.Hostname}
	setDefaults(&o.file)
	return o
}

// setDefaults fills what is missing in c, as far as this program uses it.
func setDefaults(c *v1alpha1.KubeProxyConfiguration) {
	orDefault(&c.ClientConnection.QPS, 5)
	orDefault(&c.ClientConnection.Burst, 10)
	orDefault(&c.BindAddress, "0.0.0.0")
	// NFTables.MinSyncPeriod stays 0, see docs/adr/0006. So does SyncPeriod: what others change is noticed at
	// once, and upstream's 30 s would compare a large table all the time.
	if c.NFTables.MasqueradeBit == nil {
		bit := int32(14)
		c.NFTables.MasqueradeBit = &bit
	}
}

func orDefault[T comparable](at *T, value T) {
	var zero T
	if *at == zero {
		*at = value
	}
}

var versions = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// PrintsVersion reports whether --version asks to print the version and exit, which comes before all else
// (FL-05), and whether in full ("raw").
func (o *Options) PrintsVersion() (print, raw bool) {
	return o.Version == "true" || o.Version == "raw", o.Version == "raw"
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
	}
	c := o.validate()
	if len(o.problems) > 0 {
		return nil, o.problems
	}
	c.Warnings = o.warnings
	return c, nil
}

// Unparsed returns all that is wrong with a command line that the parser gave up with an error, such as for an
// unknown flag (FL-02): that error, and what there is to say of the rest.
func Unparsed(args []string, err error) error {
	problems := Problems{{Where: err.Error()}}
	o := NewOptions()
	fs := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	fs.ParseErrorsAllowlist.UnknownFlags = true
	fs.Usage = func() {}
	o.AddFlags(fs)
	if fs.Parse(args) != nil { // what is wrong keeps us from reading on, like a flag without its value
		return append(problems, o.problems...)
	}
	_, more := o.Complete(fs.Args())
	if ps := (Problems)(nil); errors.As(more, &ps) {
		problems = append(problems, ps...)
	}
	return problems
}

// Warnings returns what is worth a warning so far; it is of use where Complete failed.
func (o *Options) Warnings() []string { return o.warnings }

// load puts the file in the place of what flags said, except those that win.
func (o *Options) load() error {
	data, err := os.ReadFile(o.ConfigFile)
	if err != nil {
		return fmt.Errorf("read --config: %w", err)
	}
	file, warnings, err := decode(data)
	if err != nil {
		return fmt.Errorf("--config %s: %w", o.ConfigFile, err)
	}
	o.warnings = append(o.warnings, warnings...)
	setDefaults(file)
	fromFlags := o.file
	if fromFlags.HostnameOverride != "" {
		file.HostnameOverride = fromFlags.HostnameOverride
	}
	if o.changed("v") {
		file.Logging.Verbosity = fromFlags.Logging.Verbosity
	}
	var ignored []string
	for _, f := range flags(o) {
		if f.field != "" && !f.wins && o.changed(f.name) {
			ignored = append(ignored, "--"+f.name)
		}
	}
	if len(ignored) > 0 {
		o.warn("ignored because --config is given: %s", strings.Join(ignored, " "))
	}
	o.file, o.loaded = *file, true
	return nil
}

func (o *Options) changed(flag string) bool { return o.set != nil && o.set.Changed(flag) }

func (o *Options) problem(where, value, want string) {
	o.problems = append(o.problems, Problem{where, value, want})
}

// wrong notes a problem of the field, under the name that the user knows it by.
func (o *Options) wrong(field, value, want string) { o.problem(o.where(field), value, want) }

// where returns the flag that stands for the field, or the field itself where the file said it.
func (o *Options) where(field string) string {
	for _, f := range flags(o) {
		if f.field == field && (!o.loaded || f.wins && o.changed(f.name)) {
			return "--" + f.name
		}
	}
	return field
}

func (o *Options) warn(format string, args ...any) {
	o.warnings = append(o.warnings, fmt.Sprintf(format, args...))
}
