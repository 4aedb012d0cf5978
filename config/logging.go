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

// logging checks CF-07 to CF-11 and klog's flags. alpha is the gate LoggingAlphaOptions.
func (o *Options) logging(r *option.Report, alpha bool) Logging {
	f, l := &o.file.Logging, o.klog
	orDefault(&f.FlushFrequency.Duration.Duration, flushFrequency) // old proxies took 0 as "not given", as a flag too
	given := slices.DeleteFunc(slices.Clone(klogFlags), func(name string) bool { return !o.changed(name) })
	o.logFormat(given)
	r.Positive("logging.flushFrequency", f.FlushFrequency.Duration)
	l.FlushFrequency = f.FlushFrequency.Duration.Duration
	l.Verbosity, l.VModule = o.verbosity("logging.verbosity", f.Verbosity), o.vmodule()
	text, json := &f.Options.Text.OutputRoutingOptions, &f.Options.JSON.OutputRoutingOptions
	o.logOutput("text", text, alpha)
	o.logOutput("json", json, alpha)
	if out := map[string]*logsapi.OutputRoutingOptions{"text": text, "json": json}[f.Format]; out != nil {
		l.SplitStream, l.InfoBufferSize = out.SplitStream, out.InfoBufferSize.Value()
	}
	if len(given) > 0 || len(l.VModule) > 0 || l.SplitStream || o.changed("logging-format") ||
		o.loaded && slices.Contains(o.inFile, "logging.format") {
		l.Format = f.Format
	}
	l.StderrThreshold = int(o.stderrThreshold)
	o.logFiles(&l)
	return l
}

// logFormat checks CF-07. given are the flags of klog on the command line.
func (o *Options) logFormat(given []string) {
	f := &o.file.Logging
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
}

// verbosity checks CF-09, also for the patterns of CF-10.
func (o *Options) verbosity(path string, level logsapi.VerbosityLevel) int {
	if level > 1<<31-1 {
		o.wrong(path, fmt.Sprint(level), "want at most 2147483647")
	}
	return int(level)
}

// vmodule checks CF-10.
func (o *Options) vmodule() (all []VModule) {
	for i, item := range o.file.Logging.VModule {
		path := fmt.Sprintf("logging.vmodule[%d]", i)
		if item.FilePattern == "" || strings.ContainsAny(item.FilePattern, "=,") {
			o.wrong(path+".filePattern", item.FilePattern, "want a pattern without = and commas")
		}
		all = append(all, VModule{item.FilePattern, o.verbosity(path+".verbosity", item.Verbosity)})
	}
	return all
}

// logOutput checks CF-11 for a format.
func (o *Options) logOutput(format string, out *logsapi.OutputRoutingOptions, alpha bool) {
	path, size := "logging.options."+format, out.InfoBufferSize.Value()
	switch {
	case size < 0:
		o.wrong(path+".infoBufferSize", fmt.Sprint(size), "want 0 or more")
	case !alpha && size > 0:
		o.wrong(path+".infoBufferSize", fmt.Sprint(size), "Feature LoggingAlphaOptions is disabled")
	}
	if out.SplitStream && !alpha {
		o.wrong(path+".splitStream", "true", "Feature LoggingAlphaOptions is disabled")
	}
}

// logFiles checks klog's flags for files.
func (o *Options) logFiles(l *Logging) {
	// klog prints its default as ":0"; older documents print 0.
	if file, line, ok := strings.Cut(l.BacktraceAt, ":"); l.BacktraceAt != "" && l.BacktraceAt != "0" &&
		(!ok || !digits(line) || file == "" && line != "0") {
		o.problem("--log-backtrace-at", l.BacktraceAt, "want file.go:17")
	}
	switch named := l.Dir != "" || l.File != ""; {
	case l.ToStderr && named:
		o.warn("--log-dir and --log-file have no effect without --logtostderr=false")
	case !l.ToStderr && !named:
		l.Dir = os.TempDir()
	}
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
