package kernel_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"kube-proxy/internal/kernel"
)

// file writes a file of a tree.
func file(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// The hierarchy of cgroup v2 is found wherever it is mounted, and the host's before a container's.
func TestCgroup2(t *testing.T) {
	dir := t.TempDir()
	part, root := filepath.Join(dir, "part"), filepath.Join(dir, "root")
	file(t, filepath.Join(part, "cgroup.type"), "domain")
	file(t, filepath.Join(root, "cgroup.procs"), "")
	line := func(at, of string) string {
		return fmt.Sprintf("36 35 98:0 / %s rw,noatime shared:1 - %s none rw\n", at, of)
	}
	for name, c := range map[string]struct{ mounts, want string }{
		"none":              {line(root, "cgroup") + line("/", "ext4"), ""},
		"one":               {line("/", "ext4") + line(root, "cgroup2"), root},
		"a part":            {line(part, "cgroup2"), part},
		"a part, then all":  {line(part, "cgroup2") + line(root, "cgroup2"), root},
		"all, then a part":  {line(root, "cgroup2") + line(part, "cgroup2"), root},
		"a malformed line":  {"36 35 98:0 - cgroup2 none rw\n" + line(part, "cgroup2"), part},
		"the shortest line": {"36 35 98:0 / " + root + " - cgroup2 none rw\n", root},
	} {
		mounts := filepath.Join(dir, "mountinfo")
		file(t, mounts, c.mounts)
		if got, err := kernel.Cgroup2(mounts); got != c.want || err != nil {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
	if _, err := kernel.Cgroup2(filepath.Join(dir, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a list: %v", err)
	}
}

// A setting is written where it exists and differs; an unknown one is an error, not a new file.
func TestTreeSettings(t *testing.T) {
	dir := t.TempDir()
	tree := kernel.Tree{Proc: filepath.Join(dir, "proc"), Sys: filepath.Join(dir, "sys")}
	if tree.Live() || !(kernel.Tree{}).Live() {
		t.Error("only the zero tree is the running system's")
	}
	parameter, oom := filepath.Join(dir, "sys/module/m/parameters/p"), filepath.Join(dir, "proc/self/oom_score_adj")
	for _, path := range []string{parameter, oom} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	err := tree.SetModuleParameter("m", "p", "7")
	wrote, oomErr := tree.SetOOMScoreAdj(5)
	if !errors.Is(err, fs.ErrNotExist) || !errors.Is(oomErr, fs.ErrNotExist) || wrote {
		t.Errorf("what does not exist is set: %v, %v", err, oomErr)
	}
	file(t, parameter, "3\n")
	file(t, oom, "0\n")
	if err := tree.SetModuleParameter("m", "p", "7"); err != nil {
		t.Error(err)
	}
	if got, err := tree.ModuleParameter("m", "p"); got != "7" || err != nil {
		t.Errorf("the parameter is %q, %v", got, err)
	}
	for score, want := range []bool{false, true} { // 0 is set, 1 is not
		if wrote, err := tree.SetOOMScoreAdj(score); wrote != want || err != nil {
			t.Errorf("score %d: wrote %t, %v", score, wrote, err)
		}
	}
	if got, err := os.ReadFile(oom); string(got) != "1" {
		t.Errorf("the score is %q, %v", got, err)
	}
}
