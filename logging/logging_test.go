package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// open returns a Log, and where its stdout and stderr go.
func open(t *testing.T, cfg Config) (l *Log, out, errOut *bytes.Buffer) {
	t.Helper()
	out, errOut = new(bytes.Buffer), new(bytes.Buffer)
	cfg.Stdout, cfg.Stderr = out, errOut
	if cfg.Format == "" {
		cfg.Format = "text"
	}
	cfg.Program = "kube-proxy"
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l, out, errOut
}

func say(l *Log) {
	log := l.Logger()
	log.Info("one")
	log.Warn("two")
	log.Error("three")
}

// messages are the messages in a log, by their order.
func messages(text string) string {
	return strings.Join(regexp.MustCompile(`one|two|three`).FindAllString(text, -1), " ")
}

// The header is what log collectors of Kubernetes parse.
func TestText(t *testing.T) {
	l, _, errOut := open(t, Config{ToStderr: true})
	l.Logger().With("family", "IPv4").WithGroup("g").Warn("a \"b\"\nc", "n", 3, "d", time.Second, "err", errors.New("no"),
		slog.Group("h", "x", true))
	header := regexp.MustCompile(`^W\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ logging_test\.go:\d+\] `)
	got := errOut.String()
	if !header.MatchString(got) {
		t.Errorf("header: %q", got)
	}
	want := `"a \"b\"\nc" family="IPv4" g.n=3 g.d="1s" g.err="no" g.h.x=true` + "\n"
	if rest := header.ReplaceAllString(got, ""); rest != want {
		t.Errorf("line:\n%swant:\n%s", rest, want)
	}
	l, _, errOut = open(t, Config{ToStderr: true, SkipHeaders: true})
	say(l)
	if got := errOut.String(); got != "\"one\"\n\"two\"\n\"three\"\n" {
		t.Errorf("--skip-headers: %q", got)
	}
	l, _, errOut = open(t, Config{ToStderr: true, AddDirHeader: true})
	say(l)
	if got := errOut.String(); !strings.Contains(got, " logging/logging_test.go:") {
		t.Errorf("--add-dir-header: %q", got)
	}
}

func TestJSON(t *testing.T) {
	l, _, errOut := open(t, Config{Format: "json", ToStderr: true, Verbosity: 2})
	l.Logger().With("family", "IPv4").Log(t.Context(), LevelWrite, "wrote", "took", time.Millisecond, "ch", make(chan int))
	l.Logger().Error("bad", "error", errors.New("no"))
	lines := strings.Split(strings.TrimSpace(errOut.String()), "\n")
	var first, second map[string]any
	if len(lines) != 2 || json.Unmarshal([]byte(lines[0]), &first) != nil || json.Unmarshal([]byte(lines[1]), &second) != nil {
		t.Fatalf("lines %q", lines)
	}
	if first["msg"] != "wrote" || first["v"] != 2.0 || first["family"] != "IPv4" || first["took"] != "1ms" ||
		second["error"] != "no" || second["level"] != "error" || !strings.HasPrefix(second["caller"].(string), "logging/logging_test.go:") {
		t.Errorf("lines %q", lines)
	}
	if at := time.UnixMilli(int64(first["ts"].(float64))); time.Since(at) > time.Minute || time.Since(at) < -time.Minute {
		t.Errorf("ts is %v", at)
	}
}

// The format "keys" is package slog's own.
func TestKeys(t *testing.T) {
	l, _, errOut := open(t, Config{Format: "keys", ToStderr: true, Verbosity: 2})
	l.Logger().With("a", 1).WithGroup("g").Log(t.Context(), LevelWrite, "wrote it", "b", 2)
	if got := errOut.String(); !strings.HasSuffix(got, " level=INFO msg=\"wrote it\" a=1 g.b=2\n") {
		t.Errorf("line %q", got)
	}
	// Readers of logs know four levels, whatever lies between them.
	l, _, errOut = open(t, Config{Format: "keys", ToStderr: true, Verbosity: 20})
	for level := slog.LevelDebug - 8; level <= slog.LevelError+8; level++ {
		l.Logger().Log(t.Context(), level, "x", "level", "of its own")
	}
	known := regexp.MustCompile(`^time=\S+ level=(DEBUG|INFO|WARN|ERROR) msg=x level="of its own"$`)
	for line := range strings.Lines(errOut.String()) {
		if !known.MatchString(strings.TrimSuffix(line, "\n")) {
			t.Errorf("line %q", line)
		}
	}
}

func TestVerbosity(t *testing.T) {
	for v, want := range map[int]string{0: "I", 1: "I", 2: "IW", 3: "IW", 4: "IWD", 6: "IWD", 9: "IWDx"} {
		l, _, errOut := open(t, Config{ToStderr: true, SkipHeaders: true, Verbosity: 7})
		l.SetVerbosity(v)
		log := l.Logger()
		log.Info("I")
		log.Log(t.Context(), LevelWrite, "W")
		log.Debug("D")
		log.Log(t.Context(), slog.LevelDebug-4, "x")
		if got := strings.NewReplacer("\n", "", `"`, "").Replace(errOut.String()); got != want {
			t.Errorf("-v=%d shows %q, want %q", v, got, want)
		}
	}
	for pattern, shown := range map[string]bool{"logging_test=4": true, "logging*=4": true, "log?ing_test=3": false, "other=9": false,
		"nowhere/*=4": false} {
		name, level, _ := strings.Cut(pattern, "=")
		l, _, errOut := open(t, Config{ToStderr: true, VModule: []Pattern{{name, int(level[0] - '0')}}})
		l.Logger().Debug("one")
		if got := errOut.Len() > 0; got != shown {
			t.Errorf("--vmodule=%s shows a debug line: %v", pattern, got)
		}
	}
	l, _, errOut := open(t, Config{ToStderr: true, Verbosity: 9, VModule: []Pattern{{"logging_test", 0}}})
	l.Logger().Debug("one")
	if errOut.Len() > 0 {
		t.Errorf("--vmodule cannot make a file quieter: %q", errOut)
	}
}

