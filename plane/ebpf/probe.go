//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// need is something that the mode needs of the kernel.
type need struct {
	name string
	// try returns nil if the kernel has it. An error that wraps plane.ErrUnsupported is complete
	// without the name.
	try func() error
}

// lacking tries what is needed and names everything that is missing.
func lacking(needs []need) error {
	var errs []error
	for _, n := range needs {
		switch err := n.try(); {
		case err == nil:
		case errors.Is(err, ebpf.ErrNotSupported):
			errs = append(errs, fmt.Errorf("this kernel lacks %s: %w", n.name, plane.ErrUnsupported))
		case errors.Is(err, plane.ErrUnsupported):
			errs = append(errs, err)
		default:
			errs = append(errs, fmt.Errorf("%s: %w", n.name, explain(err)))
		}
	}
	return errors.Join(errs...)
}

// probe finds what the kernel lacks for a family. It loads the programs and forgets them; if that
// fails, it tries each feature by itself.
func probe(f lb.Family, cgroup string) error {
	if err := lacking(hookNeeds(f, cgroup)); err != nil {
		return err
	}
	if err := enough(emptyBytes); err != nil {
		return fmt.Errorf("make the maps of the programs: %w", shortage(err, emptyBytes))
	}
	obj, err := load(f, "", false)
	if err == nil {
		return obj.Close()
	}
	if missing := lacking(programNeeds(f)); missing != nil {
		return missing
	}
	return err
}

// hookNeeds are the hooks of a family. To list their programs shows that the kernel has them.
func hookNeeds(f lb.Family, cgroup string) (all []need) {
	for _, h := range hooks(f) {
		all = append(all, need{"the cgroup hook " + h.name + " (CONFIG_CGROUP_BPF)", func() error {
			_, err := programsAt(cgroup, h, false)
			if errors.Is(err, unix.EINVAL) {
				return ebpf.ErrNotSupported
			}
			return err
		}})
	}
	return all
}

// programNeeds are the types of maps and the functions of the kernel that the programs use.
func programNeeds(f lb.Family) (all []need) {
	spec, err := specOf(f)
	if err != nil {
		return []need{{"", func() error { return err }}}
	}
	types := map[ebpf.MapType]bool{}
	for _, m := range spec.Maps {
		types[m.Type] = true
	}
	for t := range types {
		all = append(all, need{"BPF maps of type " + t.String(), func() error { return features.HaveMapType(t) }})
	}
	slices.SortFunc(all, func(a, b need) int { return strings.Compare(a.name, b.name) })
	for _, fn := range []asm.BuiltinFunc{asm.FnSkStorageGet, asm.FnGetNetnsCookie, asm.FnGetCurrentAncestorCgroupId,
		asm.FnGetCurrentPidTgid, asm.FnGetCurrentComm, asm.FnRingbufOutput, asm.FnKtimeGetNs} {
		all = append(all, need{"the function " + fn.String() + " in programs of sockets",
			func() error { return features.HaveProgramHelper(ebpf.CGroupSockAddr, fn) }})
	}
	return all
}

// attempts is how often a list of programs is tried while other programs are attached.
const attempts = 100

// programsAt lists the programs that are attached to a cgroup itself, or those above it too.
func programsAt(cgroup string, h hook, above bool) (*link.QueryResult, error) {
	dir, err := os.Open(cgroup)
	if err != nil {
		return nil, fmt.Errorf("list the programs of %s: %w", h.name, err)
	}
	defer dir.Close()
	query := link.QueryOptions{Target: int(dir.Fd()), Attach: h.attach,
		QueryFlags: uint32(flag(above)) * unix.BPF_F_QUERY_EFFECTIVE}
	for range attempts {
		var all *link.QueryResult
		if all, err = link.QueryPrograms(query); err == nil {
			return all, nil
		}
		if !errors.Is(err, unix.ENOSPC) { // else one came after they were counted
			break
		}
	}
	return nil, fmt.Errorf("list the programs of %s at %s: %w", h.name, cgroup, err)
}

// explain adds what a bare error of the kernel does not say.
func explain(err error) error { return explainFor(err, "CAP_NET_ADMIN", "CAP_BPF") }

// explainIDs is explain for calls that need CAP_SYS_ADMIN: those that open objects of others by
// their numbers, enter namespaces or mount.
func explainIDs(err error) error { return explainFor(err, "CAP_SYS_ADMIN") }

func explainFor(err error, need ...string) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (%s)", err, whyRefused(need))
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w (%s)", err, memoryLimit())
	}
	return err
}

// capabilities are those of linux/capability.h that the mode needs.
var capabilities = map[string]uint{"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_BPF": unix.CAP_BPF,
	"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN}

// whyRefused says why the kernel may refuse this process a call that needs those capabilities.
func whyRefused(need []string) string {
	var missing []string
	var have [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if unix.Capget(&header, &have[0]) == nil {
		has := func(bit uint) bool { return have[bit/32].Effective&(1<<(bit%32)) != 0 }
		for _, name := range need {
			if !has(capabilities[name]) && !has(unix.CAP_SYS_ADMIN) {
				missing = append(missing, name)
			}
		}
	}
	if len(missing) > 0 {
		return "the process lacks " + strings.Join(missing, " and ")
	}
	lockdown, _ := os.ReadFile("/sys/kernel/security/lockdown")
	return refusal(string(lockdown))
}

// refusal says what refuses bpf() to a process with all capabilities. lockdown is the content of
// that file.
func refusal(lockdown string) string {
	if strings.Contains(lockdown, "[confidentiality]") {
		return "kernel lockdown is at level confidentiality, which may forbid eBPF: boot with lockdown=integrity or " +
			"without it"
	}
	return "a seccomp filter or a security module refuses bpf()"
}

// raiseMemlock lifts the limit of locked memory, which counts maps on kernels before 5.11.
func raiseMemlock() error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("raise the limit of locked memory (RLIMIT_MEMLOCK, which needs CAP_SYS_RESOURCE): %w", err)
	}
	return nil
}

