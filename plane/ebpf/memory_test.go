//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/plane/ebpf/bpf"
)

// memory is the hierarchy of memory cgroups whose threads may be apart.
const memory = "/sys/fs/cgroup/memory"

// memoryCgroup makes a memory cgroup that ends with the test.
func memoryCgroup(t *testing.T, name string) (path string) {
	t.Helper()
	path = filepath.Join(memory, fmt.Sprintf("kp-%d-%s", os.Getpid(), name))
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

// TestTenantFillsStorage: the sockets of a tenant beyond the bound of its namespace take the packet
// path, and find room when others close. Beyond the bound of all, other clients do too (EB-24).
func TestTenantFillsStorage(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.must(b.plane.setMost(100, 150))
		open := func(host string, n int) (fds []int, known int) {
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
		nothing, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		b.must(err)
		b.t.Cleanup(func() { unix.Close(nothing) })
		end := func(fds []int) {
			for _, fd := range fds { // whose number stays taken: it is closed when the test ends
				if err := unix.Dup3(nothing, fd, unix.O_CLOEXEC); err != nil {
					b.t.Error(err)
				}
			}
		}
		kept := func() (all int32, each int) {
			b.must(b.plane.kernel.obj.Kept.Lookup(uint32(0), &all))
			b.must(prune(b.plane.kernel.obj.KeptOf, func(uint64, int32) bool { each++; return false }))
			return all, each
		}
		tenant, known := open("pod3", 160)
		if known != 100 {
			b.t.Errorf("the programs connected %d sockets of the tenant, want 100", known)
		}
		other, known := open("pod2", 60)
		if known != 50 {
			b.t.Errorf("the programs connected %d sockets of another client, want 50", known)
		}
		flows := b.socket("pod2", unix.SOCK_DGRAM, false)
		b.asks("a UDP socket beyond the bound", flows, b.to("VIP:53"), "pod1")
		end(tenant)
		if _, known = open("pod3", 20); known != 20 {
			b.t.Errorf("the programs connected %d of 20 sockets of the tenant after it had closed others", known)
		}
		end(other)
		if all, each := kept(); all != 20 || each != 2 {
			b.t.Errorf("%d sockets of %d clients, want 20 of two", all, each)
		}
		// A detached program misses sockets that close.
		b.must(b.plane.detach("sock_release"))
		if n, err := b.plane.audit(); n == 0 || err != nil {
			b.t.Errorf("repaired %d, error %v", n, err)
		}
		if all, each := kept(); all != 0 || each != 0 {
			b.t.Errorf("%d sockets of %d clients, want none", all, each)
		}
	})
}
