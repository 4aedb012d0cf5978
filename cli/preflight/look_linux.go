package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/system"
	"kube-proxy/internal/thread"
	"kube-proxy/mode"
)

// Look runs all probes on this machine, in the network namespace of the process. It returns within
// a few times Setup.Timeout, even if probes hang.
func Look(ctx context.Context, s *Setup) *Facts {
	f := &Facts{OS: runtime.GOOS}
	m := modules{proc: "/proc", sys: "/sys", lib: "/lib/modules"}
	var looking sync.WaitGroup
	abilities := make([][]Ability, len(s.Modes))
	for i, of := range s.Modes {
		if of.Here() {
			looking.Go(func() { abilities[i] = tryMode(ctx, s, of, m) })
		}
	}
	look(ctx, s, &looking, &f.Kernel, func(context.Context) (string, error) {
		v, err := kernel.Tree{}.Running()
		return v.String(), err
	})
	look(ctx, s, &looking, &f.Lacks, lacks)
	look(ctx, s, &looking, &f.OwnNamespace, ownNamespace)
	look(ctx, s, &looking, &f.Chains, func(context.Context) ([]Chain, error) {
		if !s.LoadModules && len(m.missing("nfnetlink", "nf_tables")) > 0 {
			return nil, nil // not requested yet
		}
		return nftChains()
	})
	look(ctx, s, &looking, &f.Legacy, legacyChains)
	look(ctx, s, &looking, &f.Writer, func(context.Context) (string, error) { return writer(s.WriterGroup, m) })
	look(ctx, s, &looking, &f.VirtualServers, virtualServers)
	look(ctx, s, &looking, &f.BPF, kernel.BPFPrograms)
	look(ctx, s, &looking, &f.Links, links)
	look(ctx, s, &looking, &f.Routes, routes)
	look(ctx, s, &looking, &f.Sockets, listening)
	look(ctx, s, &looking, &f.Sysctls, func(context.Context) (map[string]string, error) {
		return readSysctls(kernel.Sysctl)
	})
	look(ctx, s, &looking, &f.Elsewhere, func(context.Context) ([]Assignment, error) { return sysctlFiles("/") })
	look(ctx, s, &looking, &f.ReadOnly, func(context.Context) (bool, error) {
		err := unix.Access("/proc/sys/net/ipv4/ip_forward", unix.W_OK)
		return errors.Is(err, unix.EROFS), nil
	})
	look(ctx, s, &looking, &f.Memory, memory)
	look(ctx, s, &looking, &f.Unsynchronised, func(context.Context) (bool, error) {
		var t unix.Timex // no mode is set, so it reads alone
		state, err := unix.Adjtimex(&t)
		return t.Status&unix.STA_UNSYNC != 0 || state == unix.TIME_ERROR, err
	})
	look(ctx, s, &looking, &f.Descriptors, func(context.Context) (uint64, error) {
		var r unix.Rlimit
		err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r)
		return r.Max, err
	})
	looking.Go(func() { f.Programs = programs(ctx, s, m) })
	looking.Go(func() { f.Cluster = s.cluster(ctx) })
	looking.Go(func() { f.InTheWay = s.inTheWay(ctx) })
	looking.Wait()
	for _, of := range abilities {
		f.Abilities = append(f.Abilities, of...)
	}
	f.Changes = within(ctx, s.timeout(), func(context.Context) ([]system.Change, error) { return changes(s, f) })
	return f
}

// glance runs the probes of [Glance].
func glance(ctx context.Context, s *Setup, cluster *Cluster) *Facts {
	f := &Facts{OS: runtime.GOOS, Cluster: cluster}
	var looking sync.WaitGroup
	look(ctx, s, &looking, &f.Chains, func(context.Context) ([]Chain, error) { return nftChains() })
	look(ctx, s, &looking, &f.Links, links)
	look(ctx, s, &looking, &f.Sysctls, func(context.Context) (map[string]string, error) {
		return readSysctls(kernel.Sysctl)
	})
	looking.Wait()
	return f
}

// look runs a probe in parallel with the others.
func look[T any](ctx context.Context, s *Setup, all *sync.WaitGroup, at *Known[T],
	probe func(context.Context) (T, error)) {
	all.Go(func() { *at = within(ctx, s.timeout(), probe) })
}

// tryMode finds out whether a mode can serve each of the families.
func tryMode(ctx context.Context, s *Setup, of mode.Mode, m modules) (all []Ability) {
	for _, fam := range s.Families {
		a := Ability{Mode: of.Name, Family: fam}
		if of.Modules != nil && !s.LoadModules {
			a.Modules = m.missing(of.Modules(s.with(fam))...)
		}
		switch {
		case len(a.Modules) > 0:
			a.Loadable = m.loadable(a.Modules)
			a.Unasked = fmt.Errorf("trying it would load %s", strings.Join(a.Modules, ", "))
		default:
			k := within(ctx, s.timeout(), func(context.Context) (found Ability, err error) {
				err = inEmptyNamespace(func() {
					if found.Able = of.Able(s.with(fam)); found.Able == nil && of.Reduced != nil {
						found.Reduced = of.Reduced(s.with(fam))
					}
				})
				return found, err
			})
			a.Able, a.Reduced, a.Unasked = k.Value.Able, k.Value.Reduced, k.Err
		}
		all = append(all, a)
	}
	return all
}

