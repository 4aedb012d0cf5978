//go:build linux

package system

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/config/option"
	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlab"
	"kube-proxy/mode"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/ipvs"
	"kube-proxy/plane/nftables"
	"kube-proxy/plane/userspace"
)

// machine is a host with 4 processors and the settings of a kernel that has just started.
const machine = `
proc/self/oom_score_adj 0
proc/sys/kernel/osrelease 6.12.48+deb13-amd64
proc/sys/net/nf_conntrack_max 65536
proc/sys/net/netfilter/nf_conntrack_max 65536
proc/sys/net/netfilter/nf_conntrack_buckets 16384
proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal 0
proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established 432000
proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait 60
proc/sys/net/netfilter/nf_conntrack_udp_timeout 30
proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream 120
proc/sys/net/ipv4/ip_forward 1
proc/sys/net/ipv6/conf/all/forwarding 1
proc/sys/net/ipv4/conf/all/route_localnet 0
proc/sys/net/ipv4/conf/all/arp_ignore 0
proc/sys/net/ipv4/conf/all/arp_announce 0
proc/sys/net/ipv4/vs/conntrack 0
proc/sys/net/ipv4/vs/conn_reuse_mode 1
proc/sys/net/ipv4/vs/expire_nodest_conn 0
proc/sys/net/ipv4/vs/expire_quiescent_template 0
sys/devices/system/cpu/online 0-3
sys/module/nf_conntrack/parameters/hashsize 16384
`

// strictARP configures mode ipvs for CF-28.
func strictARP() option.Blocks {
	o := &ipvs.Options{}
	o.IPVS.StrictARP = true
	return option.Blocks{o}
}

// defaults are upstream's (CF-38 to CF-42).
func defaults() Settings {
	return Settings{Mode: nftables.Mode(), OOMScoreAdj: -999, IPv4: true, IPv6: true,
		Conntrack: Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour},
		Asked: mode.Settings{NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"),
			netip.MustParsePrefix("::/0")}}}
}

// A case changes the machine and the defaults, runs start or another verb, and has the resulting
// differences in files, and the reports.
type hostCase struct {
	name string
	// host has lines as machine has; a file alone is not there. readOnly files and folders cannot
	// be written.
	host     string
	readOnly []string
	settings func(*Settings)
	verb     func(Host, Settings) (Report, error)

	files    string   // changed afterwards
	kept     []string // parts of the sentences of Report.Kept, and so on
	warnings []string
	errs     []string
}

const usual = `
proc/self/oom_score_adj -999
proc/sys/net/netfilter/nf_conntrack_max 131072
proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established 86400
proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait 3600
sys/module/nf_conntrack/parameters/hashsize 32768
`

const ipvsUsual = `
proc/sys/net/ipv4/vs/conntrack 1
proc/sys/net/ipv4/vs/expire_nodest_conn 1
proc/sys/net/ipv4/vs/expire_quiescent_template 1
`

var initOnly = Host.InitOnly

