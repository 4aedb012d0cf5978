package logging

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"kube-proxy/config"
)

// asProgram and asConfig have the test binary log as a program: klog's state belongs to the
// process.
const asProgram, asConfig = "LOGGING_TEST_PROGRAM", "LOGGING_TEST_CONFIG"

func TestMain(m *testing.M) {
	program := programs[os.Getenv(asProgram)]
	if program == nil {
		os.Exit(m.Run())
	}
	var cfg config.Logging
	err := json.Unmarshal([]byte(os.Getenv(asConfig)), &cfg)
	if err == nil {
		var l *Log
		l, err = New(cfg, os.Stdout, os.Stderr)
		if err == nil {
			program(l)
			err = l.Flush()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

var programs = map[string]func(*Log){
	"say": say,
	"attributes": func(l *Log) {
		l.Logger().With("family", "IPv4").WithGroup("g").Warn("a \"b\"\nc", "n", 3, "d", time.Second, "err",
			errors.New("no"),
			slog.Group("h", "x", true))
	},
	"levels": func(l *Log) {
		log := l.Logger()
		log.Info("I")
		log.Log(context.Background(), LevelWrite, "W")
		log.Debug("D")
		log.Log(context.Background(), slog.LevelDebug-4, "x")
	},
	"client-go": func(*Log) { klog.InfoS("one", "key", 1) },
	"much": func(l *Log) {
		long := strings.Repeat("x", 1000)
		for range 1100 { // more than 1 MiB with the headers
			l.Logger().Info(long)
		}
		l.Logger().Info("last")
	},
	// The first flush fails, then klog gives the file up, and a while later lines go to stderr.
	"until on stderr": func(l *Log) {
		r, w, err := os.Pipe()
		if err != nil {
			panic(err)
		}
		stderr := os.Stderr
		os.Stderr = w
		go func() {
			for {
				l.Logger().Info("one")
				klog.Flush()
			}
		}()
		seen := new(bytes.Buffer)
		for chunk := make([]byte, 4096); messages(seen.String()) == ""; {
			n, err := r.Read(chunk)
			seen.Write(chunk[:n])
			if err != nil {
				panic(err)
			}
		}
		io.WriteString(stderr, seen.String())
		os.Exit(0)
	},
}

func say(l *Log) {
	log := l.Logger()
	log.Info("one")
	log.Warn("two")
	log.Error("three")
}

// run returns what a program prints with this configuration.
func run(t *testing.T, program string, cfg config.Logging) (out, errOut string, err error) {
	t.Helper()
	if cfg.FlushFrequency == 0 {
		cfg.FlushFrequency = time.Hour
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asProgram+"="+program, asConfig+"="+string(text))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

func logged(t *testing.T, program string, cfg config.Logging) (out, errOut string) {
	t.Helper()
	out, errOut, err := run(t, program, cfg)
	if err != nil {
		t.Fatalf("%v: %s", err, errOut)
	}
	return out, errOut
}

// messages are the messages in a log, by their order.
func messages(text string) string {
	return strings.Join(regexp.MustCompile(`one|two|three`).FindAllString(text, -1), " ")
}

// Kubernetes log collectors parse this header.
func TestText(t *testing.T) {
	for _, tc := range []struct {
		program string
		cfg     config.Logging
		want    string
	}{
		{"attributes", config.Logging{}, `^W\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ logging_test\.go:\d+\] ` +
			regexp.QuoteMeta(`"a \"b\"\nc" family="IPv4" g.n=3 g.d="1s" g.err="no" g.h={"x":true}`) + "\n$"},
		{"say", config.Logging{SkipHeaders: true}, `^"one"\n"two"\n"three"\n$`},
		{"say", config.Logging{AddDirHeader: true}, `^I.* logging_test\.go:\d+\] "one" dir="logging"\n`},
		{"client-go", config.Logging{}, `^I.* logging_test\.go:\d+\] "one" key=1\n$`},
	} {
		tc.cfg.ToStderr = true
		if _, got := logged(t, tc.program, tc.cfg); !regexp.MustCompile(tc.want).MatchString(got) {
			t.Errorf("%+v: %q, want %q", tc.cfg, got, tc.want)
		}
	}
}

func TestJSON(t *testing.T) {
	const number = `\{"ts":\d{13}(\.\d+)?,`
	for program, want := range map[string]string{
		"attributes": number + `"level":"warning","caller":"logging/logging_test.go:\d+","msg":"a ` +
			`\\"b\\"\\nc","family":"IPv4",` +
			`"g.n":3,"g.d":"1s","g.err":"no","g.h":\{"x":true\}\}`,
		"levels":    number + `"v":0,.*"I"\}\n` + number + `"v":2,.*"W"\}`,
		"client-go": number + `"v":0,.*"msg":"one","key":1\}`,
	} {
		if _, got := logged(t, program, config.Logging{Format: "json", ToStderr: true,
			Verbosity: 2}); !regexp.MustCompile("^" + want + "\n$").MatchString(got) {
			t.Errorf("%s: %q, want %q", program, got, want)
		}
	}
}

func TestVerbosity(t *testing.T) {
	for _, tc := range []struct {
		verbosity int
		modules   []config.VModule
		want      string
	}{
		{0, nil, "I"}, {1, nil, "I"}, {2, nil, "IW"}, {3, nil, "IW"}, {4, nil, "IWD"}, {8, nil, "IWDx"},
		{0, []config.VModule{{Pattern: "logging_test", Verbosity: 4}}, "IWD"},
		{0, []config.VModule{{Pattern: "logging*", Verbosity: 4}}, "IWD"},
		{0, []config.VModule{{Pattern: "log?ing_test", Verbosity: 3}}, "IW"},
		{0, []config.VModule{{Pattern: "other", Verbosity: 9}}, "I"},
		{0, []config.VModule{{Pattern: "nowhere/*", Verbosity: 4}}, "I"},
		{9, []config.VModule{{Pattern: "logging_test", Verbosity: 0}}, "I"},
	} {
		_, got := logged(t, "levels", config.Logging{ToStderr: true, SkipHeaders: true, Verbosity: tc.verbosity,
			VModule: tc.modules})
		if got := strings.NewReplacer("\n", "", `"`, "").Replace(got); got != tc.want {
			t.Errorf("-v=%d --vmodule=%v shows %q, want %q", tc.verbosity, tc.modules, got, tc.want)
		}
	}
}

// One file for each severity, with the records of higher ones too, or with --one-output without
// them.
func TestDir(t *testing.T) {
	for _, tc := range []struct {
		cfg                  config.Logging
		info, warn, bad, std string
	}{
		{config.Logging{StderrThreshold: 2}, "one two three", "two three", "three", "three"},
		{config.Logging{StderrThreshold: 1, OneOutput: true}, "one", "two", "three", "two three"},
		{config.Logging{StderrThreshold: 3, AlsoToStderr: true}, "one two three", "two three", "three",
			"one two three"},
		{config.Logging{ToStderr: true}, "", "", "", "one two three"},
	} {
		tc.cfg.Dir = t.TempDir()
		_, errOut := logged(t, "say", tc.cfg)
		for name, want := range map[string]string{"INFO": tc.info, "WARNING": tc.warn, "ERROR": tc.bad} {
			data, err := os.ReadFile(filepath.Join(tc.cfg.Dir, "logging.test."+name)) // the link
			if (err == nil) != (want != "") || messages(string(data)) != want || err == nil &&
				!bytes.HasPrefix(data, []byte("Log file created at: ")) {
				t.Errorf("%+v: file %s has %q (%v), want %q", tc.cfg, name, data, err, want)
			}
		}
		if got := messages(errOut); got != tc.std {
			t.Errorf("%+v: stderr has %q, want %q", tc.cfg, got, tc.std)
		}
	}
}

// --log-file: all severities in one file, appended to at the start, emptied when it is full.
func TestFile(t *testing.T) {
	for _, tc := range []struct {
		program string
		max     uint32
		want    string
		size    [2]int // at least, at most
	}{
		{"say", 1, `^before\n+I(?s:.*"one".*"two".*"three")\n$`, [2]int{0, 1000}},
		{"much", 1, `^I(?s:.*)"last"\n$`, [2]int{0, 1 << 20}},
		{"much", 0, `^before\n+I(?s:.*)"last"\n$`, [2]int{1 << 20, 2 << 20}},
	} {
		name := filepath.Join(t.TempDir(), "proxy.log")
		if err := os.WriteFile(name, []byte("before\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, errOut := logged(t, tc.program, config.Logging{File: name, FileMaxMB: tc.max, SkipLogHeaders: true,
			StderrThreshold: 3})
		data, err := os.ReadFile(name)
		if err != nil || !regexp.MustCompile(tc.want).Match(data) || len(data) < tc.size[0] || len(data) > tc.size[1] ||
			errOut != "" {
			t.Errorf("%+v: %d bytes, %.100q…, %v, stderr %q", tc, len(data), data, err, errOut)
		}
	}
}

// Bad input is an error at the start, and klog does not end the process.
func TestBadConfig(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for want, cfg := range map[string]config.Logging{
		"error: --log-dir: ":                        {Dir: none},
		"error: klog cannot create its files":       {File: filepath.Join(none, "log")},
		`error: --log-backtrace-at "nonsense:17": `: {ToStderr: true, BacktraceAt: "nonsense:17"},
	} {
		if _, errOut, err := run(t, "say", cfg); err == nil || !strings.Contains(errOut, want) ||
			strings.Contains(errOut, "goroutine") {
			t.Errorf("%+v: %v, %q, want %q", cfg, err, errOut, want)
		}
	}
}

// When a file can no longer be written, the log continues on stderr, and the process lives.
func TestDiskFull(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no disk that is always full; TestBadConfig does without")
	}
	_, errOut := logged(t, "until on stderr", config.Logging{File: "/dev/full", SkipLogHeaders: true,
		StderrThreshold: 3})
	if !strings.Contains(errOut, "no space left on device") {
		t.Errorf("stderr does not say why: %q", errOut)
	}
}

func TestSplitStream(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		for _, size := range []int64{0, 4096} {
			out, errOut := logged(t, "say", config.Logging{Format: format, ToStderr: true, SplitStream: true,
				InfoBufferSize: size})
			if messages(out) != "one two" || messages(errOut) != "three" {
				t.Errorf("%s, %d: stdout %q, stderr %q", format, size, out, errOut)
			}
		}
	}
}

// limited refuses writes while it has no room.
type limited struct {
	strings.Builder
	full bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.full {
		return 0, errors.New("no room")
	}
	return l.Builder.Write(p)
}

// Lines wait until there are many, or the flush frequency has passed; a full disk costs the lines
// of that time alone.
func TestBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to limited
		b := &buffer{to: &to, size: 8, every: time.Second}
		write := func(text, want string) {
			t.Helper()
			io.WriteString(b, text)
			if got := to.String(); got != want {
				t.Errorf("after %q: %q, want %q", text, got, want)
			}
		}
		write("one", "")
		write("three", "onethree")
		write("two", "onethree")
		time.Sleep(time.Second)
		synctest.Wait()
		to.full = true
		write("lost", "onethreetwo")
		if b.Flush() == nil {
			t.Error("a full disk is no error")
		}
		to.full = false
		write("and after", "onethreetwoand after")
	})
}

func TestBacktraceAt(t *testing.T) {
	_, errOut := logged(t, "say", config.Logging{ToStderr: true, BacktraceAt: "logging_test.go:1"})
	line := regexp.MustCompile(`logging_test.go:\d+`).FindString(errOut)
	if strings.Contains(errOut, "goroutine") {
		t.Errorf("a trace for another line: %q", errOut)
	}
	_, errOut = logged(t, "say", config.Logging{ToStderr: true, BacktraceAt: line})
	if strings.Count(errOut,
		"[running]") != 1 {
		t.Errorf("no trace at %s: %q", line, errOut)
	}
	for _, none := range []string{"", "0", ":0"} { // ":0" is the flag's default, klog refuses it as a value
		logged(t, "say", config.Logging{ToStderr: true, BacktraceAt: none})
	}
}
