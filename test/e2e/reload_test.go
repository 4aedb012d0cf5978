package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/testbed"
)

// clusterCIDR is the configuration of the pods' networks, unless a test sets another.
var clusterCIDR = "clusterCIDR: " + netlab.Cluster4.String() + "," + netlab.Cluster6.String() + "\n"

// configuration is a file for a proxy in the mode of the bed.
func configuration(more string) string {
	return fmt.Sprintf("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: %s\n"+
		"hostnameOverride: %s\n"+
		"clientConnection: {kubeconfig: %s}\n%s", bed.Mode.Name, netlab.Node1, bed.Kubeconfig(), more)
}

// quick is a block of the running mode with a short interval between writes, and more settings.
func quick(more ...string) string {
	return fmt.Sprintf("%s: {%s}\n", bed.Mode.Name, strings.Join(append([]string{"minSyncPeriod: 10ms"}, more...),
		", "))
}

const verbose = "logging: {verbosity: 2}\n"

// configured is a proxy with a configuration file.
type configured struct {
	*testbed.Proxy
	file string
}

// startConfigured starts a proxy with a configuration file in a new folder.
func startConfigured(t *testing.T, more string) *configured {
	t.Helper()
	c := &configured{file: filepath.Join(t.TempDir(), "config.yaml")}
	c.write(t, more)
	c.start(t)
	return c
}

func (c *configured) start(t *testing.T) {
	t.Helper()
	must(t, bed.Prepare(t.Context()))
	p, err := bed.StartProxyExactly("--config", c.file)
	must(t, err)
	t.Cleanup(func() { endProxy(t, p) })
	c.Proxy = p
}

func (c *configured) write(t *testing.T, more string) {
	t.Helper()
	must(t, os.WriteFile(c.file, []byte(configuration(more)), 0o600))
}

// change writes the file and waits until the proxy reports the fields as in force.
func (c *configured) change(t *testing.T, more string, fields ...string) {
	t.Helper()
	n := strings.Count(c.Log(), inForce)
	c.write(t, more)
	c.awaitReload(t, n, fields...)
}

const inForce = `"Applied the changed configuration"`

// awaitReload waits until more than n reloads have been logged; the last must name the fields.
func (c *configured) awaitReload(t *testing.T, n int, fields ...string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		log := c.Log()
		if strings.Count(log, inForce) > n {
			line, _, _ := strings.Cut(log[strings.LastIndex(log, inForce):], "\n")
			for _, field := range fields {
				if !strings.Contains(line, field) {
					t.Errorf("the log does not say that %s has changed: %s", field, line)
				}
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the changed file is not in force after %v:\n%s", patience, c.LogTail(10))
		}
	}
}

// awaitLog waits for a line of the log.
func awaitLog(t *testing.T, p *testbed.Proxy, pattern string) {
	t.Helper()
	wanted := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); !wanted.MatchString(p.Log()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no line matches %q after %v:\n%s", pattern, patience, p.LogTail(20))
		}
	}
}

// awaitSource waits until new connections from a host reach the pod from the wanted address.
func awaitSource(t *testing.T, host string, to netip.AddrPort, want func(netip.Addr) bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		c, err := bed.Lab.Open(host, netlab.TCP, to, netlab.DialOptions{})
		must(t, err)
		must(t, c.Close())
		if want(c.First().Seen.Addr()) {
			t.Logf("%s: %s sees %s as %s", what, c.First().Server, host, c.First().Seen.Addr())
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %s still sees %s as %s", what, c.First().Server, host, c.First().Seen.Addr())
		}
	}
}

// Fields of the file take effect in packets, one after the other, while no connection is lost
// (PR-04).
func TestReload(t *testing.T) { inModes(t, bothModes, testReload) }

