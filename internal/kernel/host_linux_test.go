package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCountList(t *testing.T) {
	for list, want := range map[string]int{
		"0": 1, "0-1": 2, "0-3,8,10-11": 7, "5-5": 1, "0-65535": 65536,
		"": 0, "x": 0, "3-1": 0, "0-": 0, "0,": 0, "-1": 0, "0-99999999999": 0,
	} {
		if got, err := countList(list); got != want || (err != nil) != (want == 0) {
			t.Errorf("countList(%q) = %d, %v; want %d", list, got, err, want)
		}
	}
}

// PR-10: the machine's processors count, not those that this process may use.
func TestOnlineCPUs(t *testing.T) {
	tree := Tree{Sys: t.TempDir()}
	if _, err := tree.OnlineCPUs(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
	write := func(s string) {
		file := filepath.Join(tree.Sys, "devices/system/cpu/online")
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
			os.WriteFile(file, []byte(s), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("0-63\n")
	if n, err := tree.OnlineCPUs(); n != 64 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	write("nonsense\n")
	if n, err := tree.OnlineCPUs(); err == nil {
		t.Errorf("%d of nonsense", n)
	}
	n, err := Tree{}.OnlineCPUs()
	if err != nil || n < 1 {
		t.Errorf("this machine: %d, %v", n, err)
	}
}

func TestSetOOMScoreAdj(t *testing.T) {
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	now, _ := strconv.Atoi(string(b[:len(b)-1]))
	if wrote, err := (Tree{}).SetOOMScoreAdj(now); wrote || err != nil {
		t.Errorf("what it is already: wrote %t, %v", wrote, err)
	}
	tree := Tree{Proc: t.TempDir()}
	if _, err := tree.SetOOMScoreAdj(-999); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
}

// If the kernel has conntrack or IPVS, loading it is no error; otherwise the error names the
// missing part.
func TestLoad(t *testing.T) {
	inNamespace(t, func() {
		if err := LoadConntrack(); err != nil {
			t.Error(err)
		}
		err := LoadIPVS()
		if HasIPVS() != (err == nil) || err != nil && !errors.Is(err, ErrUnsupported) {
			t.Errorf("has IPVS: %t; load: %v", HasIPVS(), err)
		}
		if err := askForFamily("nlctrl"); err != nil {
			t.Errorf("ask for a family that is there: %v", err)
		}
		if err := askForFamily("no-such-family"); !errors.Is(err, unix.ENOENT) {
			t.Errorf("ask for a family that is not there: %v", err)
		}
	})
}
