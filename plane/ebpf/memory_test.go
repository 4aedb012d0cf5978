//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/plane/ebpf/bpf"
	"kube-proxy/test/kerneltest"
)

// memory is the hierarchy of memory cgroups whose threads may be apart.
const memory = "/sys/fs/cgroup/memory"

// memoryCgroup makes a memory cgroup that ends with the test.
func memoryCgroup(t *testing.T, name string) (path string) {
	t.Helper()
	path = filepath.Join(memory, fmt.Sprintf("kp-%d-%s-%s", os.Getpid(), filepath.Base(t.Name()), name))
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !eventually(func() bool { return os.Remove(path) == nil }) {
			t.Errorf("cannot remove %s", path)
		}
	})
	return path
}

// within calls f while the thread is in a memory cgroup.
func (b *bench) within(cgroup string, f func()) {
	b.t.Helper()
	text, err := os.ReadFile("/proc/thread-self/cgroup")
	b.must(err)
	_, home, _ := strings.Cut(string(text), ":memory:")
	home, _, _ = strings.Cut(home, "\n")
	enter := func(path string) {
		if err := os.WriteFile(path+"/tasks", []byte(strconv.Itoa(unix.Gettid())), 0); err != nil {
			b.t.Error(err)
		}
	}
	enter(cgroup)
	defer enter(filepath.Join(memory, home))
	f()
}

func kernelMemory(t *testing.T, cgroup string) float64 {
	t.Helper()
	text, err := os.ReadFile(cgroup + "/memory.kmem.usage_in_bytes")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestMemoryLimit: under a memory limit that is too low for the maps, a check and a write say how
// much is missing, before the kernel would end the process (EB-20).
func TestMemoryLimit(t *testing.T) {
	kerneltest.Later(t)
	threadsApart(t)
	all := map[uint32]bpf.LBBackend{}
	for i := range uint32(100_000) {
		all[i] = bpf.LBBackend{}
	}
	eachFamily(t, func(b *bench) {
		limited := memoryCgroup(b.t, "limited")
		b.must(os.WriteFile(limited+"/memory.limit_in_bytes", []byte("4194304"), 0))
		var check, write error
		b.On(netlab.Node1, func() {
			b.within(limited, func() {
				check, write = ableWith(b.f, b.planes.bpffs, b.Cgroup(netlab.Node1)), b.plane.kernel.backends.set(all)
			})
		})
		for want, err := range map[string]error{"make the maps of the programs: ": check,
			"write 100000 elements of the table backends: ": write} {
			if !errors.Is(err, unix.ENOMEM) || !strings.HasPrefix(err.Error(), want) ||
				!strings.Contains(err.Error(), limited+"/memory.limit_in_bytes of 4096 KiB leaves ") ||
				!strings.Contains(err.Error(), "raise it by ") {
				b.t.Errorf("error %v, want one that begins with %q", err, want)
			}
		}
	})
}

// threadsApart skips a test where memory cgroups are of version 2.
func threadsApart(t *testing.T) {
	if _, err := os.Stat(memory + "/tasks"); errors.Is(err, os.ErrNotExist) {
		t.Skip("the memory cgroups of this machine are of version 2, where a thread cannot be apart from its process")
	}
}

// TestSocketMemory: the kernel charges the storage of a tenant's sockets to the proxy, which made
// the maps. A socket takes what the bound of its number reckons with at most (EB-24).
func TestSocketMemory(t *testing.T) {
	kerneltest.Later(t)
	threadsApart(t)
	const n = 4000
	eachFamily(t, func(b *bench) {
		proxy, tenant := memoryCgroup(b.t, "proxy"), memoryCgroup(b.t, "tenant")
		b.On(netlab.Node1, func() {
			pins := b.plane.cfg.Pins
			b.must(errors.Join(b.plane.forget(), unpinFamily(pins, b.f)))
			b.within(proxy, func() { b.reset(b.table) })
		})
		empty := kernelMemory(b.t, proxy)
		b.t.Logf("the programs and empty tables take %.0f bytes", empty)
		if empty > emptyBytes || empty < emptyBytes/3 {
			b.t.Errorf("want %d bytes at most, and not far less", emptyBytes)
		}
		for kind, use := range map[string]func(fd int) error{
			"connected":   func(fd int) error { return unix.Connect(fd, sockaddr(b.to("VIP:53"))) },
			"unconnected": func(fd int) error { return unix.Sendto(fd, []byte("x"), 0, sockaddr(b.to("VIP:53"))) },
		} {
			before := kernelMemory(b.t, proxy)
			var all []int
			for range n {
				all = append(all, b.socket("pod3", unix.SOCK_DGRAM, false))
			}
			b.On("pod3", func() {
				b.within(tenant, func() {
					for _, fd := range all {
						b.must(use(fd))
					}
				})
			})
			each := (kernelMemory(b.t, proxy) - before) / n
			b.t.Logf("a socket that is %s takes %.0f bytes of the proxy's memory", kind, each)
			if each < 100 || each > socketBytes {
				b.t.Errorf("want some of the proxy's memory, and %d bytes at most", socketBytes)
			}
		}
	})
}

// TestTenantFillsStorage: a tenant's sockets have one part in 15 of the storage that is free,
// alone a sixteenth of all. Further ones take the packet path, and find room when others close.
// However many tenants are at their bounds, the programs serve others (EB-24).
func TestTenantFillsStorage(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		b.must(b.plane.setMost(1600))
		tenant, known := b.fill("pod3", 160)
		if known != 100 {
			b.t.Errorf("the programs connected %d sockets of the tenant, want 100", known)
		}
		other, known := b.fill(netlab.Node1, 100)
		if known != 94 {
			b.t.Errorf("the programs connected %d sockets of another client, want 94", known)
		}
		flows := b.socket("pod3", unix.SOCK_DGRAM, false)
		b.asks("a UDP socket beyond the bound", flows, b.to("VIP:53"), "pod1")
		if _, known := b.fill("pod2", 20); known != 20 {
			b.t.Errorf("the programs connected %d of 20 sockets of a further client", known)
		}
		b.end(tenant)
		again, known := b.fill("pod3", 20)
		if known != 20 {
			b.t.Errorf("the programs connected %d of 20 sockets of the tenant after it had closed others", known)
		}
		b.end(other)
		if all, each := b.kept(); all != 40 || len(each) != 2 {
			b.t.Errorf("%d sockets are counted, by client %v, want 20 each of two", all, each)
		}
		if b.plane.kernel.census.obj == nil {
			b.t.Skip("without BTF the numbers are estimates, see TestEstimates")
		}
		// A detached program misses sockets that close.
		b.must(b.plane.detach("sock_release"))
		b.end(again[:15])
		b.On(netlab.Node1, func() {
			if n, err := b.plane.audit(); n == 0 || err != nil {
				b.t.Errorf("repaired %d, error %v", n, err)
			}
		})
		if !eventually(func() bool { all, _ := b.kept(); return all == 25 }) {
			all, each := b.kept()
			b.t.Errorf("%d sockets are counted, by client %v, want 25, which are open", all, each)
		}
	})
}

