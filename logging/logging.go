package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Config says what is logged and where. The zero value logs text to Stderr only if ToStderr is set.
type Config struct {
	// Format is "text", "json" or "keys".
	Format string
	// Verbosity is how much is logged, from 0; VModule beats it for some source files.
	Verbosity int
	VModule   []Pattern
	// FlushFrequency is the longest time that lines wait in a file's buffer; 0 means 5 s.
	FlushFrequency time.Duration

	// ToStderr: no files. Otherwise lines go to files, and those of StderrThreshold (0 information, 1 warnings,
	// 2 errors, 3 fatal) and above to Stderr too; with AlsoToStderr all of them.
	ToStderr, AlsoToStderr bool
	StderrThreshold        int
	// Dir gets one file for each severity; a line goes to those of the lower severities too, unless OneOutput.
	Dir       string
	OneOutput bool
	// File is one file for all, instead of those in Dir. At FileMaxMB it is emptied and begun anew; 0 is no limit.
	File      string
	FileMaxMB uint32
	// SkipHeaders leaves out each line's header, SkipLogHeaders the lines that a file begins with.
	SkipHeaders, SkipLogHeaders bool
	// AddDirHeader names the source file's folder too.
	AddDirHeader bool
	// BacktraceAt is "file.go:17": lines from there are followed by a stack trace. "" and ":0" are none.
	BacktraceAt string

	// SplitStream sends errors to Stderr and the rest to Stdout, there when InfoBufferSize bytes are together.
	SplitStream    bool
	InfoBufferSize int64

	Stdout, Stderr io.Writer
	// Program names the files; "" is the program's own name.
	Program string
}

// Pattern is a verbosity for source files: the pattern is matched with the file's name without ".go", or with its
// whole path if it has a slash.
type Pattern struct {
	Pattern   string
	Verbosity int
}

// Log is where the lines go. Make it with [New].
type Log struct {
	cfg     Config
	verbose atomic.Int64
	modules atomic.Pointer[[]Pattern]

	mu   sync.Mutex
	out  output
	stop chan struct{}
	done sync.WaitGroup
}

// New returns a Log. The error is of a file that cannot be made, or of a setting that means nothing.
func New(cfg Config) (*Log, error) {
	switch cfg.Format {
	case "text", "json", "keys":
	default:
		return nil, fmt.Errorf("log in format %q: want text, json or keys", cfg.Format)
	}
	if cfg.Program == "" {
		cfg.Program = filepath.Base(os.Args[0])
	}
	if cfg.FlushFrequency <= 0 {
		cfg.FlushFrequency = 5 * time.Second
	}
	l := &Log{cfg: cfg, stop: make(chan struct{})}
	l.SetVerbosity(cfg.Verbosity)
	l.SetVModule(cfg.VModule)
	l.out = newOutput(&l.cfg)
	if err := l.out.open(); err != nil {
		return nil, err
	}
	if l.out.buffers() {
		l.done.Go(l.flushNowAndThen)
	}
	return l, nil
}

// Logger returns the logger of all that the process says.
func (l *Log) Logger() *slog.Logger {
	return slog.New(&handler{log: l})
}

// SetVerbosity changes how much is logged, from the next line on.
func (l *Log) SetVerbosity(v int) { l.verbose.Store(int64(v)) }

// SetVModule changes the verbosity of single source files.
func (l *Log) SetVModule(patterns []Pattern) { l.modules.Store(&patterns) }

// Flush writes what waits in buffers.
func (l *Log) Flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.flush()
}

// Close flushes, and closes the files.
func (l *Log) Close() error {
	close(l.stop)
	l.done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.close()
}

func (l *Log) flushNowAndThen() {
	tick := time.NewTicker(l.cfg.FlushFrequency)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			if err := l.Flush(); err != nil {
				fmt.Fprintf(l.cfg.Stderr, "log: %v\n", err)
			}
		}
	}
}