// shortage is an error of a map for which there is no memory. It says how much that map takes, and
// how much is missing, if a limit is known.
func shortage(err error, bytes uint64) error {
	var lock unix.Rlimit
	switch {
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.E2BIG):
		limit, used, file := cgroupMemory(ownCgroups, cgroupMounts)
		return fmt.Errorf("%w (%s)", err, missing(bytes, limit, used, file))
	case errors.Is(err, unix.EPERM) && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lock) == nil &&
		lock.Cur != unix.RLIM_INFINITY:
		return fmt.Errorf("%w (%s)", err, missing(bytes, lock.Cur, 0, "RLIMIT_MEMLOCK"))
	}
	return explain(err)
}

// emptyBytes is about what the kernel allocates for the programs of a family and empty tables.
const emptyBytes = 6 << 20

// enough is ENOMEM if the memory limit of this process leaves less: at the limit the kernel would
// end the process, not only refuse a map.
func enough(bytes uint64) error {
	if features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnKtimeGetCoarseNs) != nil {
		return nil // before Linux 5.11, which has this function, RLIMIT_MEMLOCK counts maps
	}
	limit, used, _ := cgroupMemory(ownCgroups, cgroupMounts)
	if limit > 0 && used+bytes > limit {
		return unix.ENOMEM
	}
	return nil
}

// ownCgroups lists the cgroups of the thread, whose memory is charged; cgroupMounts has theirs.
const ownCgroups, cgroupMounts = "/proc/thread-self/cgroup", "/sys/fs/cgroup"

// socketBytes is about what the kernel allocates for the storage of an unconnected UDP socket;
// others take half of that.
const socketBytes = 768

// most returns how many sockets may have storage. The kernel charges storage to the process that
// made the maps, so all take an eighth of its memory limit at most, for each family.
func most(limit uint64) int32 {
	if limit == 0 {
		return 1 << 20
	}
	return max(1024, int32(min(limit/8/socketBytes, 1<<20)))
}

// memoryLimit says what the limit of this process is.
func memoryLimit() string {
	limit, used, file := cgroupMemory(ownCgroups, cgroupMounts)
	if limit == 0 {
		return "the node has no memory left for BPF maps"
	}
	return fmt.Sprintf("%s is %d KiB, and %d KiB are in use", file, limit/1024, used/1024)
}

// missing says how much memory a map of that size lacks; limit 0 is none.
func missing(bytes, limit, used uint64, name string) string {
	free := uint64(0)
	if limit > used {
		free = limit - used
	}
	switch {
	case limit == 0:
		return fmt.Sprintf("it takes up to %d KiB, which the node has not", bytes/1024)
	case bytes > free:
		return fmt.Sprintf("it takes up to %d KiB, and %s of %d KiB leaves %d KiB: raise it by %d KiB",
			bytes/1024, name, limit/1024, free/1024, (bytes-free+1023)/1024)
	}
	return fmt.Sprintf("it takes up to %d KiB; %s is %d KiB, and leaves %d KiB", bytes/1024, name, limit/1024,
		free/1024)
}

// cgroupMemory returns the tightest memory limit of the process's cgroups, its use without caches,
// and its file. The limit is 0 without one.
func cgroupMemory(proc, root string) (limit, used uint64, file string) {
	text, err := os.ReadFile(proc)
	if err != nil {
		return 0, 0, ""
	}
	for line := range strings.Lines(string(text)) {
		controllers, path, _ := strings.Cut(strings.TrimSpace(line[strings.Index(line, ":")+1:]), ":")
		base, maxFile, now := root, "memory.max", "memory.current"
		if controllers == "memory" {
			base, maxFile, now = filepath.Join(root, "memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
		} else if controllers != "" {
			continue
		}
		for at := filepath.Join("/", path); ; at = filepath.Dir(at) {
			most, in := number(filepath.Join(base, at, maxFile)), number(filepath.Join(base, at, now))
			in -= min(in, cached(filepath.Join(base, at, "memory.stat")))
			if most > 0 && most < 1<<60 && (limit == 0 || most-min(in, most) < limit-min(used, limit)) {
				limit, used, file = most, in, filepath.Join(base, at, maxFile)
			}
			if at == "/" {
				break
			}
		}
	}
	return limit, used, file
}

// cached returns how much of a cgroup's memory are files, which the kernel gives back.
func cached(stat string) (n uint64) {
	text, err := os.ReadFile(stat)
	if err != nil {
		return 0
	}
	all := map[string]uint64{} // in version 1 those with total_ have the cgroups below
	for line := range strings.Lines(string(text)) {
		var name string
		var bytes uint64
		if _, err := fmt.Sscan(line, &name, &bytes); err == nil {
			name = strings.TrimPrefix(name, "total_")
			all[name] = max(all[name], bytes)
		}
	}
	return all["inactive_file"] + all["active_file"]
}

// number returns the number in a file, and 0 for none.
func number(file string) uint64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil { // "max"
		return 0
	}
	return n
}
