package logging

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"kube-proxy/config"
)

// LevelWrite is the level of the line about each write to the kernel.
const LevelWrite = slog.LevelInfo - 2

// Log is the process's log. Make it with [New], once: klog's state is global.
type Log struct {
	klog   *flag.FlagSet // klog's own flags
	info   *buffer       // of a split stream; nil if lines go out at once
	logger *slog.Logger
	addDir bool // --add-dir-header: klog obeys it only in lines that do not use slog

	verbosity atomic.Int64
	modules   atomic.Pointer[[]config.VModule]
}

// New sets up klog as cfg describes; out and errOut replace stdout and stderr. It fails if a log
// file cannot be written.
func New(cfg config.Logging, out, errOut io.Writer) (*Log, error) {
	l := &Log{klog: flag.NewFlagSet("klog", flag.ContinueOnError), addDir: cfg.AddDirHeader}
	klog.InitFlags(l.klog)
	l.SetVerbosity(cfg.Verbosity)
	l.SetVModule(cfg.VModule)
	info := errOut
	if cfg.SplitStream {
		info = out
	}
	if cfg.SplitStream && cfg.InfoBufferSize > 0 {
		l.info = &buffer{to: out, size: int(min(cfg.InfoBufferSize, 64<<20)), every: cfg.FlushFrequency}
		info = l.info
	}
	if cfg.Format == "json" {
		h := handler{log: l, info: newJSON(errOut)}
		h.errors = h.info
		if info != errOut {
			h.info = newJSON(info)
		}
		l.logger = slog.New(h)
		klog.SetSlogLogger(l.logger) // lines of client-go
	} else {
		toKlog := logr.ToSlogHandler(klog.NewKlogr())
		l.logger = slog.New(handler{info: toKlog, errors: toKlog, log: l})
		if err := l.text(cfg, info, errOut); err != nil {
			return nil, err
		}
	}
	slog.SetDefault(l.logger)
	return l, nil
}

// Logger returns the logger for all lines of the process.
func (l *Log) Logger() *slog.Logger { return l.logger }

// SetVerbosity changes how much is logged, from the next line on.
func (l *Log) SetVerbosity(v int) {
	l.verbosity.Store(int64(v))
	_ = l.set(map[string]any{"v": v})
}

// SetVModule changes the verbosity of single source files. A pattern with a slash is matched with
// the whole path.
func (l *Log) SetVModule(modules []config.VModule) {
	l.modules.Store(&modules)
	var all []string
	for _, m := range modules {
		all = append(all, fmt.Sprintf("%s=%d", m.Pattern, m.Verbosity))
	}
	_ = l.set(map[string]any{"vmodule": strings.Join(all, ",")})
}

// Flush writes buffered lines.
func (l *Log) Flush() error {
	klog.Flush()
	if l.info == nil {
		return nil
	}
	return l.info.Flush()
}

// text has klog write text to the writers, or to files.
func (l *Log) text(cfg config.Logging, info, errOut io.Writer) error {
	files := !cfg.ToStderr && (cfg.File != "" || cfg.Dir != "")
	flags := map[string]any{
		"logtostderr": false, "skip_headers": true, "stderrthreshold": "FATAL",
		"one_output": cfg.OneOutput || !files, "add_dir_header": cfg.AddDirHeader,
		"skip_log_headers": cfg.SkipLogHeaders,
		"log_dir":          cfg.Dir, "log_file": cfg.File, "log_file_max_size": cfg.FileMaxMB,
	}
	if at := cfg.BacktraceAt; at != "" && at != "0" && at != ":0" {
		flags["log_backtrace_at"] = at
	}
	if err := l.set(flags); err != nil {
		return err
	}
	if !files {
		for severity, w := range map[string]io.Writer{"INFO": info, "WARNING": info, "ERROR": errOut, "FATAL": errOut} {
			klog.SetOutputBySeverity(severity, w)
		}
		return l.set(map[string]any{"skip_headers": cfg.SkipHeaders})
	}
	if err := createFiles(cfg); err != nil {
		return err
	}
	klog.StartFlushDaemon(cfg.FlushFrequency)
	return l.set(map[string]any{
		"skip_headers": cfg.SkipHeaders, "stderrthreshold": cfg.StderrThreshold, "alsologtostderr": cfg.AlsoToStderr,
	})
}

