//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/kerneltest"
)

// TestLacking: everything that is missing is named, and what this kernel has is not (EB-20).
func TestLacking(t *testing.T) {
	kerneltest.Later(t)
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		if err := lacking(programNeeds(f)); err != nil {
			t.Errorf("%s: this kernel runs the programs, and lacks %v", f, err)
		}
	}
	no := func() error { return fmt.Errorf("probe: %w", ebpf.ErrNotSupported) }
	err := lacking([]need{{"A", no}, {"B", func() error { return nil }}, {"C", no}, {"D", func() error {
		return errors.New("broken")
	}}})
	if err == nil || err.Error() != "this kernel lacks A: "+plane.ErrUnsupported.Error()+"\nthis kernel lacks C: "+
		plane.ErrUnsupported.Error()+"\nD: broken" ||
		!errors.Is(err, plane.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
	err = lacking(hookNeeds(lb.IPv4, t.TempDir()))
	if err == nil || !strings.Contains(err.Error(), "the cgroup hook connect4") {
		t.Errorf("hooks of a folder that is no cgroup: %v", err)
	}
}

// TestRefusedSays: a refused call of bpf() names the lockdown (EB-20).
func TestRefusedSays(t *testing.T) {
	kerneltest.Later(t)
	for lockdown, want := range map[string]string{
		"none integrity [confidentiality]\n": "lockdown is at level confidentiality", "": "seccomp",
		"[none] integrity confidentiality\n": "seccomp", "none [integrity] confidentiality\n": "seccomp"} {
		if got := refusal(lockdown); !strings.Contains(got, want) {
			t.Errorf("%q: %q", lockdown, got)
		}
	}
}

// TestShortage: an error for lack of memory says how much is missing, by the limit of the tightest
// cgroup of the process (EB-20).
func TestShortage(t *testing.T) {
	kerneltest.Later(t)
	root := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("a/memory.max", "max\n")
	write("a/b/memory.max", "8388608\n")
	write("a/b/memory.current", "8340032\n")
	write("a/b/memory.stat", "anon 7340032\ninactive_file 400000\nactive_file 600000\n")
	write("a/b/c/memory.max", "1073741824\n")
	proc := write("cgroup", "1:name=systemd:/\n0::/a/b/c\n")
	limit, used, file := cgroupMemory(proc, root)
	if limit != 8<<20 || used != 7<<20 || file != filepath.Join(root, "a/b/memory.max") {
		t.Fatalf("%d of %d in %s", used, limit, file)
	}
	if got := missing(3<<20, limit, used, "memory.max"); got != "it takes up to 3072 KiB, and memory.max of 8192 KiB "+
		"leaves 1024 KiB: raise it by 2048 KiB" {
		t.Error(got)
	}
	if err := shortage(fmt.Errorf("make a map: %w", unix.ENOMEM), 1<<50); !errors.Is(err, unix.ENOMEM) ||
		!strings.Contains(err.Error(), "KiB") {
		t.Errorf("error %v", err)
	}
}