// One file for each severity; lower ones have all, or with --one-output their own.
func TestDir(t *testing.T) {
	for _, tc := range []struct {
		cfg                  Config
		info, warn, bad, std string
	}{
		{Config{StderrThreshold: 2}, "one two three", "two three", "three", "three"},
		{Config{StderrThreshold: 1, OneOutput: true}, "one", "two", "three", "two three"},
		{Config{StderrThreshold: 3, AlsoToStderr: true}, "one two three", "two three", "three", "one two three"},
		{Config{ToStderr: true}, "", "", "", "one two three"},
	} {
		tc.cfg.Dir = t.TempDir()
		l, _, errOut := open(t, tc.cfg)
		say(l)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{tc.info, tc.warn, tc.bad} {
			data, err := os.ReadFile(filepath.Join(tc.cfg.Dir, "kube-proxy."+severityNames[i])) // the link
			if (err == nil) != (want != "") || messages(string(data)) != want {
				t.Errorf("%+v: file %s has %q (%v), want %q", tc.cfg, severityNames[i], messages(string(data)), err, want)
			}
			if err == nil && !strings.HasPrefix(string(data), "Log file created at: ") {
				t.Errorf("file %s begins %.40q", severityNames[i], data)
			}
		}
		if got := messages(errOut.String()); got != tc.std {
			t.Errorf("%+v: stderr has %q, want %q", tc.cfg, got, tc.std)
		}
		real, err := filepath.Glob(filepath.Join(tc.cfg.Dir, fmt.Sprintf("kube-proxy.*.log.INFO.2*.%d", os.Getpid())))
		if err != nil || (len(real) == 1) != (tc.info != "") {
			t.Errorf("files %q, %v", real, err)
		}
	}
}

// --log-file: all severities in one file, appended to at the start, emptied when it is full.
func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "proxy.log")
	if err := os.WriteFile(name, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, _, errOut := open(t, Config{File: name, FileMaxMB: 1, SkipLogHeaders: true, StderrThreshold: 3})
	say(l)
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	data, _ := os.ReadFile(name)
	if !strings.HasPrefix(string(data), "before\nI") || messages(string(data)) != "one two three" || errOut.Len() > 0 {
		t.Errorf("file %q, stderr %q", data, errOut)
	}
	long := strings.Repeat("x", 1000)
	for range 1100 { // more than 1 MiB with the headers
		l.Logger().Info(long)
	}
	l.Logger().Info("last")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	data, _ = os.ReadFile(name)
	if len(data) > 1<<20 || strings.Contains(string(data), "before") || !strings.HasSuffix(string(data), "\"last\"\n") {
		t.Errorf("after rotation %d bytes, begins %.20q", len(data), data)
	}
}

func TestNoLimit(t *testing.T) {
	name := filepath.Join(t.TempDir(), "proxy.log")
	l, _, _ := open(t, Config{File: name, SkipLogHeaders: true, SkipHeaders: true, StderrThreshold: 3})
	long := strings.Repeat("x", 1<<20)
	l.Logger().Info(long)
	l.Logger().Info(long)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(name); err != nil || info.Size() < 2<<20 {
		t.Errorf("file %v, %v", info, err)
	}
}

// What waits in a buffer is written after the flush frequency.
func TestFlushFrequency(t *testing.T) {
	name := filepath.Join(t.TempDir(), "proxy.log")
	synctest.Test(t, func(t *testing.T) {
		l, _, _ := open(t, Config{File: name, FlushFrequency: time.Second, StderrThreshold: 3, SkipLogHeaders: true})
		say(l)
		if data, _ := os.ReadFile(name); len(data) > 0 {
			t.Errorf("written at once: %q", data)
		}
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if data, _ := os.ReadFile(name); messages(string(data)) != "one two three" {
			t.Errorf("after the flush frequency: %q", data)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestSplitStream(t *testing.T) {
	l, out, errOut := open(t, Config{ToStderr: true, SplitStream: true})
	say(l)
	if messages(out.String()) != "one two" || messages(errOut.String()) != "three" {
		t.Errorf("stdout %q, stderr %q", out, errOut)
	}
	l, out, errOut = open(t, Config{ToStderr: true, SplitStream: true, InfoBufferSize: 4096})
	l.Logger().Info("one")
	if out.Len() > 0 {
		t.Errorf("not buffered: %q", out)
	}
	l.Logger().Error("three")
	if messages(out.String()) != "one" || messages(errOut.String()) != "three" {
		t.Errorf("an error does not flush stdout: %q %q", out, errOut)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestBacktraceAt(t *testing.T) {
	l, _, errOut := open(t, Config{ToStderr: true})
	l.cfg.BacktraceAt = "logging_test.go:1"
	say(l)
	if strings.Contains(errOut.String(), "goroutine") {
		t.Errorf("a trace for another line: %q", errOut)
	}
	line := regexp.MustCompile(`logging_test.go:\d+`).FindString(errOut.String())
	l.cfg.BacktraceAt = line
	errOut.Reset()
	say(l)
	if strings.Count(errOut.String(), "[running]") != 1 {
		t.Errorf("no trace at %s: %q", line, errOut)
	}
}

func TestBadConfig(t *testing.T) {
	if _, err := New(Config{Format: "xml"}); err == nil || !strings.Contains(err.Error(), `"xml"`) {
		t.Errorf("format xml: %v", err)
	}
	if _, err := New(Config{Format: "text", Dir: filepath.Join(t.TempDir(), "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}
