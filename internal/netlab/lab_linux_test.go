package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// newLab builds a lab that the test's end removes.
func newLab(t testing.TB, opts Options) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a lab needs root")
	}
	return ForTest(t, opts).Lab
}

func listen(t *testing.T, l *Lab, host string, proto Proto, port uint16) *Responder {
	t.Helper()
	r, err := l.Listen(host, proto, port)
	if proto == SCTP && errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// quick is how long a test waits for packets that must not arrive.
const quick = 150 * time.Millisecond

func forBoth(t *testing.T, fn func(t *testing.T, opts Options)) {
	for _, bridge := range []bool{false, true} {
		t.Run(fmt.Sprintf("bridge=%t", bridge), func(t *testing.T) {
			t.Parallel()
			fn(t, Options{Bridge: bridge})
		})
	}
}

// TestReach sends every protocol from each host to each other and checks that the source address is
// the sender's own: nothing in the lab translates.
func TestReach(t *testing.T) {
	for _, proto := range []Proto{TCP, UDP, SCTP} {
		t.Run(string(proto), func(t *testing.T) {
			forBoth(t, func(t *testing.T, opts Options) {
				l := newLab(t, opts)
				servers := []string{"pod1", "pod2", "pod4", Node1, Node2}
				for _, s := range servers {
					listen(t, l, s, proto, 8080)
				}
				for _, from := range []string{"pod1", "pod3", "pod5", Node1, Node2, Client} {
					for _, s := range servers {
						reach(t, l, from, proto, s, false)
						reach(t, l, from, proto, s, true)
					}
				}
			})
		})
	}
}

func reach(t *testing.T, l *Lab, from string, proto Proto, server string, six bool) {
	t.Helper()
	h, _ := HostByName(server)
	to := netip.AddrPortFrom(h.Addr(six), 8080)
	got, err := l.Dial(from, proto, to, DialOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	if got.Server != server || got.At != to || Owner(got.Seen.Addr()) != from {
		t.Errorf("%s %s → %s: got %+v", proto, from, to, got)
	}
}

// TestUntranslated: an untranslated service address never answers, and a
// closed port refuses at once.
func TestUntranslated(t *testing.T) {
	forBoth(t, func(t *testing.T, opts Options) {
		l := newLab(t, opts)
		var wg sync.WaitGroup
		defer wg.Wait()
		for _, from := range []string{"pod1", "pod4", Node1, Node2, Client} {
			for _, vip := range []string{"10.96.0.1", "fd00:10:96::1", "192.0.2.1", "2001:db8:2::1", "198.51.100.1",
				"2001:db8:51::1"} {
				for _, proto := range []Proto{TCP, UDP} {
					wg.Go(func() {
						_, err := l.Dial(from, proto, netip.AddrPortFrom(netip.MustParseAddr(vip), 80),
							DialOptions{Timeout: quick})
						if !errors.Is(err, ErrTimeout) {
							t.Errorf("%s %s → %s: got %v, want %v", proto, from, vip, err, ErrTimeout)
						}
					})
				}
				wg.Go(func() {
					if err := l.Ping(from, netip.MustParseAddr(vip), quick); !errors.Is(err, ErrTimeout) {
						t.Errorf("ping %s → %s: got %v, want %v", from, vip, err, ErrTimeout)
					}
				})
			}
		}
	})
}

func TestRefused(t *testing.T) {
	for _, proto := range []Proto{TCP, UDP, SCTP} {
		t.Run(string(proto), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, Options{NoNode2: true})
			listen(t, l, "pod2", proto, 7) // to skip if there is no SCTP
			for _, from := range []string{"pod1", Node1, Client} {
				for i := range 20 { // more than the kernel's usual limit of ICMP errors
					h, _ := HostByName("pod2")
					to := netip.AddrPortFrom(h.Addr(i%2 == 1), 8080)
					if _, err := l.Dial(from, proto, to, DialOptions{}); !errors.Is(err, ErrRefused) {
						t.Errorf("%d: got %v, want %v", i, err, ErrRefused)
					}
				}
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{NoNode2: true})
	for _, proto := range []Proto{TCP, UDP} {
		for _, to := range []string{"203.0.113.1:80", "[2001:db8:ffff::1]:80"} { // the client has no default route
			_, err := l.Dial(Client, proto, netip.MustParseAddrPort(to), DialOptions{})
			if !errors.Is(err, ErrUnreachable) {
				t.Errorf("%s %s: got %v, want %v", proto, to, err, ErrUnreachable)
			}
		}
	}
}

func TestDoErrors(t *testing.T) {
	t.Parallel()
	l := newLab(t, Options{NoNode2: true, NoClient: true})
	for _, host := range []string{"pod4", Node2, Client, "nohost"} {
		if err := l.Do(host, func() error { return nil }); err == nil {
			t.Errorf("Do(%q) succeeded", host)
		}
	}
	own := errors.New("mine")
	if err := l.Do("pod1", func() error { return own }); err != own {
		t.Errorf("got %v, want fn's error", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Do("pod1", func() error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := l.Dial("pod1", TCP, netip.MustParseAddrPort("10.1.1.12:1"), DialOptions{}); !errors.Is(err,
		os.ErrClosed) {
		t.Errorf("Dial after Close: %v", err)
	}
}

// TestNamedBesideIPNetns: a named lab can be removed and created again after a call of `ip netns
// add`. It has its own mounts, so that /run/netns is not prepared yet.
func TestNamedBesideIPNetns(t *testing.T) {
	const inside = "NETLAB_OWN_MOUNTS"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestNamedBesideIPNetns$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Mount("none", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	opts := Options{Name: "beside", Named: true, NoNode2: true, NoClient: true}
	for run := range 2 {
		l, err := New(opts)
		if err != nil {
			t.Fatalf("run %d: %v", run, err)
		}
		if out, err := exec.Command("ip", "netns", "add", fmt.Sprintf("other%d", run)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := l.Close(); err != nil {
			t.Errorf("run %d: %v", run, err)
		}
	}
	if left, err := filepath.Glob(runNetns + "/kp-*"); err != nil || len(left) > 0 {
		t.Errorf("names that stay: %q, %v", left, err)
	}
}

// TestNamed: a named lab is visible below /run/netns, cannot be created twice, and takes over the
// remains of a killed process.
func TestNamed(t *testing.T) {
	name := fmt.Sprintf("t%d", os.Getpid())
	opts := Options{Name: name, Named: true, NoNode2: true, NoClient: true}
	path := func(host string) string { return filepath.Join(runNetns, "kp-"+name+"-"+host) }

	// As left by a killed process: a file without its mount.
	if err := os.MkdirAll(runNetns, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path(Node1), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, opts)
	// As a killed process leaves it: a mounted namespace. Only the claim protects it.
	if other, err := New(opts); err == nil {
		other.Close()
		t.Error("two labs of one name")
	}
	if err := l.lock.Close(); err != nil {
		t.Fatal(err)
	}
	l.lock = nil
	second := newLab(t, opts)
	var inNode, published unix.Stat_t
	err := second.Do(Node1, func() error { return unix.Stat("/proc/thread-self/ns/net", &inNode) })
	if err := errors.Join(err, unix.Stat(path(Node1), &published)); err != nil {
		t.Fatal(err)
	}
	if inNode.Ino != published.Ino {
		t.Errorf("%s is namespace %d, node1 is %d", path(Node1), published.Ino, inNode.Ino)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(path("*")); left != nil {
		t.Errorf("left after Close: %v", left)
	}
}

// TestNoLeak: after Close the kernel has freed every namespace, and the process
// every descriptor. A namespace that is freed takes a veth's other end with it.
func TestNoLeak(t *testing.T) {
	// Descriptors that the runtime opens once and keeps, such as its poller's, do not count.
	if err := newLab(t, Options{NoNode2: true}).Close(); err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	watch := newLab(t, Options{NoNode2: true, NoClient: true})
	l := newLab(t, Options{})
	for i, h := range append(l.Hosts(), Host{Name: switchHost}) {
		err := watch.Do(Sink, func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "watch" + strconv.Itoa(i)
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "watched",
				PeerNamespace: netlink.NsFd(l.ns[h.Name])})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	listen(t, l, "pod1", TCP, 80)
	listen(t, l, "pod1", UDP, 80)
	pod1, _ := HostByName("pod1")
	for _, proto := range []Proto{TCP, UDP} { // left open on purpose
		if _, err := l.Open(Client, proto, netip.AddrPortFrom(pod1.V4, 80), DialOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Command("pod2", "sleep", "1000").Start(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var left []string
		err := watch.Do(Sink, func() error {
			links, err := netlink.LinkList()
			for _, link := range links {
				if strings.HasPrefix(link.Attrs().Name, "watch") {
					left = append(left, link.Attrs().Name)
				}
			}
			return err
		})
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue // links vanished while they were listed
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("namespaces that live on: %v", left)
		}
	}
	if err := watch.Close(); err != nil {
		t.Fatal(err)
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d files open before, %d after", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
