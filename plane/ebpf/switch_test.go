//go:build linux

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/tables"
)

// direct reports whether a client's connection to a NodePort is not translated: the endpoint sees
// the client and not the node.
func (b *bench) direct(from string) bool {
	b.t.Helper()
	c, err := b.Open(from, netlab.TCP, b.to("NODE:30080"), netlab.DialOptions{})
	if err != nil {
		b.t.Fatalf("%s: %v", from, err)
	}
	defer c.Close()
	return c.First().Seen.Addr() == c.Local().Addr()
}

// TestScopes: the configuration says whose sockets are balanced. Open sockets keep their endpoints
// (EB-01).
func TestScopes(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		udp, tcp := b.socket("pod3", unix.SOCK_DGRAM, false), b.socket("pod3", unix.SOCK_STREAM, false)
		b.asks("at first", udp, b.to("VIP:53"), "pod1")
		b.must(unix.Connect(tcp, sockaddr(b.to("VIP:80"))))
		for _, tc := range []struct {
			sockets string
			pod     bool
		}{{"host", false}, {"off", false}, {"all", true}} {
			b.must(b.plane.balance(tc.sockets))
			if got := b.direct("pod3"); got != tc.pod {
				b.t.Errorf("%s: a pod's connection is direct: %v, want %v", tc.sockets, got, tc.pod)
			}
			b.asks(tc.sockets, udp, b.to("VIP:53"), "pod1")
			b.hasPeer(tc.sockets, tcp, b.to("VIP:80"))
		}
		b.noRules()
		for sockets, served := range map[string]bool{"host": true, "off": false} {
			b.must(b.plane.balance(sockets))
			_, err := b.Dial(netlab.Node1, netlab.TCP, b.to("VIP:80"), netlab.DialOptions{Timeout: 300e6})
			if (err == nil) != served {
				b.t.Errorf("%s: a connection of the node without rules of the packet path: %v", sockets, err)
			}
		}
	})
}

// TestWait: while other modes' rules may be there, new programs connect no sockets of pods,
// whatever the configuration and the audits do; those that a restart takes over go on (EB-27).
func TestWait(t *testing.T) {
	wait := func(c *Config) { c.Wait = true }
	eachFamilyWith(t, wait, func(b *bench) {
		want := func(when string, is bool) {
			b.t.Helper()
			if got := b.direct("pod3"); got != is {
				b.t.Errorf("%s: a connection is direct: %v, want %v", when, got, is)
			}
		}
		want("at first", false)
		if !b.direct(netlab.Node1) {
			b.t.Error("at first: a connection of the node is not direct")
		}
		b.must(b.plane.balance("off"))
		b.must(b.plane.balance("all"))
		b.On(netlab.Node1, func() {
			if _, err := b.plane.Audit(b.t.Context(), true); err != nil {
				b.t.Fatal(err)
			}
		})
		want("after a change and an audit", false)
		b.must(b.plane.balance("off"))
		b.must(b.plane.OthersGone())
		want("off, without other rules", false)
		b.must(b.plane.balance("all"))
		want("without other rules", true)
		b.restart(wait)
		want("after a restart", true)
	})
}

// TestGuard: bind() to a NodePort is refused in the node's namespace, if the configuration says so
// (EB-02).
func TestGuard(t *testing.T) {
	kerneltest.Later(t)
	eachFamilyWith(t, func(c *Config) { c.Guard = true }, func(b *bench) {
		zero := b.f.Everywhere().Addr()
		for _, tc := range []struct {
			host string
			at   netip.AddrPort
			want error
		}{
			{netlab.Node1, netip.AddrPortFrom(zero, 30080), busy()},
			{netlab.Node1, b.to("NODE:30080"), busy()},
			{netlab.Node1, b.to("LOCAL:30080"), nil},
			{netlab.Node1, netip.AddrPortFrom(zero, 30081), nil},
			{"pod3", netip.AddrPortFrom(zero, 30080), nil},
		} {
			if err := b.bind(tc.host, unix.SOCK_STREAM, tc.at); !errors.Is(err, tc.want) {
				b.t.Errorf("%s binds to %s: %v, want %v", tc.host, tc.at, err, tc.want)
			}
		}
		if err := b.bind(netlab.Node1, unix.SOCK_DGRAM, netip.AddrPortFrom(zero, 30080)); err != nil {
			b.t.Errorf("UDP, which the NodePort has not: %v", err)
		}
		b.restart(nil)
		if err := b.bind(netlab.Node1, unix.SOCK_STREAM, b.to("NODE:30080")); err != nil {
			b.t.Errorf("without the guard: %v", err)
		}
	})
}

// TestFailure: after a failed write the programs are off, the packet path serves the change, and an
// audit switches them on again (EB-12).
func TestFailure(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		changed := b.parse(strings.Replace(shop, "  pod1:8080 local\nset shop/dns", "  pod2:8080 local\nset shop/dns",
			1))
		b.plane.Notices() // of the start
		b.plane.kernel.backends.inner.Close()
		b.On(netlab.Node1, func() {
			if _, err := b.plane.Apply(context.Background(), changesTo(changed)); err != nil {
				b.t.Fatal(err)
			}
		})
		if b.plane.failed == nil {
			b.t.Fatal("the write did not fail")
		}
		if n := len(b.plane.Notices()); n != 1 || len(b.plane.Notices()) != 0 {
			b.t.Errorf("%d notices, want one, once", n)
		}
		if r, err := b.Dial("pod3", netlab.TCP, b.to("VIP:80"), netlab.DialOptions{}); err != nil ||
			r.Server != "pod2" {
			b.t.Errorf("%s answered, error %v", r.Server, err)
		}
		if b.direct("pod3") {
			b.t.Error("the programs serve")
		}
		b.On(netlab.Node1, func() {
			if n, err := b.plane.Audit(context.Background(), false); err != nil || n == 0 {
				b.t.Errorf("audit: %d repaired, error %v", n, err)
			}
		})
		b.noRules()
		b.reaches("pod3", netlab.TCP, "VIP:80", "pod2")
	})
}