// set sets flags of klog.
func (l *Log) set(flags map[string]any) error {
	for name, value := range flags {
		if err := l.klog.Set(name, fmt.Sprint(value)); err != nil {
			return fmt.Errorf("--%s %q: %w", strings.ReplaceAll(name, "_", "-"), value, err)
		}
	}
	return nil
}

// exitFile is klog's exit code when it cannot write a file.
const exitFile = 2

// createFiles makes klog create all its files now. klog would create the file of a severity with
// its first line, and end the process if that failed, or a later write: a full disk must not end
// the proxy. After such a failure the log continues on stderr.
func createFiles(cfg config.Logging) (err error) {
	if cfg.File == "" { // klog would take the folder of temporary files instead
		f, err := os.CreateTemp(cfg.Dir, "kube-proxy.*.tmp")
		if err != nil {
			return fmt.Errorf("--log-dir: %w", err)
		}
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			return fmt.Errorf("--log-dir: %w", err)
		}
	}
	failed := false
	defer func() {
		if failed {
			_ = recover()
			err = errors.New("klog cannot create its files, see above")
		}
	}()
	klog.OsExit = func(int) { failed = true; panic("klog exits") }
	klog.Error() // an empty line of this severity: klog also creates the files of all lower ones
	klog.OsExit = func(code int) {
		if code != exitFile {
			os.Exit(code)
		}
		go klog.LogToStderr(true) // klog holds its lock
	}
	return nil
}

// handler drops records that are too verbose, and adds the attributes of derived loggers, which
// klog's own handler loses. Only Handle has the source file of a record, so klog's own --vmodule,
// which inspects the call stack, cannot work below it.
type handler struct {
	info, errors slog.Handler
	log          *Log
	prefix       string // of keys: the groups, with dots
	attrs        []slog.Attr
}

// Enabled reports whether a record of the level may show.
func (h handler) Enabled(_ context.Context, level slog.Level) bool {
	most := h.log.verbosity.Load()
	for _, m := range *h.log.modules.Load() {
		most = max(most, int64(m.Verbosity))
	}
	return int64(-level) <= most
}

// Handle writes the record, unless it is too verbose for its source file.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	file := source(r.PC)
	if r.Level < slog.LevelInfo && int64(-r.Level) > h.log.verbosityOf(file) {
		return nil
	}
	all := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	if h.log.addDir {
		all.AddAttrs(slog.String("dir", filepath.Base(filepath.Dir(file))))
	}
	all.AddAttrs(h.attrs...)
	r.Attrs(func(a slog.Attr) bool { a.Key = h.prefix + a.Key; all.AddAttrs(a); return true })
	if r.Level >= slog.LevelError {
		return h.errors.Handle(ctx, all)
	}
	return h.info.Handle(ctx, all)
}

// WithAttrs is part of slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.attrs = slices.Clone(h.attrs)
	for _, a := range attrs {
		a.Key = h.prefix + a.Key
		h.attrs = append(h.attrs, a)
	}
	return h
}

// WithGroup is part of slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	h.prefix += name + "."
	return h
}

// source returns the source file of a record; "" if unknown.
func source(pc uintptr) string {
	if pc == 0 {
		return ""
	}
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return frame.File
}

// verbosityOf returns the verbosity of a source file: that of the first matching pattern, else the
// global one.
func (l *Log) verbosityOf(file string) int64 {
	file = strings.TrimSuffix(file, ".go")
	for _, m := range *l.modules.Load() {
		name := file
		if !strings.Contains(m.Pattern, "/") {
			name = filepath.Base(file)
		}
		if ok, _ := filepath.Match(m.Pattern, name); ok {
			return int64(m.Verbosity)
		}
	}
	return l.verbosity.Load()
}