// TestCountsThatDrift: numbers of sockets that are wrong, whatever the reason, keep sockets without
// room only until the next pass, which needs no comparison; also after a restart (EB-24).
func TestCountsThatDrift(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		if b.plane.kernel.census.obj == nil {
			b.t.Skip("without BTF the numbers are estimates, see TestEstimates")
		}
		_, known := b.fill("pod3", 30)
		flows := b.socket("pod3", unix.SOCK_DGRAM, false)
		b.asks("a UDP socket", flows, b.to("VIP:53"), "pod1")
		_, each := b.kept()
		damage := func(all, pod int32) {
			b.must(b.plane.kernel.obj.Kept.Put(uint32(0), bpf.LBUsage{Sockets: all}))
			for netns := range each {
				b.must(b.plane.kernel.obj.KeptOf.Put(netns, pod))
			}
		}
		served := func(when string) {
			b.t.Helper()
			if !eventually(func() bool { return b.connectedInKernel(b.connectOnly("pod3", b.to("VIP:53"))) }) {
				b.t.Errorf("%s: no socket finds room", when)
			}
		}
		damage(b.plane.switches.wanted().Most, 3)
		served("all are full")
		damage(3, b.plane.switches.wanted().Most)
		served("the client is full")
		damage(b.plane.switches.wanted().Most, b.plane.switches.wanted().Most)
		b.restart(nil)
		served("after a restart")
		damage(-100, -100)
		b.must(b.plane.kernel.census.pass(true))
		all, each := b.kept()
		if n := known + 1; all < int32(n)+3 || len(each) != 1 || each[slices.Collect(maps.Keys(each))[0]] != all {
			b.t.Errorf("%d sockets are counted, by client %v, want at least %d, of one client", all, each, n+3)
		}
	})
}

// TestEstimates: without BTF the numbers begin again at 0 when sockets have found no room for a
// while (EB-24).
func TestEstimates(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		c := &census{maps: &b.plane.kernel.obj.LBMaps, began: time.Now()}
		b.plane.kernel.census.close()
		b.plane.kernel.census = nil
		b.must(b.plane.setMost(160))
		serves := func() bool { return b.connectedInKernel(b.connectOnly("pod3", b.to("VIP:53"))) }
		for serves() { // until the client has no room
		}
		b.must(c.pass(true))
		if serves() {
			b.t.Error("the bound does not hold")
		}
		c.began = c.began.Add(-estimateEnds)
		b.must(c.pass(false))
		if !serves() {
			b.t.Error("no room, long after the first socket found none")
		}
		c.began = c.began.Add(-estimateEnds)
		b.must(c.pass(true))
		if n, err := c.read(); err != nil || n.all.Sockets != 1 {
			b.t.Errorf("%+v are counted, error %v, want 1: there was room", n, err)
		}
	})
}

// fill opens sockets of TCP and UDP, and returns how many of them the programs know.
func (b *bench) fill(host string, n int) (fds []int, known int) {
	b.t.Helper()
	for i := range n {
		kind, to := unix.SOCK_DGRAM, b.to("VIP:53")
		if i%2 == 0 {
			kind, to = unix.SOCK_STREAM, b.to("VIP:80")
		}
		fd := b.connected(host, kind, to, false)
		fds = append(fds, fd)
		if b.connectedInKernel(fd) {
			known++
		}
	}
	return fds, known
}

// end closes sockets at once, TCP by a reset. Their numbers stay taken until the test ends.
func (b *bench) end(fds []int) {
	b.t.Helper()
	nothing, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	b.must(err)
	defer unix.Close(nothing)
	for _, fd := range fds {
		b.must(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
		b.must(unix.Dup3(nothing, fd, unix.O_CLOEXEC))
	}
}