var cases = []hostCase{
	{name: "defaults", files: usual},
	{name: "PR-10: a processor more", host: "sys/devices/system/cpu/online 0-4,7", files: strings.NewReplacer("131072",
		"196608", "32768", "49152").Replace(usual)},
	{name: "PR-10: what an administrator set larger stays",
		host: "proc/sys/net/netfilter/nf_conntrack_max 1000000\nsys/module/nf_conntrack/parameters/hashsize 250000",
		files: usual + "proc/sys/net/netfilter/nf_conntrack_max 1000000\n" +
			"sys/module/nf_conntrack/parameters/hashsize 250000"},
	{name: "PR-10: 256 processors lead to no more than 1,048,576 connections",
		host:  "sys/devices/system/cpu/online 0-255",
		files: strings.NewReplacer("131072", "1048576", "32768", "262144").Replace(usual)},
	{name: "CF-39: a minimum above the limit for processors holds", settings: func(s *Settings) {
		s.Conntrack.Min = 2000000
	},
		files: strings.NewReplacer("131072", "2000000", "32768", "500000").Replace(usual)},
	{name: "CF-39: 0 per core leaves max, and the minimum does not count", settings: func(s *Settings) {
		s.Conntrack.MaxPerCore = 0
	},
		files: usual + "proc/sys/net/netfilter/nf_conntrack_max 65536\n" +
			"sys/module/nf_conntrack/parameters/hashsize 16384"},
	{name: "CF-39: minimum 0", settings: func(s *Settings) { s.Conntrack.MaxPerCore, s.Conntrack.Min = 20000, 0 },
		files: usual + "proc/sys/net/netfilter/nf_conntrack_max 80000\n" +
			"sys/module/nf_conntrack/parameters/hashsize 20000"},
	{name: "CF-39: more than the kernel can count", settings: func(s *Settings) { s.Conntrack.Min = 1<<31 - 1 },
		files: usual + "proc/sys/net/netfilter/nf_conntrack_max 2147483647\n" +
			"sys/module/nf_conntrack/parameters/hashsize 536870911"},
	{name: "CF-40, CF-42: timeouts of 0 leave the kernel's", settings: func(s *Settings) { s.Conntrack = Conntrack{} },
		files: "proc/self/oom_score_adj -999"},
	{name: "CF-41, CF-42: all settings, fractions of a second round up",
		settings: func(s *Settings) {
			s.Conntrack = Conntrack{UDP: time.Millisecond, UDPStream: 90500 * time.Millisecond, TCPBeLiberal: true}
		},
		files: "proc/self/oom_score_adj -999\nproc/sys/net/netfilter/nf_conntrack_udp_timeout 1\n" +
			"proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream 91\n" +
			"proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal 1"},
	{name: "EV-04: /sys is read-only", readOnly: []string{"sys"}, files: usual +
		"sys/module/nf_conntrack/parameters/hashsize 16384",
		warnings: []string{"readOnlySysFS: Cannot enlarge the conntrack hash table from 16384 to 32768 buckets, " +
			"because /sys is read-only"}},
	{name: "EV-04: a read-only /sys is no matter where the table is large enough", readOnly: []string{"sys"},
		host: "sys/module/nf_conntrack/parameters/hashsize 32768", files: usual},
	{name: "PR-10: another network namespace: max suffices, the hash table is left alone",
		host:     "proc/sys/net/nf_conntrack_max\nproc/sys/net/netfilter/nf_conntrack_max 262144",
		readOnly: []string{"proc/sys/net/netfilter/nf_conntrack_max"},
		files: usual + "proc/sys/net/netfilter/nf_conntrack_max 262144\n" +
			"sys/module/nf_conntrack/parameters/hashsize 16384",
		kept: []string{"belongs to the initial network namespace"}},
	{name: "PR-10: max cannot be written, and is too small",
		readOnly: []string{"proc/sys/net/netfilter/nf_conntrack_max"},
		files:    usual + "proc/sys/net/netfilter/nf_conntrack_max 65536",
		errs: []string{"set sysctl net.netfilter.nf_conntrack_max from 65536 to 131072: ", "outside of this container",
			"requested by --conntrack-max-per-core (conntrack.maxPerCore); --conntrack-max-per-core 0 keeps"}},
	{name: "PR-10: the minimum is what asks", readOnly: []string{"proc/sys/net/netfilter/nf_conntrack_max"},
		settings: func(s *Settings) {
			s.Conntrack.MaxPerCore = 1
		},
		files: usual + "proc/sys/net/netfilter/nf_conntrack_max 65536",
		errs:  []string{"from 65536 to 131072: ", "requested by --conntrack-min (conntrack.min)"}},
	{name: "all faults are reported at once", readOnly: []string{"proc"}, settings: func(s *Settings) {
		s.Mode, s.Conntrack.TCPBeLiberal = ipvs.Mode(), true
	},
		files: "sys/module/nf_conntrack/parameters/hashsize 32768",
		kept:  []string{"nf_conntrack_tcp_timeout_established stays 432000"},
		// nf_conntrack_max is too small, and a shorter timeout forgets too early.
		errs: []string{"nf_conntrack_max from 65536", "close_wait from 60 to 3600",
			"--conntrack-tcp-timeout-close-wait", "tcp_be_liberal from 0 to 1",
			"--conntrack-tcp-be-liberal", "vs.conntrack from 0 to 1", "vs.expire_nodest_conn",
			"vs.expire_quiescent_template"},
		warnings: []string{"--oom-score-adj (oomScoreAdj): set oom_score_adj to -999"}},
	{name: "a timeout that cannot be written is as it should be", readOnly: []string{"proc"},
		host: usual, settings: func(s *Settings) { s.OOMScoreAdj = 0 }, files: usual + "proc/self/oom_score_adj -999",
		warnings: []string{"oom_score_adj"}},
	{name: "no nf_conntrack", host: "proc/sys/net/netfilter/nf_conntrack_max", files: usual +
		"proc/sys/net/netfilter/nf_conntrack_max",
		errs: []string{"nf_conntrack_max: no such file"}},
	{name: "no list of processors", host: "sys/devices/system/cpu/online", settings: func(s *Settings) {
		s.Conntrack.MaxPerCore = 1
	}, files: usual + "sys/devices/system/cpu/online",
		warnings: []string{"count the processors"}},
	{name: "CF-38: failure is only reported", host: "proc/self/oom_score_adj", files: usual + "proc/self/oom_score_adj",
		warnings: []string{"oom_score_adj"}},

	{name: "DP-30: ipvs", host: "proc/sys/net/ipv4/ip_forward 0", settings: func(s *Settings) { s.Mode = ipvs.Mode() },
		files: usual + ipvsUsual + "proc/sys/net/ipv4/ip_forward 1"},
	{name: "DP-30: conn_reuse_mode from 4.1", host: "proc/sys/kernel/osrelease 4.1.12-x", settings: func(s *Settings) {
		s.Mode = ipvs.Mode()
	},
		files: usual + ipvsUsual + "proc/sys/kernel/osrelease 4.1.12-x\nproc/sys/net/ipv4/vs/conn_reuse_mode 0"},
	{name: "DP-30: conn_reuse_mode to 5.8", host: "proc/sys/kernel/osrelease 5.8.0", settings: func(s *Settings) {
		s.Mode = ipvs.Mode()
	},
		files: usual + ipvsUsual + "proc/sys/kernel/osrelease 5.8.0\nproc/sys/net/ipv4/vs/conn_reuse_mode 0"},
	{name: "DP-30: not of 5.9", host: "proc/sys/kernel/osrelease 5.9.0", settings: func(s *Settings) {
		s.Mode = ipvs.Mode()
	},
		files: usual + ipvsUsual + "proc/sys/kernel/osrelease 5.9.0"},
	{name: "DP-30: not of 4.0", host: "proc/sys/kernel/osrelease 4.0.9", settings: func(s *Settings) {
		s.Mode = ipvs.Mode()
	},
		files: usual + ipvsUsual + "proc/sys/kernel/osrelease 4.0.9"},
	{name: "DP-30: strictARP", settings: func(s *Settings) { s.Mode, s.Asked.Blocks = ipvs.Mode(), strictARP() },
		files: usual + ipvsUsual +
			"proc/sys/net/ipv4/conf/all/arp_ignore 1\nproc/sys/net/ipv4/conf/all/arp_announce 2"},
	{name: "connections end at the mode userspace: no forwarding needed",
		host:     "proc/sys/net/ipv4/ip_forward 0\nproc/sys/net/ipv4/tcp_tw_reuse 2",
		settings: func(s *Settings) { s.Mode = userspace.Mode() }, files: usual +
			"proc/sys/net/ipv4/ip_forward 0\nproc/sys/net/ipv4/tcp_tw_reuse 1"},
	{name: "DP-30: strictARP is for ipvs", settings: func(s *Settings) { s.Asked.Blocks = strictARP() }, files: usual},
	{name: "forwarding is off", host: "proc/sys/net/ipv4/ip_forward 0\nproc/sys/net/ipv6/conf/all/forwarding",
		settings: func(s *Settings) { s.Mode = iptables.Mode() },
		files:    usual + "proc/sys/net/ipv4/ip_forward 0\nproc/sys/net/ipv6/conf/all/forwarding",
		warnings: []string{"net.ipv4.ip_forward: it is 0: IPv4 connections",
			"net.ipv6.conf.all.forwarding: read sysctl"}},
	{name: "forwarding is off, and not needed", host: "proc/sys/net/ipv4/ip_forward " +
		"0\nproc/sys/net/ipv6/conf/all/forwarding 0",
		settings: func(s *Settings) { s.IPv4, s.IPv6 = false, false },
		files:    usual + "proc/sys/net/ipv4/ip_forward 0\nproc/sys/net/ipv6/conf/all/forwarding 0"},

	{name: "DP-10: route_localnet is the plane's to set", settings: func(s *Settings) {
		s.Mode, s.Asked.LocalhostNodePorts = iptables.Mode(), true
	}, files: usual},
	{name: "PR-09: iptables", verb: initOnly, settings: func(s *Settings) {
		s.Mode, s.Asked.LocalhostNodePorts = iptables.Mode(), true
	},
		files: usual + "proc/self/oom_score_adj 0\nproc/sys/net/ipv4/conf/all/route_localnet 1"},
	{name: "PR-09: iptables without localhost NodePorts", verb: initOnly, settings: func(s *Settings) {
		s.Mode = iptables.Mode()
	},
		files: usual + "proc/self/oom_score_adj 0"},
	{name: "PR-09: iptables with NodePorts elsewhere", verb: initOnly,
		settings: func(s *Settings) {
			s.Mode, s.Asked.LocalhostNodePorts, s.Asked.NodePorts = iptables.Mode(), true,
				[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		},
		files: usual + "proc/self/oom_score_adj 0"},
	{name: "PR-09: nftables", verb: initOnly, settings: func(s *Settings) { s.Asked.LocalhostNodePorts = true },
		files: usual + "proc/self/oom_score_adj 0"},
	{name: "PR-09: ipvs", verb: initOnly, settings: func(s *Settings) {
		s.Mode, s.Asked.LocalhostNodePorts = ipvs.Mode(), true
	},
		files: usual + "proc/self/oom_score_adj 0\n" + ipvsUsual},

	{name: "reload without change", verb: reloadFrom(defaults())},
	{name: "reload: only what changed", verb: reloadFrom(defaults()), settings: func(s *Settings) {
		s.Conntrack.UDP, s.OOMScoreAdj = time.Minute, -500
	},
		files: "proc/sys/net/netfilter/nf_conntrack_udp_timeout 60\nproc/self/oom_score_adj -500"},
	{name: "reload: size", verb: reloadFrom(defaults()), settings: func(s *Settings) { s.Conntrack.Min = 200000 },
		files: "proc/sys/net/netfilter/nf_conntrack_max 200000\nsys/module/nf_conntrack/parameters/hashsize 50000"},
	{name: "reload: what is not asked for any more stays", verb: reloadFrom(liberal()), settings: func(s *Settings) {
		s.Conntrack = Conntrack{}
	}},
	{name: "reload: strictARP",
		verb:     reloadFrom(Settings{Mode: ipvs.Mode(), OOMScoreAdj: -999, Conntrack: defaults().Conntrack}),
		settings: func(s *Settings) { s.Mode, s.Asked.Blocks = ipvs.Mode(), strictARP() },
		files:    ipvsUsual + "proc/sys/net/ipv4/conf/all/arp_ignore 1\nproc/sys/net/ipv4/conf/all/arp_announce 2"},
	{name: "reload: failure", verb: reloadFrom(defaults()), readOnly: []string{"proc"}, settings: func(s *Settings) {
		s.Conntrack.TCPBeLiberal = true
	},
		errs: []string{"tcp_be_liberal from 0 to 1"}},
}

func reloadFrom(old Settings) func(Host, Settings) (Report, error) {
	return func(h Host, now Settings) (Report, error) { return h.Reload(old, now) }
}

func liberal() Settings {
	s := defaults()
	s.Conntrack.TCPBeLiberal = true
	return s
}

func TestHost(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { testHost(t, c) })
	}
}