func changesTo(table *lb.Table) (all []lb.Change) {
	for f := range table.All() {
		all = append(all, lb.Change{Key: f.Key, New: f})
	}
	return all
}

// TestWrites: one endpoint costs as many writes among 5,000 Services as among 100, where tables
// have grown under the programs (EB-11).
func TestWrites(t *testing.T) {
	kerneltest.NotEmulated(t)
	for _, services := range []int{100, 5_000} {
		t.Run(fmt.Sprint(services), func(t *testing.T) {
			b := newBench(t, lb.IPv4, nil)
			b.On(netlab.Node1, func() {
				b.plane = b.newPlane()
				b.reset(many(t, services, 0, 3))
			})
			defer b.plane.Close()
			for _, step := range []struct{ first, last int }{{0, 4}, {1, 4}, {1, 5}, {2, 6}, {0, 3}} {
				var changes []lb.Change
				for f := range many(t, 8, step.first, step.last).All() {
					if strings.HasPrefix(f.Service, "n/s7:") {
						changes = append(changes, lb.Change{Key: f.Key, New: f})
					}
				}
				if len(changes) != 3 {
					t.Fatalf("%d changes", len(changes))
				}
				before := b.plane.kernel.writes
				b.On(netlab.Node1, func() {
					if _, err := b.plane.Apply(t.Context(), changes); err != nil || b.plane.failed != nil {
						t.Fatal(err, b.plane.failed)
					}
				})
				if n := b.plane.kernel.writes - before; n == 0 || n > 4 && step.last != 3 {
					t.Errorf("backends %d to %d: %d writes, want 4 at most", step.first, step.last, n)
				}
			}
			if n, err := b.plane.audit(); n != 0 || err != nil {
				t.Errorf("an audit repaired %d elements, error %v", n, err)
			}
		})
	}
}

// many is a table of Services with three frontends each. The backends of all are those from first
// to last.
func many(t *testing.T, services, first, last int) *lb.Table {
	var b strings.Builder
	b.WriteString("node nodeports 0.0.0.0/0 pods 10.1.0.0/16\n")
	for i := range services {
		for _, front := range []string{"10.96.%[3]d.%[4]d:80/tcp n/s%[1]d:p clusterip",
			"11.96.%[3]d.%[4]d:80/tcp n/s%[1]d:p loadbalancer", "nodeport:%[2]d/tcp n/s%[1]d:p nodeport"} {
			fmt.Fprintf(&b, front+"\n  anywhere balance n/s%[1]d:p/tcp/cluster\n", i, 30000+i, i/250, i%250+1)
		}
	}
	for i := range services {
		fmt.Fprintf(&b, "set n/s%d:p/tcp/cluster\n", i)
		for j := first; j < last; j++ {
			fmt.Fprintf(&b, "  100.64.%d.%d:8080\n", j, i%250+1)
		}
	}
	table, err := tables.Parse(b.String())
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestHost: what is missing on a host is an error that names it (EB-03, EB-04).
func TestHost(t *testing.T) {
	kerneltest.Later(t)
	lab := netlab.ForTest(t, netlab.Options{Cgroup: true, NoNode2: true, NoClient: true})
	cgroup := lab.Cgroup(netlab.Node1)
	if err := checkCgroup(cgroup, true); err != nil {
		t.Errorf("a cgroup that the user chose: %v", err)
	}
	for path, want := range map[string]string{cgroup: "that of a container", t.TempDir(): "is no cgroup v2",
		"/nowhere": "no such file"} {
		if err := checkCgroup(path, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that says %q", path, err, want)
		}
	}
	// A container has a hierarchy of its own beside the host's.
	mounts := filepath.Join(t.TempDir(), "mountinfo")
	real, err := findCgroupIn("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	lines := "25 30 0:23 / " + cgroup + " rw - cgroup2 cgroup2 rw\n26 30 0:23 / " + real + " rw - cgroup2 cgroup2 rw\n"
	for text, want := range map[string]string{lines: real, lines[:strings.Index(lines, "\n")]: cgroup} {
		if err := os.WriteFile(mounts, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := findCgroupIn(mounts); got != want || err != nil {
			t.Errorf("%s: root %s, error %v; want %s", text, got, err, want)
		}
	}
	err = netlab.Isolated(unix.CLONE_NEWNS, func() error {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		at := t.TempDir()
		for _, want := range []bool{true, false} { // the second time it is there
			if private, err := mountBPFFS(at); err != nil || private != want {
				return fmt.Errorf("a mount that others do not see: private %v, error %w", private, err)
			}
		}
		if err := os.Mkdir(at+"/folder", 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(at+"/file", nil, 0o600); err == nil {
			return errors.New("it is no BPF file system, which has no plain files")
		}
		if err := unix.Unmount(at, 0); err != nil {
			return err
		}
		// The host's, which containers see.
		shared := t.TempDir()
		err := errors.Join(unix.Mount("tmpfs", shared, "tmpfs", 0, ""), unix.Mount("", shared, "", unix.MS_SHARED, ""),
			os.Mkdir(shared+"/bpf", 0o700))
		if err != nil {
			return err
		}
		if private, err := mountBPFFS(shared + "/bpf"); err != nil || private {
			return fmt.Errorf("a mount that others see: private %v, error %w", private, err)
		}
		return errors.Join(unix.Unmount(shared+"/bpf", 0), unix.Unmount(shared, 0))
	})
	if err != nil {
		t.Error(err)
	}
}
