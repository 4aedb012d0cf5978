package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// facts are the conditions of the measurement beside the code.
type facts struct {
	Date   string `json:"date"`
	Commit string `json:"commit"`
	Go     string `json:"go"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"processors"`
}

func (f facts) String() string {
	return fmt.Sprintf("%s, commit %s, %s, kernel %s, %d × %s.", f.Date, f.Commit, f.Go, f.Kernel, f.CPUs, f.CPU)
}

func factsNow(ctx context.Context, root string) facts {
	return facts{
		Date: time.Now().UTC().Format(time.DateOnly), Kernel: firstLine("/proc/sys/kernel/osrelease"),
		CPU: cpuModel(), CPUs: runtime.NumCPU(), Go: runtime.Version(), Commit: commit(ctx, root),
	}
}

// loadAverage returns the load average of the last minute, 0 if the machine has none.
func loadAverage() float64 {
	first, _, _ := strings.Cut(firstLine("/proc/loadavg"), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return load
}

// firstLine is the first line of a file, "unknown" if it cannot be read.
func firstLine(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(content), "\n")
	return line
}

func cpuModel() string {
	content, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(content)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	return runtime.GOARCH
}

// written are the files that a run writes; they are no change of what is measured.
var written = []string{"README.md", "docs/performance.md", resultsFile}

func exclude(files []string) (args []string) {
	for _, f := range files {
		args = append(args, ":(exclude)"+f)
	}
	return args
}

// commit returns the short id of the checked-out commit, and whether files were changed since,
// beside those that a run writes.
func commit(ctx context.Context, root string) string {
	id, err := command(ctx, root, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	s := strings.TrimSpace(string(id))
	if changed, err := command(ctx, root, "git", append([]string{"status", "--porcelain", "--", "."},
		exclude(written)...)...).Output(); err != nil || len(changed) > 0 {
		s += " with changes"
	}
	return s
}

// moduleRoot is the folder of this module's go.mod.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := command(ctx, "", "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	mod := strings.TrimSpace(string(out))
	if !filepath.IsAbs(mod) || filepath.Base(mod) != "go.mod" {
		return "", fmt.Errorf("there is no go.mod here: run it inside the module")
	}
	return filepath.Dir(mod), nil
}