func testHost(t *testing.T, c hostCase) {
	root := t.TempDir()
	want := parse(machine + c.host)
	for file, value := range want {
		if value == "" {
			continue
		}
		path := filepath.Join(root, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(value+"\n"),
			0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if c.files != "" && !strings.HasPrefix(c.files, "\n") {
		c.files = "\n" + c.files
	}
	for file, value := range parse(c.files) {
		want[file] = value
	}
	s := defaults()
	if c.settings != nil {
		c.settings(&s)
	}
	verb := c.verb
	if verb == nil {
		verb = Host.Start
	}
	h := Host{kernel.Tree{Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys")}}
	withReadOnly(t, root, c.readOnly, func() {
		planned := plan(t, h, s)
		for file, value := range parse(machine + c.host) {
			if b, _ := os.ReadFile(filepath.Join(root, file)); strings.TrimSpace(string(b)) != value {
				t.Errorf("%s is %q after Plan, want %q", file, b, value)
			}
		}
		r, err := verb(h, s)
		made := slices.DeleteFunc(slices.Clone(r.Wrote), func(s string) bool {
			return !strings.HasPrefix(s, "Set sysctl ")
		})
		if again := plan(t, h, s); c.verb == nil && c.errs == nil && (!slices.Equal(planned, made) || again != nil) {
			t.Errorf("planned %q, made %q, and planned again %q", planned, made, again)
		}
		for file, value := range want {
			b, _ := os.ReadFile(filepath.Join(root, file))
			if got := strings.TrimSpace(string(b)); got != value {
				t.Errorf("%s is %q, want %q", file, got, value)
			}
		}
		errs := ""
		if err != nil {
			errs = err.Error()
		}
		check(t, "error", strings.FieldsFunc(errs, func(r rune) bool { return r == '\n' }), c.errs)
		check(t, "kept", r.Kept, c.kept)
		check(t, "warning", warnings(r), c.warnings)
		// A setting is not made twice.
		if again, _ := verb(h, s); len(again.Wrote) > 0 {
			t.Errorf("a second time: %q", again.Wrote)
		}
	})
}

// plan returns what Plan says of sysctls, as Start reports what it does; but for the sysctl that
// the plane sets.
func plan(t *testing.T, h Host, s Settings) (all []string) {
	t.Helper()
	changes, err := h.Plan(s)
	for _, c := range changes {
		if strings.HasSuffix(c.Name, "route_localnet") {
			continue
		}
		all = append(all, fmt.Sprintf("Set sysctl %s from %s to %s", c.Name, c.Have, c.Want))
		if c.Asks == "" {
			t.Errorf("%s: no setting requests it", c.Name)
		}
	}
	if err != nil {
		t.Log(err)
	}
	return all
}

func warnings(r Report) (all []string) {
	for _, w := range r.Warnings {
		all = append(all, strings.TrimPrefix(w.Event+": "+w.Text, ": "))
	}
	return all
}

// check compares sentences with parts of them: each part must be in one, and each sentence must
// have one.
func check(t *testing.T, what string, got, parts []string) {
	t.Helper()
	said := map[int]bool{}
	for _, part := range parts {
		found := false
		for i, g := range got {
			if strings.Contains(g, part) {
				found, said[i] = true, true
			}
		}
		if !found {
			t.Errorf("no %s says %q; there are %q", what, part, got)
		}
	}
	for i, g := range got {
		if !said[i] {
			t.Errorf("unexpected %s: %q", what, g)
		}
	}
}

// parse reads lines with a file and its value; later lines override earlier ones.
func parse(lines string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(lines) {
		if file, value, _ := strings.Cut(strings.TrimSpace(line), " "); file != "" {
			m[file] = value
		}
	}
	return m
}

// withReadOnly runs f where some files and folders below root are mounted read-only, as a
// container's may be.
func withReadOnly(t *testing.T, root string, names []string, f func()) {
	t.Helper()
	if len(names) == 0 {
		f()
		return
	}
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
	isolated(t, unix.CLONE_NEWNS, func() {
		for _, name := range names {
			path := filepath.Join(root, name)
			if err := bindReadOnly(path); err != nil {
				t.Errorf("mount %s read-only: %v", path, err)
				return
			}
		}
		f()
	})
}

func bindReadOnly(path string) error {
	return errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(path, path, "", unix.MS_BIND, ""),
		unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

// isolated runs f in a new network namespace, and in those of more.
func isolated(t *testing.T, more uintptr, f func()) {
	t.Helper()
	if err := netlab.Isolated(more, func() error { f(); return nil }); err != nil {
		t.Error(err)
	}
}