func testReload(t *testing.T) {
	begin(t)
	deleteEvents(t)
	steady, local := web(t, "steady", "pod1", "pod4"), web(t, "local", "pod1")
	nodePort := nodePortService(t, "port", "pod2")
	p := startConfigured(t, clusterCIDR+verbose+quick())
	await(t, "pod3", steady, "pod1", "pod4")
	await(t, "pod3", local, "pod1")
	await(t, netlab.Client, nodePort, "pod2")
	stopPod, stopClient := traffic(t, "pod3", steady), traffic(t, netlab.Client, steady)
	open, err := bed.Lab.Open(netlab.Client, netlab.TCP, nodePort, netlab.DialOptions{})
	must(t, err)
	defer open.Close()

	pod3, _ := netlab.HostByName("pod3")
	itself := func(a netip.Addr) bool { return a == pod3.V4 }
	masqueraded := func(a netip.Addr) bool { return a != pod3.V4 }
	awaitSource(t, "pod3", local, itself, "at first")
	p.change(t, clusterCIDR+verbose+quick("masqueradeAll: true"), "masqueradeAll")
	awaitSource(t, "pod3", local, masqueraded, "masqueradeAll")
	p.change(t, clusterCIDR+verbose+quick(), "masqueradeAll")
	awaitSource(t, "pod3", local, itself, "without masqueradeAll")
	p.change(t, "clusterCIDR: 10.9.0.0/16\n"+verbose+quick(), "clusterCIDR")
	awaitSource(t, "pod3", local, masqueraded, "clusterCIDR elsewhere")
	p.change(t, clusterCIDR+verbose+quick(), "clusterCIDR")
	awaitSource(t, "pod3", local, itself, "clusterCIDR as before")

	p.change(t, clusterCIDR+verbose+quick()+"nodePortAddresses: [10.0.0.0/8]\n", "nodePortAddresses")
	awaitSilence(t, netlab.Client, nodePort)
	works(t, open, "through a closed NodePort")
	t.Logf("nodePortAddresses: the NodePort at %s is closed, an open connection stays", nodePort)
	p.change(t, clusterCIDR+verbose+quick()+"nodePortAddresses: [172.18.0.0/24]\n", "nodePortAddresses")
	await(t, netlab.Client, nodePort, "pod2")

	wrote := func() int { return strings.Count(p.Log(), `] "Wrote rules"`) }
	p.change(t, clusterCIDR+"logging: {verbosity: 0}\n"+quick(), "nodePortAddresses", "verbosity")
	marker(t, "marker-quiet")
	before := wrote()
	marker(t, "marker-quiet-too")
	if n := wrote() - before; n > 0 {
		t.Errorf("at verbosity 0 the log has %d lines about writes", n)
	}
	p.change(t, clusterCIDR+verbose+quick(), "verbosity")
	marker(t, "marker-verbose")
	awaitLog(t, p.Proxy, fmt.Sprintf(`(?s)(\] "Wrote rules".*){%d}`, before+1))
	checkMinSyncPeriod(t, p)
	works(t, open, "after all")
	stopPod()
	stopClient()
	awaitEvent(t, "KubeProxyConfigReloaded", netlab.Node1)
}

// checkMinSyncPeriod has changes wait for each other, and no more.
func checkMinSyncPeriod(t *testing.T, p *configured) {
	t.Helper()
	addr := web(t, "paced", "pod1")
	await(t, "pod3", addr, "pod1")
	maxBatchWeight := func(i int) time.Duration {
		start := time.Now()
		pods := []string{"pod4", "pod5", "pod1"}
		for _, pod := range pods {
			move(t, "paced", pod)
			await(t, "pod3", addr, pod)
		}
		took := time.Since(start)
		t.Logf("sync periods, %d: %d changes, one after the other, took %v", i, len(pods), took.Round(time.Millisecond))
		return took
	}
	const period = 700 * time.Millisecond
	p.change(t, clusterCIDR+verbose+fmt.Sprintf("%s: {minSyncPeriod: %v, syncPeriod: 20s}\n", bed.Mode.Name, period),
		"minSyncPeriod", "syncPeriod")
	if took := maxBatchWeight(1); took < 2*period {
		t.Errorf("3 changes took %v with a minSyncPeriod of %v", took, period)
	}
	p.change(t, clusterCIDR+verbose+quick(), "minSyncPeriod")
	// On a busy machine everything may be slow; with the previous period none would be faster.
	for tries := 2; maxBatchWeight(tries) > 2*period; tries++ {
		if tries == 12 {
			t.Fatalf("3 changes took more than %v each time, with a minSyncPeriod of 10 ms", 2*period)
		}
	}
}