// Show returns the verbosity from which on a level shows: 0 for Info and above, 2 for each step to Info-2, and
// from there to Debug 4. Steps below Debug count one each.
func Show(level slog.Level) int {
	switch below := int(slog.LevelInfo - level); {
	case below <= 0:
		return 0
	case below <= 2:
		return 2
	case below <= 4:
		return 4
	default:
		return below
	}
}

// allows reports whether a line of that level from the source file is wanted.
func (l *Log) allows(level slog.Level, pc uintptr) bool {
	show := int64(Show(level))
	if show == 0 {
		return true
	}
	if patterns := *l.modules.Load(); len(patterns) > 0 && pc != 0 {
		file, _ := source(pc)
		for _, p := range patterns {
			if matches(p.Pattern, file) {
				return show <= int64(p.Verbosity)
			}
		}
	}
	return show <= l.verbose.Load()
}

func matches(pattern, file string) bool {
	name := strings.TrimSuffix(file, ".go")
	if !strings.Contains(pattern, "/") {
		name = filepath.Base(name)
	}
	ok, err := filepath.Match(pattern, name)
	return ok && err == nil
}

func source(pc uintptr) (file string, line int) {
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return frame.File, frame.Line
}

// handler turns records into lines.
type handler struct {
	log    *Log
	prefix string // of the keys: the groups, with dots
	attrs  []slog.Attr
	with   []func(slog.Handler) slog.Handler // attrs and groups again, for the format "keys"
}

// Enabled reports whether a line of the level may be wanted; Handle knows the source file and decides.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	show := int64(Show(level))
	if show <= h.log.verbose.Load() {
		return true
	}
	for _, p := range *h.log.modules.Load() {
		if show <= int64(p.Verbosity) {
			return true
		}
	}
	return false
}

// Handle writes the record.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	l := h.log
	if !l.allows(r.Level, r.PC) {
		return nil
	}
	line := make([]byte, 0, 256)
	var err error
	switch l.cfg.Format {
	case "text":
		line = h.text(line, r)
	case "json":
		line, err = h.json(line, r)
	default:
		line, err = h.keys(ctx, r)
	}
	if err != nil {
		return fmt.Errorf("log %q: %w", r.Message, err)
	}
	if l.traces(r.PC) {
		line = append(line, stack()...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.write(severityOf(r.Level), line)
}

// WithAttrs returns a handler that adds the attributes to each line.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *h
	more.attrs = append([]slog.Attr(nil), h.attrs...)
	for _, a := range attrs {
		a.Key = h.prefix + a.Key
		more.attrs = append(more.attrs, a)
	}
	more.with = append(append([]func(slog.Handler) slog.Handler(nil), h.with...),
		func(in slog.Handler) slog.Handler { return in.WithAttrs(attrs) })
	return &more
}

// WithGroup returns a handler that begins the keys that follow with the name.
func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	more := *h
	more.prefix = h.prefix + name + "."
	more.with = append(append([]func(slog.Handler) slog.Handler(nil), h.with...),
		func(in slog.Handler) slog.Handler { return in.WithGroup(name) })
	return &more
}

// traces reports whether the line's source is that of --log-backtrace-at.
func (l *Log) traces(pc uintptr) bool {
	if l.cfg.BacktraceAt == "" || l.cfg.BacktraceAt == ":0" || pc == 0 {
		return false
	}
	file, line := source(pc)
	return l.cfg.BacktraceAt == filepath.Base(file)+":"+strconv.Itoa(line)
}

func stack() []byte {
	buf := make([]byte, 64<<10)
	return buf[:runtime.Stack(buf, false)]
}

// severityOf is 0 for information, 1 for warnings, 2 for errors, 3 for what ends the process.
func severityOf(level slog.Level) int {
	switch {
	case level > slog.LevelError:
		return 3
	case level == slog.LevelError:
		return 2
	case level >= slog.LevelWarn:
		return 1
	}
	return 0
}
