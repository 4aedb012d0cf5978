//go:build linux

package system

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/mode"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/ipvs"
)

func sysctlIs(t *testing.T, name, want string) {
	t.Helper()
	if got, err := kernel.Sysctl(name); got != want || err != nil {
		t.Errorf("%s is %q, %v; want %q", name, got, err, want)
	}
}

// In a new network namespace: timeouts are set there and nowhere else; the size of the table
// belongs to the machine, and is not changed (PR-10).
func TestNetworkNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	read := func() (all []string) {
		for _, name := range []string{conntrackMax, conntrackBuckets,
			"net.netfilter.nf_conntrack_tcp_timeout_close_wait", "net.ipv4.conf.all.route_localnet"} {
			v, err := kernel.Sysctl(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, name+" "+v)
		}
		return all
	}
	before := strings.Join(read(), "\n")
	isolated(t, 0, func() {
		s := defaults()
		s.Mode, s.Asked.LocalhostNodePorts = iptables.Mode(), true
		s.Conntrack.MaxPerCore, s.Conntrack.Min = 1, 4096
		r, err := Host{}.InitOnly(s)
		if err != nil {
			t.Error(err)
		}
		check(t, "warning", warnings(r), []string{"net.ipv4.ip_forward: it is 0",
			"net.ipv6.conf.all.forwarding: it is 0"})
		sysctlIs(t, "net.netfilter.nf_conntrack_tcp_timeout_established", "86400")
		sysctlIs(t, "net.netfilter.nf_conntrack_tcp_timeout_close_wait", "3600")
		sysctlIs(t, "net.ipv4.conf.all.route_localnet", "1")
		if r, err := (Host{}).InitOnly(s); err != nil || len(r.Wrote) > 0 {
			t.Errorf("a second time: wrote %q, %v", r.Wrote, err)
		}

		s.Conntrack.Min = 1 << 30
		_, err = Host{}.InitOnly(s)
		if err == nil || !strings.Contains(err.Error(), "requested by --conntrack-min (conntrack.min)") {
			t.Errorf("more than the machine allows: %v", err)
		}
	})
	if after := strings.Join(read(), "\n"); after != before {
		t.Errorf("outside it was\n%s\nand is\n%s", before, after)
	}
}

// A container with a read-only /proc/sys: sufficient values are kept, others are reported.
func TestReadOnlyProcSys(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	isolated(t, unix.CLONE_NEWNS, func() {
		s := defaults()
		s.Conntrack.MaxPerCore, s.Conntrack.Min = 1, 4096 // the size is the machine's
		if _, err := (Host{}).InitOnly(s); err != nil {   // as an init container that is privileged
			t.Error(err)
		}
		if err := bindReadOnly("/proc/sys"); err != nil {
			t.Error(err)
			return
		}
		s.OOMScoreAdj = 0 // of this process too
		if _, err := (Host{}).Start(s); err != nil {
			t.Errorf("all is as it should be: %v", err)
		}
		s.Conntrack.TCPCloseWait *= 2
		_, err := Host{}.Start(s)
		if err == nil || !strings.Contains(err.Error(), "read-only file system") ||
			!strings.Contains(err.Error(), "from 3600 to 7200") {
			t.Errorf("a longer timeout: %v", err)
		}
	})
}

const inUserNamespace = "KUBE_PROXY_SYSTEM_TEST_USERNS"

// Rootless: root of a user namespace that has the network namespace can set timeouts, and no more.
func TestRootless(t *testing.T) {
	if os.Getenv(inUserNamespace) != "" {
		rootless(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestRootless$", "-test.count=1")
	cmd.Env = append(os.Environ(), inUserNamespace+"=1")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids,
		GidMappings: ids}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func rootless(t *testing.T) {
	s := defaults()
	s.IPv4, s.IPv6 = false, false
	s.Conntrack.MaxPerCore, s.Conntrack.Min = 1, 4096
	r, err := Host{}.Start(s)
	if err != nil {
		t.Error(err)
	}
	check(t, "warning", warnings(r), []string{"--oom-score-adj (oomScoreAdj): set oom_score_adj to -999"})
	sysctlIs(t, "net.netfilter.nf_conntrack_tcp_timeout_close_wait", "3600")
}

// DP-30, on a kernel with ip_vs; on another the error names the missing part and its setting.
func TestIPVS(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	isolated(t, 0, func() {
		s := Settings{Mode: ipvs.Mode(), Asked: mode.Settings{Blocks: strictARP()}, IPv4: true}
		r, err := Host{}.InitOnly(s)
		if !kernel.HasIPVS() {
			if !errors.Is(err, kernel.ErrUnsupported) || !strings.Contains(err.Error(), "ip_vs is missing") ||
				!strings.Contains(err.Error(), "--proxy-mode ipvs") {
				t.Errorf("without ip_vs: %v", err)
			}
			return
		}
		if err != nil || len(r.Warnings)+len(r.Kept) > 0 {
			t.Errorf("%+v, %v", r, err)
		}
		for name, want := range map[string]string{
			"net.ipv4.vs.conntrack": "1", "net.ipv4.vs.expire_nodest_conn": "1",
			"net.ipv4.vs.expire_quiescent_template": "1",
			"net.ipv4.ip_forward":                   "1", "net.ipv4.conf.all.arp_ignore": "1",
			"net.ipv4.conf.all.arp_announce": "2",
		} {
			sysctlIs(t, name, want)
		}
		if r, err := (Host{}).InitOnly(s); err != nil || len(r.Wrote) > 0 {
			t.Errorf("a second time: wrote %q, %v", r.Wrote, err)
		}
	})
}
