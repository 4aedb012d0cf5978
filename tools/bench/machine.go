package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// facts are the conditions of the measurement beside the code.
type facts struct {
	date   string
	kernel string
	cpu    string
	cpus   int
	goVer  string
	commit string
	load   string
}

func (f facts) String() string {
	return fmt.Sprintf("%s, commit %s, %s, kernel %s, %d × %s, load average %s at the start.",
		f.date, f.commit, f.goVer, f.kernel, f.cpus, f.cpu, f.load)
}

func factsNow(ctx context.Context, root string) facts {
	return facts{
		date: time.Now().UTC().Format(time.DateOnly), kernel: firstLine("/proc/sys/kernel/osrelease"),
		cpu: cpuModel(), cpus: runtime.NumCPU(), goVer: runtime.Version(), commit: commit(ctx, root),
		load: loadAverage(),
	}
}

// loadAverage returns the load average of the last minute.
func loadAverage() string {
	first, _, _ := strings.Cut(firstLine("/proc/loadavg"), " ")
	return first
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

// commit returns the short id of the checked-out commit, and whether files were changed since.
func commit(ctx context.Context, root string) string {
	id, err := command(ctx, root, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	s := strings.TrimSpace(string(id))
	if changed, err := command(ctx, root, "git", "status", "--porcelain").Output(); err != nil || len(changed) > 0 {
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
