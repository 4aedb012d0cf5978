package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	logsapi "k8s.io/component-base/logs/api/v1"

	"kube-proxy/config/option"
)

// Logging configures what is logged, how and where.
type Logging struct {
	// Format is "text" or "json", or "" if neither a format nor a file is configured.
	Format string
	// Verbosity is how much is logged, from 0; VModule beats it for some source files.
	Verbosity int
	VModule   []VModule
	// FlushFrequency is the maximum time that lines are buffered.
	FlushFrequency time.Duration
	// SplitStream: errors to stderr, the rest to stdout, there after InfoBufferSize bytes are
	// collected.
	SplitStream    bool
	InfoBufferSize int64

	// The following are klog's: log files are written if ToStderr is false.
	ToStderr, AlsoToStderr bool
	// StderrThreshold is the least severity that goes to stderr beside files: 0 info, 1 warning, 2
	// error, 3 fatal.
	StderrThreshold int
	Dir, File       string
	// FileMaxMB is the size at which File starts again; 0 for no limit.
	FileMaxMB                                            uint32
	OneOutput, SkipHeaders, SkipLogHeaders, AddDirHeader bool
	// BacktraceAt is "file.go:17"; ":0" and "" are none.
	BacktraceAt string
}

// VModule is a verbosity for the source files that match a pattern.
type VModule struct {
	Pattern   string
	Verbosity int
}

const flushFrequency = 5 * time.Second

func (o *Options) loggingSection() option.Section {
	f, k := &o.file.Logging, &o.klog
	f.Format, f.FlushFrequency.Duration.Duration, f.FlushFrequency.SerializeAsString = "text", flushFrequency, true
	o.klog, o.stderrThreshold = Logging{ToStderr: true, FileMaxMB: 1800, BacktraceAt: ":0"}, 2
	return option.Section{Title: "Logging", Order: 90, Fields: []option.Field{
		{Path: "logging.verbosity", Flag: "v", Short: "v", Row: "CF-09", Wins: true,
			Help: "log verbosity `level`, 0 to 10"},
		{Path: "logging.vmodule", Flag: "vmodule", Row: "CF-10", Wins: true,
			Help: "`pattern=N,...`: verbosity for matching source files; text format only"},
		{Path: "logging.format", Flag: "logging-format", Row: "CF-07", Restart: logFile, Wins: true,
			Help: "log `format`: text (klog's) or json"},
		{Path: "logging.flushFrequency", Flag: "log-flush-frequency", Row: "CF-08", Restart: logFile, Wins: true,
			Help: "maximum time that lines are buffered"},
		{Path: "logging.options.text.splitStream", Flag: "log-text-split-stream", Row: "CF-11", Restart: logFile,
			Wins: true,
			Help: "in text format, write errors to stderr and the rest to stdout; needs the gate LoggingAlphaOptions"},
		{Path: "logging.options.text.infoBufferSize", Flag: "log-text-info-buffer-size", Row: "CF-11", Restart: logFile,
			Wins: true,
			Help: "buffer size in `bytes` for a split stdout in text format; needs the gate LoggingAlphaOptions"},
		{Path: "logging.options.json.splitStream", Flag: "log-json-split-stream", Row: "CF-11", Restart: logFile,
			Wins: true,
			Help: "in json format, write errors to stderr and the rest to stdout; needs the gate LoggingAlphaOptions"},
		{Path: "logging.options.json.infoBufferSize", Flag: "log-json-info-buffer-size", Row: "CF-11", Restart: logFile,
			Wins: true,
			Help: "buffer size in `bytes` for a split stdout in json format; needs the gate LoggingAlphaOptions"},

		{At: &k.ToStderr, Flag: "logtostderr", Help: "log to stderr instead of files"},
		{At: &k.AlsoToStderr, Flag: "alsologtostderr", Help: "log to stderr and to files"},
		{At: &o.stderrThreshold, Flag: "stderrthreshold",
			Help: "minimum `severity` that also goes to stderr when logging to files: 0 or INFO, 1 or WARNING, 2 or " +
				"ERROR, 3 or FATAL"},
		{At: &k.Dir, Flag: "log-dir",
			Help: "`folder` for log files, one for each severity; default is the folder for temporary files"},
		{At: &k.File, Flag: "log-file", Help: "single log `file` for all severities, instead of --log-dir"},
		{At: &k.FileMaxMB, Flag: "log-file-max-size",
			Help: "size in `MB` at which --log-file is truncated; 0 means no limit"},
		{At: &k.OneOutput, Flag: "one-output",
			Help: "write a line only to the file of its severity, not to those of lower ones"},
		{At: &k.SkipHeaders, Flag: "skip-headers",
			Help: "omit the header of each line: severity, time, process, source"},
		{At: &k.SkipLogHeaders, Flag: "skip-log-headers", Help: "omit the first lines of log files"},
		{At: &k.AddDirHeader, Flag: "add-dir-header", Help: "add the source file's folder to the header"},
		{At: &k.BacktraceAt, Flag: "log-backtrace-at", Help: "`file:line` in the source that logs a stack trace"},
	}}
}

// klogFlags are the flags that only the text format obeys; any of them selects it.
var klogFlags = []string{"logtostderr", "alsologtostderr", "stderrthreshold", "log-dir", "log-file",
	"log-file-max-size", "one-output", "skip-headers", "skip-log-headers", "add-dir-header", "log-backtrace-at"}

// logging is CF-07 to CF-11. alpha is the gate LoggingAlphaOptions.
func (o *Options) logging(r *option.Report, alpha bool) Logging {
	f, l := &o.file.Logging, o.klog
	orDefault(&f.FlushFrequency.Duration.Duration, flushFrequency) // old proxies took 0 as "not given", as a flag too
	l.StderrThreshold = int(o.stderrThreshold)
	l.Verbosity, l.FlushFrequency = int(f.Verbosity), f.FlushFrequency.Duration.Duration
	var given []string
	for _, name := range klogFlags {
		if o.changed(name) {
			given = append(given, name)
		}
	}
	if len(given) > 0 || o.changed("logging-format") || o.loaded && slices.Contains(o.inFile, "logging.format") ||
		len(f.VModule) > 0 {
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
			o.wrong("logging.vmodule", fmt.Sprint(len(f.VModule))+" patterns", "only the text format supports it")
		}
	default:
		o.wrong("logging.format", f.Format, "want text or json")
	}
	if f.Verbosity > 1<<31-1 {
		o.wrong("logging.verbosity", fmt.Sprint(f.Verbosity), "want at most 2147483647") // CF-09
	}
	r.Positive("logging.flushFrequency", f.FlushFrequency.Duration)
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
	if file, line, ok := strings.Cut(l.BacktraceAt, ":"); l.BacktraceAt != "" && l.BacktraceAt != "0" &&
		(!ok || !digits(line) || file == "" && line != "0") {
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