// inEmptyNamespace runs f on a separate thread in a new network namespace, which ends with it:
// objects that the kernel creates for the test end too.
func inEmptyNamespace(f func()) (err error) {
	thread.Own(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("needs root, or CAP_SYS_ADMIN, for a temporary network namespace: %w", err)
			return
		}
		f()
	})
	return err
}

// changes returns the sysctls that the mode would change.
func changes(s *Setup, f *Facts) ([]system.Change, error) {
	choice, err := choose(s, f)
	if err != nil {
		return nil, fmt.Errorf("no mode can run: %w", err)
	}
	settings, err := s.Host(choice.Mode)
	if err != nil {
		return nil, err
	}
	return system.Host{}.Plan(settings)
}

// modules answers whether the kernel has modules, without asking for them.
type modules struct{ proc, sys, lib string }

// missing returns those of the modules that the kernel may load on demand: they are not there, and
// not built in. A kernel that loads none is always safe to ask.
func (m modules) missing(names ...string) (missing []string) {
	_, list := os.Stat(filepath.Join(m.proc, "modules"))
	loader, program := os.ReadFile(filepath.Join(m.proc, "sys/kernel/modprobe"))
	off, _ := os.ReadFile(filepath.Join(m.proc, "sys/kernel/modules_disabled"))
	noLoader := program != nil || strings.TrimSpace(string(loader)) == ""
	if list != nil && noLoader || strings.TrimSpace(string(off)) == "1" {
		return nil
	}
	builtIn := m.listed("modules.builtin")
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(m.sys, "module", name)); err != nil && !builtIn[name] {
			missing = append(missing, name)
		}
	}
	return missing
}

// loadable reports whether all of the modules are among those on disk.
func (m modules) loadable(names []string) bool {
	onDisk := m.listed("modules.dep")
	return !slices.ContainsFunc(names, func(name string) bool { return !onDisk[name] })
}

// listed returns the modules in a list of the running kernel, such as
// kernel/net/netfilter/nf_tables.ko.
func (m modules) listed(list string) map[string]bool {
	release, err := os.ReadFile(filepath.Join(m.proc, "sys/kernel/osrelease"))
	if err != nil {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(m.lib, strings.TrimSpace(string(release)), list))
	if err != nil {
		return nil
	}
	all := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		name, _, _ := strings.Cut(filepath.Base(file), ".ko")
		all[strings.ReplaceAll(name, "-", "_")] = true
	}
	return all
}

// capabilities of a proxy, by their number, with their use.
var capabilities = []struct {
	bit  uint
	name string
}{{unix.CAP_NET_ADMIN, "NET_ADMIN"}, {unix.CAP_NET_RAW, "NET_RAW"}}

func lacks(context.Context) (all []string, err error) {
	for _, f := range words("/proc/self/status") {
		if f[0] != "CapEff:" || len(f) < 2 {
			continue
		}
		has, err := strconv.ParseUint(f[1], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("read the capabilities of this process: %w", err)
		}
		for _, c := range capabilities {
			if has&(1<<c.bit) == 0 {
				all = append(all, c.name)
			}
		}
		return all, nil
	}
	return nil, errors.New("/proc/self/status has no capabilities")
}

func ownNamespace(context.Context) (bool, error) {
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return false, err
	}
	first, err := os.Readlink("/proc/1/ns/net")
	if err != nil {
		return false, needsRoot(err)
	}
	return ours != first, nil
}

// writer returns the kube-proxy that has the right to write the rules of this namespace. The kernel
// shows it in a file, which exists if the module is loaded.
func writer(group uint16, m modules) (string, error) {
	if _, err := os.Stat("/proc/thread-self/net/netfilter/nfnetlink_log"); err != nil {
		return "", nil // it cannot be taken
	}
	if len(m.missing("nfnetlink")) > 0 {
		return "", nil
	}
	l, err := kernel.OpenLock(group)
	if err != nil {
		return "", err
	}
	defer l.Close()
	if h := l.Holder(); h != (kernel.Holder{}) {
		return h.String(), nil
	}
	return "", nil
}

func memory(context.Context) (uint64, error) {
	for _, f := range words("/proc/meminfo") {
		if f[0] == "MemTotal:" && len(f) > 1 {
			kib, err := strconv.ParseUint(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemTotal")
}

// words returns the words of each non-empty line of a file; none if it cannot be read.
func words(file string) (all [][]string) {
	data, _ := os.ReadFile(file)
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 0 {
			all = append(all, f)
		}
	}
	return all
}

// needsRoot adds the needed privilege to a permission error.
func needsRoot(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("needs root: %w", err)
	}
	return err
}
