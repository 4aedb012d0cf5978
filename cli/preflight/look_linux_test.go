package preflight

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/internal/system"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
)

// tree writes files below a folder: lines of a path and its text.
func tree(t *testing.T, lines ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, line := range lines {
		name, text, _ := strings.Cut(line, " ")
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(strings.ReplaceAll(text, "|", "\n")), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// host is a machine that has modules: nf_tables on disk, ip_tables loaded, and nfnetlink built in.
var host = []string{"proc/modules ip_tables 1 0", "proc/sys/kernel/modprobe /sbin/modprobe",
	"proc/sys/kernel/modules_disabled 0", "proc/sys/kernel/osrelease 6.12.1",
	"sys/module/ip_tables/refcnt 0", "lib/6.12.1/modules.builtin kernel/net/netfilter/nfnetlink.ko|",
	"lib/6.12.1/modules.dep kernel/net/netfilter/nf_tables.ko.xz: kernel/a.ko|kernel/net/nft-compat.ko:|"}

func TestModules(t *testing.T) {
	for _, c := range []struct {
		name     string
		tree     []string
		asks     string
		missing  string
		loadable bool
	}{
		{"there, loaded and built in", host, "ip_tables nfnetlink", "", true},
		{"on disk", host, "nf_tables nfnetlink nft_compat", "nf_tables nft_compat", true},
		{"nowhere", host, "nf_tables ip_set", "nf_tables ip_set", false},
		{"no more modules may be loaded", append(slices.Clone(host), "proc/sys/kernel/modules_disabled 1"), "ip_set",
			"", true},
		{"a kernel without modules", []string{"proc/sys/kernel/osrelease 6.12.1"}, "ip_set nf_tables", "", true},
		{"a container without /lib/modules", []string{"proc/modules x", "proc/sys/kernel/modprobe /sbin/modprobe",
			"proc/sys/kernel/osrelease 6.12.1"}, "nf_tables", "nf_tables", false},
	} {
		root := tree(t, c.tree...)
		m := modules{filepath.Join(root, "proc"), filepath.Join(root, "sys"), filepath.Join(root, "lib")}
		missing := m.missing(strings.Fields(c.asks)...)
		if got := strings.Join(missing, " "); got != c.missing || m.loadable(missing) != c.loadable {
			t.Errorf("%s: missing %q, loadable %t; want %q, %t", c.name, got, m.loadable(missing), c.missing,
				c.loadable)
		}
	}
}

// A mode whose test would load a module is not tested, unless requested; modules on disk count as
// present.
func TestModesAreNotAskedForModules(t *testing.T) {
	root := tree(t, host...)
	m := modules{filepath.Join(root, "proc"), filepath.Join(root, "sys"), filepath.Join(root, "lib")}
	var asked atomic.Int32
	of := mode.Mode{Name: "some", Selection: mode.Selection{
		Modules: func(mode.Settings) []string { return []string{"nf_tables"} },
		Able:    func(mode.Settings) error { asked.Add(1); return nil },
	}}
	s := &Setup{Modes: mode.List{of}, Configured: "some", Families: []lb.Family{lb.IPv4}}
	got := tryMode(t.Context(), s, of, m)
	if asked.Load() != 0 || len(got) != 1 || got[0].Unasked == nil || !got[0].Loadable {
		t.Errorf("asked %d times: %+v", asked.Load(), got)
	}
	f := &Facts{OS: "linux", Abilities: got}
	if c, err := choose(s, f); err != nil || c.Mode.Name != "some" {
		t.Errorf("it would not run: %v", err)
	}
	f.Abilities[0].Loadable = false
	if _, err := choose(s, f); !errors.Is(err, errUntried) {
		t.Errorf("modules that are nowhere to be seen: %v", err)
	}
	s.LoadModules = true
	if got := tryMode(t.Context(), s, of, m); asked.Load() != 1 || got[0].Unasked != nil || got[0].Able != nil {
		t.Errorf("asked %d times: %+v", asked.Load(), got)
	}
}

// Every mode that can be configured lists the modules that its test may load.
func TestModesNameModules(t *testing.T) {
	for _, m := range all.Modes() {
		if m.Here() && (m.Modules == nil || len(m.Modules(mode.Settings{Family: lb.IPv4})) == 0 ||
			len(m.Modules(mode.Settings{Family: lb.IPv6})) == 0) {
			t.Errorf("mode %s does not say which modules its Able may load", m.Name)
		}
	}
}

// A hanging probe is abandoned and reported; all other facts are known.
func TestNothingHangs(t *testing.T) {
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	hangs := func(name string) mode.Mode {
		return mode.Mode{Name: name, Selection: mode.Selection{Unasked: "linux",
			Able: func(mode.Settings) error { <-never; return nil }}}
	}
	s := &Setup{Modes: mode.List{hangs("one"), hangs("two")}, Families: []lb.Family{lb.IPv4, lb.IPv6}, NodeName: "n",
		Timeout: 300 * time.Millisecond,
		API:     func(context.Context) *Cluster { <-never; return nil },
		Host:    func(mode.Mode) (system.Settings, error) { return system.Settings{}, nil }}
	found := Judge(s, Look(t.Context(), s))
	for _, want := range []string{"mode one IPv4: cannot check: timed out", "mode two IPv6: cannot check: timed out",
		"mode-configured : cannot check", "api-server : the API server does not answer: timed out"} {
		if !slices.ContainsFunc(found, func(f Finding) bool {
			return strings.HasPrefix(fmt.Sprintf("%s %s: %s", f.ID, f.About, f.Seen), want)
		}) {
			t.Errorf("no finding %q in %+v", want, found)
		}
	}
	if Exit(found) != ExitErrors {
		t.Errorf("exit code %d", Exit(found))
	}
}

// A program with endless output costs the node no memory: its output is cut.
func TestProgramsThatRave(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nft"),
		[]byte("#!/bin/sh\necho nftables v1\ni=0\nwhile [ $i -lt 64 ]; do printf '%065536d' 0; i=$((i+1)); done\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := programs(t.Context(), &Setup{LoadModules: true}, modules{})
	runtime.ReadMemStats(&after)
	i := slices.IndexFunc(got, func(p Program) bool { return p.Name == "nft" })
	if i < 0 || got[i].Version != "nftables v1" || got[i].Err != nil {
		t.Errorf("%+v", got)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
		t.Errorf("4 MiB of it took %d bytes", took)
	}
}

func TestReadSaved(t *testing.T) {
	got, err := readSaved("ip", strings.NewReader("# Generated\n*filter\n:FORWARD DROP [0:0]\n:DOCKER - [0:0]\n"+
		"-A FORWARD -j DOCKER\n-A DOCKER -j RETURN\n-A DOCKER -s 1.2.3.4 -j DROP\nCOMMIT\n*nat\n:DOCKER - [0:0]\n"+
		"COMMIT\n"))
	want := []Chain{{"ip", "filter", "FORWARD", "forward", true, 1}, {"ip", "filter", "DOCKER", "", false, 2},
		{"ip", "nat", "DOCKER", "", false, 0}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Without /proc/sys all sysctls are unknown; that differs from a kernel without them.
func TestSysctlsNotThere(t *testing.T) {
	if all, err := readSysctls(func(string) (string, error) { return "", fs.ErrNotExist }); err == nil ||
		!strings.Contains(err.Error(), "/proc/sys") {
		t.Errorf("%v %v", all, err)
	}
	all, err := readSysctls(func(name string) (string, error) {
		if name == ipForward {
			return "1", nil
		}
		return "", fs.ErrNotExist
	})
	if err != nil || all[ipForward] != "1" || all[conntrackMax] != "" {
		t.Errorf("%v %v", all, err)
	}
}

// A file of an earlier folder hides one of the same name in a later folder, and later files
// override earlier ones.
func TestSysctlFiles(t *testing.T) {
	root := tree(t, "etc/sysctl.d/10-a.conf net.ipv4.ip_forward = 1|# no|;no|-net/ipv4/conf/eth0.5/rp_filter=1",
		"usr/lib/sysctl.d/10-a.conf net.ipv4.ip_forward=7",
		"usr/lib/sysctl.d/50-b.conf net.ipv4.ip_forward=0|nonsense|", "etc/sysctl.d/readme no=1",
		"etc/sysctl.conf vm.swappiness=1")
	got, err := sysctlFiles(root)
	want := []Assignment{{"net.ipv4.ip_forward", "0", filepath.Join(root, "usr/lib/sysctl.d/50-b.conf:1")},
		{"net.ipv4.conf.eth0/5.rp_filter", "1", filepath.Join(root, "etc/sysctl.d/10-a.conf:4")},
		{"vm.swappiness", "1", filepath.Join(root, "etc/sysctl.conf:1")}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestParseSocket(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the lines are of a little-endian machine")
	}
	for line, want := range map[string]string{
		"   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 " +
			"00:00000000 00000000     0        0 12345 1": "127.0.0.1:10249 12345",
		"   1: 00000000000000000000000001000000:7530 00000000000000000000000000000000:0000 0A 0:0 00:0 00000000 0 0 " +
			"77 1": "[::1]:30000 77",
		// established
		"   2: 0100007F:2809 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 12345 1": "",
		"  sl  local_address rem_address   st tx_queue rx_queue tr " +
			"tm->when retrnsmt   uid  timeout inode": "",
		"   0: 0100007G:2809 00000000:0000 0A 00000000:00000000 " +
			"00:00000000 00000000     0        0 12345 1": "",
		"   0: 01007F:2809 00000000:0000 0A 00000000:00000000 " +
			"00:00000000 00000000     0        0 12345 1": "",
	} {
		at, inode, ok := parseSocket(line, false)
		if got := strings.TrimSpace(fmt.Sprint(at, " ", inode)); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q, %t", line, got, ok)
		}
	}
	if _, _, ok := parseSocket("   0: 00000000:2809 00000000:0000 07 0:0 00:0 0 0 0 12345 1", true); !ok {
		t.Error("a bound socket of UDP is left out")
	}
}

// Any text of the kernel, of iptables-save or of a file of sysctl.d can be parsed.
func FuzzParsers(f *testing.F) {
	f.Add("*filter\n:FORWARD DROP [0:0]\n-A FORWARD -j DROP\n")
	f.Add("net/ipv4/conf/eth0.5/rp_filter=1\n- =\n/=")
	f.Add("   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1")
	f.Add("30000-32767,80,-")
	f.Fuzz(func(t *testing.T, text string) {
		chains, err := readSaved("ip", strings.NewReader(text))
		if err == nil && len(chains) > strings.Count(text, ":") {
			t.Errorf("%d chains in %q", len(chains), text)
		}
		if all := parseSysctls("f", text); len(all) > strings.Count(text, "=") {
			t.Errorf("%d assignments in %q", len(all), text)
		}
		if at, _, ok := parseSocket(text, true); ok && !at.IsValid() {
			t.Errorf("%q is no address", text)
		}
		reserved(text, 30000, 32767)
		if c := parseChain("ip", []byte(text)); c.Family != "ip" {
			t.Errorf("%+v", c)
		}
	})
}
