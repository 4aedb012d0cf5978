//go:build linux

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	ipvswire "kube-proxy/internal/netlink/ipvs"
	"kube-proxy/test/kerneltest"
)

// needIPVS skips a test if the kernel lacks IPVS; make test-kernels runs it in VMs that have it.
func needIPVS(t testing.TB) {
	t.Helper()
	c, err := ipvswire.Open()
	if errors.Is(err, ipvswire.ErrNoIPVS) {
		t.Skip(err)
	}
	do(t, err)
	c.Close()
}

// newIPVSLab is a lab whose program runs in mode ipvs.
func newIPVSLab(t *testing.T) *nodeLab {
	t.Helper()
	needIPVS(t)
	n := newNodeLab(t)
	n.mode = "ipvs"
	return n
}

// shows returns the output of a program on node1.
func (n *nodeLab) shows(name string, args ...string) string {
	n.t.Helper()
	out, err := n.Command(netlab.Node1, name, args...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// saved are the virtual and real servers of IPv4 as ipvsadm-save prints them, sorted.
func (n *nodeLab) saved() []string {
	n.t.Helper()
	lines := strings.Split(strings.TrimSpace(n.shows("ipvsadm-save", "-n")), "\n")
	slices.Sort(lines)
	return lines
}

// The kernel has the settings of the mode, and their effects are reported (CF-26 to CF-29, DP-30,
// DP-35, HT-23).
func TestIPVSSettings(t *testing.T) {
	kerneltest.Every(t)
	n := newIPVSLab(t)
	one, two := n.echo("pod1", 8080), n.echo("pod4", 8080)
	n.service(labService{name: "web", ip: labIP, nodePort: 30080, endpoints: []netip.AddrPort{one.at(), two.at()}})
	n.shows("ipvsadm", "-A", "-t", "192.0.2.9:99", "-s", "rr") // another's
	p := n.serve("--ipvs-scheduler=sh", "--ipvs-tcp-timeout=1h", "--ipvs-tcpfin-timeout=90s",
		"--ipvs-udp-timeout=2500ms", "--ipvs-strict-arp",
		"--ipvs-exclude-cidrs=192.0.2.0/24", "--ipvs-sync-period=3s", "--ipvs-min-sync-period=100ms",
		"--iptables-masquerade-bit=5")
	if page, err := p.get("/proxyMode"); err != nil || !strings.HasSuffix(page, "\r\n\r\nipvs") {
		t.Errorf("/proxyMode: %q, %v", page, err)
	}
	p.await(regexp.MustCompile(`W.*\] "Mode ipvs is deprecated upstream`))
	if got := n.shows("ipvsadm", "-l", "--timeout"); !strings.Contains(got, "3600 90 3") {
		t.Errorf("timeouts: %s", got)
	}
	saved := n.saved()
	for _, want := range []string{"-A -t 10.96.0.10:80 -s sh -b sh-fallback",
		"-A -u 10.96.0.10:80 -s sh -b sh-fallback",
		"-A -t 172.18.0.2:30080 -s sh -b sh-fallback", "-A -t 192.0.2.9:99 -s rr",
		fmt.Sprintf("-a -t 10.96.0.10:80 -r %s -m -w 1", one.at()), fmt.Sprintf("-a -t 172.18.0.2:30080 -r %s -m -w 1",
			two.at())} {
		if !slices.Contains(saved, want) {
			t.Errorf("no %q in\n%s", want, strings.Join(saved, "\n"))
		}
	}
	if strings.Contains(fmt.Sprint(saved), "198.51.100.0") {
		t.Errorf("the trial of the scheduler is there still:\n%s", strings.Join(saved, "\n"))
	}
	for name, want := range map[string]string{"net.ipv4.vs.conntrack": "1", "net.ipv4.vs.expire_nodest_conn": "1",
		"net.ipv4.vs.expire_quiescent_template": "1",
		"net.ipv4.ip_forward":                   "1", "net.ipv4.conf.all.arp_ignore": "1",
		"net.ipv4.conf.all.arp_announce": "2"} {
		if got := strings.TrimSpace(n.shows("sysctl", "-n", name)); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if got := n.shows("iptables-save", "-t", "nat"); !strings.Contains(got, "0x20/0x20") {
		t.Errorf("the mark's bit is not 5:\n%s", got)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, from := range []string{"pod1", "pod3", netlab.Client, netlab.Node1} {
		for _, to := range []netip.AddrPort{labTarget, endpoint(netlab.Node1, 30080)} {
			if _, err := n.converse(from, to, 5000, timeout, rnd); err != nil {
				t.Errorf("%s → %s: %v", from, to, err)
			}
		}
	}
	// A program of the node is not reached at a service address (PN-43).
	l, err := n.listen(netlab.Node1, 2222)
	do(t, err)
	defer l.Close()
	if c, err := n.dial("pod3", "tcp", endpoint(netlab.Node1, 2222), timeout); err != nil {
		t.Errorf("a program of the node is not reached at the node's address: %v", err)
	} else {
		c.Close()
	}
	for _, from := range []string{"pod3", netlab.Node1} {
		if c, err := n.dial(from, "tcp", netip.MustParseAddrPort(labIP+":2222"), timeout); !errors.Is(err,
			syscall.ECONNREFUSED) {
			t.Errorf("%s → %s:2222: %v, %v; want that it is refused", from, labIP, c, err)
		}
	}
	// trace, which compares with the kernel, says the same; a service address is not one at which
	// NodePorts answer.
	for to, want := range map[string]string{labIP + ":2222": "is rejected", labIP + ":30080": "is rejected",
		labTarget.String(): "It goes to one of 2 backends", "172.18.0.2:30080": "is a NodePort of"} {
		var code int
		var says string
		until(t, func() string { // in emulation iptables-save may take too long for an answer
			code, says = n.query("trace", "10.1.1.13", to)
			if code == 3 {
				return "not decided: " + says
			}
			return ""
		})
		if code != 0 || !strings.Contains(says, want) {
			t.Errorf("trace to %s: exit code %d, want %q\n%s", to, code, want, says)
		}
	}
	// Objects removed by others are restored after the sync period, and nothing reports the removal
	// earlier.
	n.shows("ipvsadm", "-d", "-t", labTarget.String(), "-r", one.at().String())
	until(t, func() string {
		if got := n.saved(); !slices.Equal(got, saved) {
			return "it is not repaired:\n" + strings.Join(got, "\n")
		}
		return ""
	})
	for metric, least := range map[string]float64{`kubeproxy_ipvs_virtual_servers{ip_family="IPv4"}`: 4,
		`kubeproxy_ipvs_service_addresses{ip_family="IPv4"}`:                 1,
		`kubeproxy_ipvs_netlink_messages_total{ip_family="IPv4",to="ipvs"}`:  8,
		`kubeproxy_ipvs_netlink_messages_total{ip_family="IPv4",to="ipset"}`: 2,
		`kubeproxy_audit_mended_objects_total{ip_family="IPv4"}`:             1} {
		if got := p.metric(metric); got < least {
			t.Errorf("%s is %v, want %v or more", metric, got, least)
		}
	}
	p.stop()
	if after := n.saved(); !slices.Equal(after, saved) {
		t.Errorf("the end of the process changed the servers to\n%s", strings.Join(after, "\n"))
	}
	// --cleanup-ipvs=false leaves virtual servers, --cleanup removes ours alone.
	for _, c := range []struct {
		args []string
		left []string
	}{{[]string{"--cleanup", "--cleanup-ipvs=false"}, saved},
		{[]string{"--cleanup"}, []string{"-A -t 192.0.2.9:99 -s rr"}}} {
		clean := n.program(c.args...)
		if code := clean.end(0); code != 0 {
			t.Errorf("%v: exit code %d:\n%s", c.args, code, clean.log())
		}
		if left := n.saved(); !slices.Equal(left, c.left) {
			t.Errorf("%v left\n%s\n%s", c.args, strings.Join(left, "\n"), clean.log())
		}
	}
	n.nothingOfIPVS("192.0.2.9:99")
}

// CF-26: a configured scheduler that the kernel lacks is a fatal error that lists the existing
// ones. Without a configured one, if rr is missing, the mode falls back (S1, S2). The modules of
// both are hidden, which only a machine of the test's own can bear.
func TestIPVSSchedulerLacking(t *testing.T) {
	kerneltest.Every(t)
	n := newIPVSLab(t)
	if os.Getenv("PLANETEST_VM") == "" {
		t.Skip("it hides modules of the kernel: make test-kernels runs it in VMs")
	}
	one := n.echo("pod1", 8080)
	n.service(labService{name: "web", ip: labIP, endpoints: []netip.AddrPort{one.at()}})
	for _, name := range []string{"ovf", "rr"} {
		out, err := exec.Command("modinfo", "-n", "ip_vs_"+name).Output()
		if err != nil {
			t.Fatalf("modinfo ip_vs_%s: %v", name, err)
		}
		file := strings.TrimSpace(string(out))
		do(t, unix.Mount("/dev/null", file, "", unix.MS_BIND, ""))
		t.Cleanup(func() { do(t, unix.Unmount(file, 0)) })
		until(t, func() string { // the kernel removes namespaces of other tests, whose servers use it, when it has time
			says, err := exec.Command("rmmod", "ip_vs_"+name).CombinedOutput()
			if _, absent := os.Stat("/sys/module/ip_vs_" + name); err != nil && absent == nil {
				return string(says)
			}
			return ""
		})
	}
	p := n.start("--ipvs-scheduler=ovf")
	if code := p.end(0); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if want := `--ipvs-scheduler (ipvs.scheduler): not available on this host: this kernel has no scheduler "ovf" ` +
		`for IPVS (the module ip_vs_ovf); it has wrr, lc, wlc,`; !strings.Contains(p.log(),
		strings.ReplaceAll(want, `"`, `\"`)) && !strings.Contains(p.log(), want) {
		t.Errorf("want %s:\n%s", want, p.log())
	}
	p = n.serve()
	p.await(regexp.MustCompile(`mode="ipvs" instead="iptables" err="ipvs: this kernel has no scheduler .*rr.*; it ` +
		`has wrr, .*: choose one with --ipvs-scheduler`))
	if _, err := n.converse("pod3", labTarget, 1000, timeout, rand.New(rand.NewPCG(1, 2))); err != nil {
		t.Error(err)
	}
	p.stop()
}

// nothingOfIPVS checks that the mode left nothing beside virtual servers of others.
func (n *nodeLab) nothingOfIPVS(but string) {
	n.t.Helper()
	for line := range strings.Lines(n.shows("ipvsadm-save", "-n")) {
		if but == "" || !strings.Contains(line, but) {
			n.t.Errorf("left: %s", line)
		}
	}
	for name, args := range map[string][]string{"ipset": {"list", "-n"}, "ip": {"-o", "link"}, "iptables-save": nil,
		"ip6tables-save": nil} {
		for line := range strings.Lines(n.shows(name, args...)) {
			of := name != "ip" && name != "ipset" && slices.ContainsFunc([]string{"KUBE-IPVS", "KUBE-NODE-PORT",
				"KUBE-LOAD-BALANCER", "match-set KUBE", "map-set KUBE"},
				func(s string) bool { return strings.Contains(line, s) })
			if of || name == "ipset" && strings.HasPrefix(line, "KUBE-") || strings.Contains(line, "kube-ipvs0") {
				n.t.Errorf("left of %s: %s", name, line)
			}
		}
	}
}

// A process is killed during its work, and the next one starts: it adopts existing virtual servers
// with their weights, new connections are served all the time, and no open one is lost. A draining
// real server continues to drain across the restart, and gets its weight back when the endpoint
// returns (DP-34, PN-40, G4).
func TestIPVSRestart(t *testing.T) {
	kerneltest.Every(t)
	n := newIPVSLab(t)
	one, two := n.echo("pod1", 8080), n.echo("pod4", 8080)
	web := labService{name: "web", ip: labIP, nodePort: 30080, endpoints: []netip.AddrPort{one.at(), two.at()}}
	only := web
	only.endpoints = web.endpoints[1:]
	n.service(web)
	p := n.serve()
	traffic := n.call([]string{"pod3", netlab.Client}, labTarget, endpoint(netlab.Node1, 30080))
	traffic.progress(50)

	open, err := n.dial("pod5", "tcp", endpoint(netlab.Node1, 30080), timeout)
	for i := 0; err == nil && !n.leads(open.LocalAddr().String(), one.at()); i++ { // until one goes to the first
		if i > 20 {
			t.Fatal("no connection leads to the first endpoint")
		}
		open, err = n.dial("pod5", "tcp", endpoint(netlab.Node1, 30080), timeout)
	}
	do(t, err)
	defer open.Close()
	works := func(when string) {
		t.Helper()
		open.SetDeadline(time.Now().Add(timeout))
		if _, err := open.Write([]byte("still there?")); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		got := make([]byte, 100)
		if _, err := open.Read(got); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	works("at first")

	drains := fmt.Sprintf("-a -t 172.18.0.2:30080 -r %s -m -w 0", one.at())
	is := func(line string) {
		t.Helper()
		until(t, func() string {
			if got := n.saved(); !slices.Contains(got, line) {
				return fmt.Sprintf("no %q in\n%s", line, strings.Join(got, "\n"))
			}
			return ""
		})
	}
	n.service(only)
	is(drains)
	p.end(syscall.SIGKILL)
	traffic.progress(50)
	works("while no process runs")
	p = n.serve()
	is(drains)
	works("after the restart")
	n.service(web)
	is(strings.Replace(drains, "-w 0", "-w 1", 1))
	n.service(only)
	is(drains)
	p.end(syscall.SIGKILL)
	n.service(web) // it is added again while no process runs
	p = n.serve()
	is(strings.Replace(drains, "-w 0", "-w 1", 1))
	works("at the end")
	traffic.progress(50)
	if failed := traffic.wait(); len(failed) > 0 {
		t.Errorf("%d of %d connections failed, the first: %v", len(failed), len(failed)+int(traffic.made.Load()),
			failed[0])
	}
	p.stop()
}

// leads reports whether IPVS sends a client's connection to the backend.
func (n *nodeLab) leads(client string, to netip.AddrPort) bool {
	for line := range strings.Lines(n.shows("ipvsadm", "-lnc")) {
		if strings.Contains(line, client) && strings.Contains(line, to.String()) {
			return true
		}
	}
	return false
}

// PR-08: a node passes through all modes and returns to ipvs each time. New connections are served
// all the time, and nothing of mode ipvs stays beside another one.
func TestIPVSModeChanges(t *testing.T) {
	kerneltest.Later(t)
	n := newIPVSLab(t)
	one, two := n.echo("pod1", 8080), n.echo("pod4", 8080)
	n.service(labService{name: "web", ip: labIP, nodePort: 30080, endpoints: []netip.AddrPort{one.at(), two.at()}})
	p := n.serve()
	traffic := n.call([]string{"pod3", netlab.Client, netlab.Node1}, labTarget, endpoint(netlab.Node1, 30080))
	traffic.progress(50)
	for _, other := range []string{"iptables", "nftables", "userspace"} {
		for _, next := range []string{other, "ipvs"} {
			failedBefore := len(traffic.end())
			p.stop()
			n.mode = next
			p = n.serve()
			traffic.progress(30)
			if next != "ipvs" {
				p.await(regexp.MustCompile(`"Removed" what="device kube-ipvs0`))
				p.await(regexp.MustCompile(`"Removed" what="[0-9]+ ipsets`))
				n.nothingOfIPVS("")
			} else {
				p.await(regexp.MustCompile(map[string]string{"iptables": `"Compared and wrote all frontends" ` +
					`family="IPv6"`, "nftables": `"Removed" what="the nftables table kube-proxy of IPv6`,
					"userspace": `"Removed" what=.*userspace`}[other]))
				for _, program := range []string{"iptables-save", "ip6tables-save"} {
					if got := n.shows(program); strings.Contains(got, "KUBE-SVC-") ||
						strings.Contains(got, "KUBE-SEP-") || strings.Contains(got, "KUBE-PORTALS") {
						t.Errorf("left of %s: %s", other, got)
					}
				}
			}
			traffic.progress(30)
			// Connections end with the process of mode userspace, and none is accepted until the
			// next one listens.
			if failed := traffic.end(); len(failed) > failedBefore && (other != "userspace" || next != "ipvs") {
				t.Errorf("to %s: %d connections failed, the first: %v", next, len(failed)-failedBefore,
					failed[failedBefore].err)
			}
		}
	}
	traffic.wait()
	p.stop()
}

// The programs load the output of render, part by part; then the kernel holds the objects that a
// process would write.
func TestIPVSRender(t *testing.T) {
	kerneltest.Every(t)
	n := newIPVSLab(t)
	text := renderText(t, append([]string{"--proxy-mode=ipvs"}, renderArgs...)...)
	load := func(program string, args ...string) func(string) {
		return func(part string) {
			t.Helper()
			cmd := n.Command(netlab.Node1, program, args...)
			cmd.Stdin = strings.NewReader(part)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s %s: %v\n%s\n%s", program, strings.Join(args, " "), err, out, part)
			}
		}
	}
	programs := map[string]func(string){"ipvsadm --restore": load("ipvsadm", "--restore"),
		"ipset restore": load("ipset", "restore"),
		"ip -batch -":   load("ip", "-batch", "-"), "ip -6 -batch -": load("ip", "-6", "-batch", "-"),
		"iptables-restore --noflush":  load("iptables-restore", "--noflush"),
		"ip6tables-restore --noflush": load("ip6tables-restore", "--noflush")}
	parts := partsOf(text)
	if len(parts) != 8 {
		t.Errorf("%d parts", len(parts))
	}
	for _, p := range parts {
		program, _, _ := strings.Cut(p[0], " (")
		if programs[program] == nil {
			t.Fatalf("what is %q?", p[0])
		}
		programs[program](p[1])
	}
	if got, want := strings.Count(n.shows("ipvsadm-save", "-n"), "\n"), strings.Count(parts[0][1], "\n")+
		strings.Count(parts[4][1], "\n"); got != want {
		t.Errorf("IPVS has %d lines, want %d", got, want)
	}
}

// partsOf divides the output of render at the lines that name programs: the line, and the part.
func partsOf(text string) (parts [][2]string) {
	for _, part := range strings.Split("\n"+text, "\n# ")[1:] {
		name, part, _ := strings.Cut(part, "\n")
		parts = append(parts, [2]string{name, strings.TrimSuffix(part, "\n") + "\n"})
	}
	return parts
}