// A file that becomes invalid is reported, and its previous content stays in force; SIGHUP makes
// the proxy read it again; a file that cannot take effect in this process ends it with status 1,
// and its rules serve until the next one runs (PR-04, PR-07).
func TestReloadInvalid(t *testing.T) {
	begin(t)
	deleteEvents(t)
	inMode(t, testbed.NFTables)
	steady := web(t, "steady", "pod1", "pod4")
	p := startConfigured(t, clusterCIDR+verbose+quick())
	await(t, "pod3", steady, "pod1", "pod4")
	stop := traffic(t, "pod3", steady)
	before := ruleset(t)

	for _, bad := range []struct{ name, text, message string }{
		{"values", configuration("clusterCIDR: 10.3.0.0/99\nnodePortAddresses: [nonsense]\n"),
			`10\.3\.0\.0/99.*nonsense`},
		{"kind", "apiVersion: v1\nkind: ConfigMap\n", `ConfigMap`},
		{"empty", "", `keeping the previous settings`},
	} {
		must(t, os.WriteFile(p.file, []byte(bad.text), 0o600))
		awaitLog(t, p.Proxy, `(?s)E\d{4} [^\n]*"Invalid configuration file.*`+bad.message)
		if after := ruleset(t); after != before {
			t.Errorf("%s: the rules were\n%s\nand are\n%s", bad.name, before, after)
		}
	}
	marker(t, "marker-invalid")
	awaitEvent(t, "KubeProxyConfigInvalid", netlab.Node1)
	p.write(t, clusterCIDR+verbose+quick())
	must(t, p.Signal(syscall.SIGHUP))
	awaitLog(t, p.Proxy, "Reloaded the configuration; nothing changed")

	inMode(t, testbed.IPTables)
	p.write(t, clusterCIDR+verbose+quick())
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("the process goes on after a change of the mode:\n%s", p.LogTail(10))
	}
	if code := p.ExitCode(); code != 1 {
		t.Errorf("status %d, want 1", code)
	}
	await(t, "pod3", steady, "pod1", "pod4")
	p.start(t) // as the kubelet would
	marker(t, "marker-restarted")
	awaitGone(t, "nftables")
	stop()
}

// A mounted ConfigMap changes by the swap of a symbolic link.
func TestReloadConfigMap(t *testing.T) {
	begin(t)
	inMode(t, testbed.IPTables)
	local := web(t, "local", "pod1")
	dir := t.TempDir()
	swap := func(i int, more string) {
		t.Helper()
		version := fmt.Sprintf("..%d", i)
		must(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, version, "config.conf"), []byte(configuration(more)), 0o600))
		must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	swap(1, clusterCIDR+verbose+quick())
	must(t, os.Symlink("..data/config.conf", filepath.Join(dir, "config.conf")))
	p := &configured{file: filepath.Join(dir, "config.conf")}
	p.start(t)
	await(t, "pod3", local, "pod1")
	stop := traffic(t, "pod3", local)
	pod3, _ := netlab.HostByName("pod3")
	awaitSource(t, "pod3", local, func(a netip.Addr) bool { return a == pod3.V4 }, "at first")
	swap(2, clusterCIDR+verbose+quick("masqueradeAll: true"))
	p.awaitReload(t, 0, "masqueradeAll")
	awaitSource(t, "pod3", local, func(a netip.Addr) bool { return a != pod3.V4 }, "after the swap")
	swap(3, clusterCIDR+verbose+quick())
	p.awaitReload(t, 1, "masqueradeAll")
	awaitSource(t, "pod3", local, func(a netip.Addr) bool { return a == pod3.V4 }, "after the next swap")
	stop()
}
