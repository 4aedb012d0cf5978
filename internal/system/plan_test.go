//go:build linux

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/plane/ipvs"
)

// Plan returns the changes of Start, and makes none.
func TestPlan(t *testing.T) {
	root := t.TempDir()
	h := Host{kernel.Tree{Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys")}}
	write := func(lines string) {
		for file, value := range parse(lines) {
			path := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(machine)
	s := defaults()
	s.Mode, s.Asked.Blocks = ipvs.Mode(), strictARP()
	plan := func() (all []string) {
		changes, err := h.Plan(s)
		if err != nil {
			t.Error(err)
		}
		for _, c := range changes {
			all = append(all, fmt.Sprintf("Set sysctl %s from %s to %s", c.Name, c.Have, c.Want))
			if c.Asks == "" {
				t.Errorf("%s: no setting requests it", c.Name)
			}
		}
		return all
	}
	planned := plan()
	for file, value := range parse(machine) {
		if b, err := os.ReadFile(filepath.Join(root, file)); err != nil || strings.TrimSpace(string(b)) != value {
			t.Errorf("%s is %q after Plan, %v; want %q", file, b, err, value)
		}
	}
	r, err := h.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	made := slices.DeleteFunc(r.Wrote, func(s string) bool { return !strings.HasPrefix(s, "Set sysctl ") })
	if !slices.Equal(planned, made) || len(made) < 8 {
		t.Errorf("planned %q\nmade %q", planned, made)
	}
	if again := plan(); len(again) > 0 {
		t.Errorf("planned again: %q", again)
	}
	if err := os.RemoveAll(filepath.Join(root, "proc/sys/net/netfilter")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Plan(s); err == nil || !strings.Contains(err.Error(), "nf_conntrack_max") {
		t.Errorf("without nf_conntrack: %v", err)
	}
}

// Plan writes nothing in a namespace of the running kernel either.
func TestPlanHere(t *testing.T) {
	isolated(t, unix.CLONE_NEWNS, func() {
		const name = "net.ipv4.ip_forward"
		before, _ := kernel.Sysctl(name)
		s := defaults()
		s.Mode = ipvs.Mode()
		Host{}.Plan(s) // there is no IPVS here, which is an error
		if after, _ := kernel.Sysctl(name); after != before {
			t.Errorf("%s went from %s to %s", name, before, after)
		}
	})
}
