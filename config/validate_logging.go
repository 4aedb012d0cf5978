package config

import (
	"fmt"
	"os"
	"slices"
	"strings"

	logsapi "k8s.io/component-base/logs/api/v1"
)

// klogFlags are the flags that only the text format obeys; any of them asks for it.
var klogFlags = []string{"logtostderr", "alsologtostderr", "stderrthreshold", "log-dir", "log-file", "log-file-max-size",
	"one-output", "skip-headers", "skip-log-headers", "add-dir-header", "log-backtrace-at"}

// logging is CF-07 to CF-11. alpha is the gate LoggingAlphaOptions.
func (o *Options) logging(alpha bool) Logging {
	f, l := &o.file.Logging, o.klog
	l.Verbosity, l.FlushFrequency = int(f.Verbosity), f.FlushFrequency.Duration.Duration
	var given []string
	for _, name := range klogFlags {
		if o.changed(name) {
			given = append(given, name)
		}
	}
	if len(given) > 0 || o.changed("logging-format") || o.loaded && slices.Contains(o.inFile, "logging.format") || len(f.VModule) > 0 {
		l.Format = f.Format
	}
	switch f.Format {
	case "text":
	case "json":
		for _, name := range given {
			if flag := o.set.Lookup(name); flag.Value.String() != flag.DefValue {
				o.wrong("logging.format", f.Format, "Non-default format doesn't honor flag: "+name)
			}
		}
		if len(f.VModule) > 0 {
			o.wrong("logging.vmodule", fmt.Sprint(len(f.VModule))+" patterns", "only the text format obeys them")
		}
	default:
		o.wrong("logging.format", f.Format, "want text or json")
	}
	if f.Verbosity > 1<<31-1 {
		o.wrong("logging.verbosity", fmt.Sprint(f.Verbosity), "want at most 2147483647") // CF-09
	}
	o.positive("logging.flushFrequency", l.FlushFrequency)
	for i, item := range f.VModule {
		field := fmt.Sprintf("logging.vmodule[%d]", i)
		if item.FilePattern == "" || strings.ContainsAny(item.FilePattern, "=,") {
			o.wrong(field+".filePattern", item.FilePattern, "want a pattern without = and commas")
		}
		if item.Verbosity > 1<<31-1 {
			o.wrong(field+".verbosity", fmt.Sprint(item.Verbosity), "want at most 2147483647")
		}
		l.VModule = append(l.VModule, VModule{item.FilePattern, int(item.Verbosity)})
	}
	for name, part := range map[string]*logsapi.OutputRoutingOptions{
		"text": &f.Options.Text.OutputRoutingOptions, "json": &f.Options.JSON.OutputRoutingOptions,
	} {
		size := part.InfoBufferSize.Value()
		switch field := "logging.options." + name; {
		case size < 0:
			o.wrong(field+".infoBufferSize", fmt.Sprint(size), "want 0 or more")
		case !alpha && size > 0:
			o.wrong(field+".infoBufferSize", fmt.Sprint(size), "Feature LoggingAlphaOptions is disabled")
		}
		if part.SplitStream && !alpha {
			o.wrong("logging.options."+name+".splitStream", "true", "Feature LoggingAlphaOptions is disabled")
		}
		if name == f.Format {
			l.SplitStream, l.InfoBufferSize = part.SplitStream, size
		}
	}
	if l.SplitStream && l.Format == "" {
		l.Format = f.Format
	}
	// klog prints its default as ":0"; older documents print 0.
	if file, line, ok := strings.Cut(l.BacktraceAt, ":"); l.BacktraceAt != "" && l.BacktraceAt != "0" && (!ok || !digits(line) || file == "" && line != "0") {
		o.problem("--log-backtrace-at", l.BacktraceAt, "want file.go:17")
	}
	if !l.ToStderr && l.Dir == "" && l.File == "" {
		l.Dir = os.TempDir()
	}
	if l.ToStderr && (l.Dir != "" || l.File != "") {
		o.warn("--log-dir and --log-file have no effect without --logtostderr=false")
	}
	return l
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
