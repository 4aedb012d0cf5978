//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	linux "kube-proxy/internal/kernel"
	"kube-proxy/plane"
)

// layout is the version of the maps and of what is pinned. A change of it starts with empty tables.
const layout = "v1"

// defaultBPFFS is where every system mounts the BPF file system.
const defaultBPFFS = "/sys/fs/bpf"

// pinsBelow returns the folder of pinned objects in a BPF file system.
func pinsBelow(bpffs string) string { return filepath.Join(bpffs, "kube-proxy", layout) }

// pinsOf returns the folder of the proxy of a network namespace. The kernel never gives its cookie
// to another one.
func pinsOf(pins string, cookie uint64) string {
	return filepath.Join(pins, fmt.Sprintf("netns-%d", cookie))
}

// mountBPFFS mounts the BPF file system where it is missing. It reports whether that mount is
// private: no other mount namespace sees it, so in a container it ends with the container.
func mountBPFFS(at string) (private bool, err error) {
	is, err := isFS(at, unix.BPF_FS_MAGIC)
	if err != nil || is {
		return false, err
	}
	if err := unix.Mount("bpf", at, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return false, fmt.Errorf("mount the BPF file system at %s "+
			"(in a container, mount the host's there): %w: %w", at, explainIDs(err),
			plane.ErrUnsupported)
	}
	shared, err := isShared(at, linux.MountInfo)
	return !shared, err
}

// isShared reports whether the newest mount at a path propagates to other mount namespaces, by a
// list like [linux.MountInfo].
func isShared(at, mounts string) (shared bool, err error) {
	text, err := os.ReadFile(mounts)
	if err != nil {
		return false, fmt.Errorf("look at the mounts: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		const point, tags = 4, 6
		fields := strings.Fields(line)
		if len(fields) > tags && fields[point] == at {
			shared = strings.HasPrefix(fields[tags], "shared:")
		}
	}
	return shared, nil
}

func isFS(path string, magic int64) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, fmt.Errorf("look at %s: %w", path, err)
	}
	return st.Type == magic, nil
}

// findCgroup returns the root of the cgroup v2 hierarchy, below which all sockets of the node are.
func findCgroup() (string, error) { return findCgroupIn(linux.MountInfo) }

func findCgroupIn(mounts string) (string, error) {
	if found, err := linux.Cgroup2(mounts); found != "" || err != nil {
		return found, err
	}
	return "", fmt.Errorf("no cgroup v2 hierarchy is mounted (mount one: mount -t cgroup2 none /sys/fs/cgroup): %w",
		plane.ErrUnsupported)
}

// checkCgroup says why programs at the cgroup would not see the node's sockets. Only a root that
// the user did not choose must be the real one.
func checkCgroup(path string, chosen bool) error {
	if is, err := isFS(path, unix.CGROUP2_SUPER_MAGIC); err != nil {
		return err
	} else if !is {
		return fmt.Errorf("%s is no cgroup v2: %w", path, plane.ErrUnsupported)
	}
	if _, err := os.Stat(filepath.Join(path, "cgroup.type")); err == nil && !chosen { // which the root lacks
		return fmt.Errorf("%s is not the root of the node's cgroups, but that of a container: "+
			"mount the host's /sys/fs/cgroup and name it with --ebpf-cgroup: %w", path, plane.ErrUnsupported)
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look at the cgroup: %w", err)
	}
	return nil
}

// cgroupID returns the kernel's number of a cgroup.
func cgroupID(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("look at the cgroup %s: %w", path, err)
	}
	return st.Ino, nil
}

// netnsCookie returns the kernel's number of the calling thread's network namespace.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) { // before Linux 5.14
		cookie, err = cookieByProgram(fd)
	}
	if err != nil {
		return 0, fmt.Errorf("read the cookie of the network namespace: %w", err)
	}
	return cookie, nil
}

// ownCookies returns the numbers of the thread's network namespace and of the process's: a check
// runs on a thread in an empty one.
func ownCookies() ([]uint64, error) {
	cookie, err := netnsCookie()
	if err != nil {
		return nil, err
	}
	all := []uint64{cookie}
	err = inNamespace("/proc/self/ns/net", func() error {
		cookie, err := netnsCookie()
		all = append(all, cookie)
		return err
	})
	return all, err
}

// cookieByProgram has a program at connect() read the cookie of a UDP socket's namespace. It is
// attached to the root of cgroups for that one call, which it knows by an address and port that
// no other program uses. The type of its map marks it as ours.
func cookieByProgram(fd int) (cookie uint64, err error) {
	cgroup, err := findCgroup()
	if err != nil {
		return 0, err
	}
	number := &btf.Int{Name: "__u32", Size: 4}
	answer, err := ebpf.NewMap(&ebpf.MapSpec{Name: "kp_cookie", Type: ebpf.Array, KeySize: 4, ValueSize: 8,
		MaxEntries: 1, Key: number, Value: &btf.Typedef{Name: nodeType, Type: &btf.Int{Name: "__u64", Size: 8}}})
	if err != nil {
		return 0, fmt.Errorf("make a map: %w", explain(err))
	}
	defer answer.Close()
	to := &unix.SockaddrInet4{Port: 1 + rand.N(1<<16-1), Addr: [4]byte{127}}
	binary.BigEndian.PutUint16(to.Addr[1:], uint16(rand.N(1<<16)))
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "kp_cookie", Type: ebpf.CGroupSockAddr,
		AttachType: ebpf.AttachCGroupInet4Connect, License: "Apache-2.0", Instructions: cookieProgram(answer.FD(), to)})
	if err != nil {
		return 0, fmt.Errorf("load a program: %w", explain(err))
	}
	defer p.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupInet4Connect, Program: p})
	if err != nil {
		return 0, fmt.Errorf("attach a program to the cgroup %s: %w", cgroup, err)
	}
	defer l.Close()
	_ = unix.Connect(fd, to) // the program has run, even if no route leads there
	if err := answer.Lookup(uint32(0), &cookie); err != nil {
		return 0, fmt.Errorf("read a map: %w", err)
	}
	if cookie == 0 {
		return 0, fmt.Errorf("a program at the cgroup %s does not see this process: %w", cgroup, plane.ErrUnsupported)
	}
	return cookie, nil
}

// cookieProgram writes the cookie of the namespace whose socket connects to that address into a
// map.
func cookieProgram(answer int, to *unix.SockaddrInet4) asm.Instructions {
	const offAddr, offPort = 4, 24 // of struct bpf_sock_addr
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, offAddr, asm.Word),
		asm.LoadImm(asm.R3, int64(binary.NativeEndian.Uint32(to.Addr[:])), asm.DWord),
		asm.JNE.Reg(asm.R2, asm.R3, "pass"),
		asm.LoadMem(asm.R2, asm.R1, offPort, asm.Word),
		asm.JNE.Imm(asm.R2, int32(bigEndian(uint16(to.Port))), "pass"),
		asm.FnGetNetnsCookie.Call(),
		asm.LoadMapValue(asm.R1, answer, 0),
		asm.StoreMem(asm.R1, 0, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"),
		asm.Return(),
	}
}
