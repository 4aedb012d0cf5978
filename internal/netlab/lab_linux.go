package netlab

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Options configures a lab. The zero value is a full, unnamed lab with routed pod links.
type Options struct {
	// Name distinguishes named labs; letters, digits and dashes. Empty: "lab".
	Name string
	// Named publishes the hosts for `ip netns exec` as kp-<Name>-<host>. It first removes the
	// remains of a killed process under the same name; New fails if a live process has a lab of
	// that name.
	Named bool
	// Bridge joins a node's pod links in the bridge cbr0.
	Bridge bool
	// NoNode2 leaves out node2 and its pods, NoClient the client.
	NoNode2, NoClient bool
	// Cgroup gives node1 and its pods a cgroup of their own ([Lab.Cgroup]).
	Cgroup bool
}

// Lab is a running lab. Its methods may be called from any goroutine.
type Lab struct {
	opts  Options
	hosts []Host
	ns    map[string]netns.NsHandle // by host name, and "switch"

	cgroup *cgroup // nil without one

	published []string     // names under runNetns
	lock      net.Listener // holds the name of a Named lab

	mu      sync.Mutex
	closed  bool
	closers map[closer]struct{} // responders, open connections, running commands

	baitMu sync.Mutex
	baits  map[bait]bool // the ports of BaitPort
}

type closer interface{ Close() error }

// switchHost is the namespace of the LAN's bridge.
const switchHost = "switch"

const runNetns = "/run/netns"

// New builds a lab. The caller must Close it. It needs root
// (CAP_NET_ADMIN and CAP_SYS_ADMIN), IPv6, veth and bridges.
func New(opts Options) (*Lab, error) {
	opts.Name = cmp.Or(opts.Name, "lab")
	l := &Lab{opts: opts, ns: map[string]netns.NsHandle{}, closers: map[closer]struct{}{}, baits: map[bait]bool{}}
	for _, h := range hosts {
		if (opts.NoNode2 && h.Node == Node2) || (opts.NoClient && h.Name == Client) {
			continue
		}
		l.hosts = append(l.hosts, h)
	}
	if err := l.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("netlab: build lab %s: %w", opts.Name, err), l.Close())
	}
	return l, nil
}

func (l *Lab) build() error {
	if l.opts.Named {
		if err := l.claimName(); err != nil {
			return err
		}
	}
	if err := l.makeNamespaces(); err != nil {
		return err
	}
	if l.opts.Cgroup {
		var err error
		l.cgroup, err = newCgroup()
		if err != nil {
			return err
		}
	}
	if err := l.wire(); err != nil {
		return err
	}
	return l.waitReady()
}

// claimName ensures that no live process has a lab of this name, and removes the remains of a dead
// one. The claim is an abstract socket, which the kernel closes with the process.
func (l *Lab) claimName() error {
	lock, err := net.Listen("unix", "@kp-netlab-"+l.opts.Name)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("a lab named %s is in use by another process", l.opts.Name)
	}
	if err != nil {
		return fmt.Errorf("claim the name: %w", err)
	}
	l.lock = lock
	if err := shareNames(); err != nil {
		return err
	}
	for _, h := range hosts {
		if err := unpublish(l.publicName(h.Name)); err != nil {
			return err
		}
	}
	return unpublish(l.publicName(switchHost))
}

func (l *Lab) publicName(host string) string { return "kp-" + l.opts.Name + "-" + host }

// shareNames makes /run/netns a shared mount, as `ip netns add` does. If it were left to that, its
// mount would cover ours, and our names could not be removed any more.
func shareNames() error {
	if err := os.MkdirAll(runNetns, 0o755); err != nil {
		return fmt.Errorf("make the folder of named namespaces: %w", err)
	}
	share := func() error { return unix.Mount("", runNetns, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err := share()
	if err == unix.EINVAL { // it is no mount yet
		err = unix.Mount(runNetns, runNetns, "none", unix.MS_BIND|unix.MS_REC, "")
		if err == nil {
			err = share()
		}
	}
	if err != nil {
		return fmt.Errorf("share the mount of %s: %w", runNetns, err)
	}
	return nil
}

// unpublish removes a name below /run/netns; a missing one is fine.
func unpublish(name string) error {
	path := filepath.Join(runNetns, name)
	for { // several mounts may lie upon each other
		err := unix.Unmount(path, unix.MNT_DETACH)
		if err == unix.ENOENT || err == unix.EINVAL { // EINVAL: the file exists, but no mount
			break
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the name of a namespace (if it is busy, a later mount of %s covers it: choose "+
			"another name for the lab): %w", runNetns, err)
	}
	return nil
}

// makeNamespaces creates and configures (sysctls) all namespaces on one thread.
func (l *Lab) makeNamespaces() error {
	return onThread(func() error {
		names := []string{switchHost}
		for _, h := range l.hosts {
			names = append(names, h.Name)
		}
		for _, name := range names {
			if err := l.makeNamespace(name); err != nil {
				return fmt.Errorf("namespace of %s: %w", name, err)
			}
		}
		return nil
	})
}

// makeNamespace creates a host's namespace and leaves the thread in it.
func (l *Lab) makeNamespace(name string) error {
	var ns netns.NsHandle
	var err error
	if l.opts.Named {
		l.published = append(l.published, l.publicName(name))
		ns, err = netns.NewNamed(l.publicName(name))
	} else {
		ns, err = netns.New()
	}
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	l.ns[name] = ns
	return setSysctls(name)
}

// onThread runs fn on a locked thread and puts the thread back into the namespace
// it was in.
func onThread(fn func() error) (err error) {
	before, err := lockThread()
	if err != nil {
		return err
	}
	defer func() {
		if e := returnTo(before); e != nil {
			err = errors.Join(err, e)
		}
	}()
	return fn()
}

// lockThread locks the goroutine to its thread, and returns the namespace of that.
func lockThread() (netns.NsHandle, error) {
	runtime.LockOSThread()
	ns, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return ns, fmt.Errorf("open the thread's namespace: %w", err)
	}
	return ns, nil
}

// returnTo puts the thread back into the namespace that lockThread returned. If that fails, the
// thread stays locked, so that it dies with the goroutine instead of serving another one from the
// wrong network.
func returnTo(ns netns.NsHandle) error {
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("return to the thread's namespace: %w", err)
	}
	runtime.UnlockOSThread()
	return nil
}

// Do runs fn on a thread that is in the host's namespace. Sockets, /proc/sys/net
// and netlink handles that fn opens belong to that host for ever; goroutines that
// fn starts do not. The host "switch" is the LAN's bridge.
func (l *Lab) Do(host string, fn func() error) error {
	ns, err := l.dup(host)
	if err != nil {
		return err
	}
	if l.Cgroup(host) != "" {
		defer unix.Close(int(ns))
		return l.cgroup.do(host, ns, fn)
	}
	return onThread(func() error {
		err := netns.Set(ns)
		unix.Close(int(ns))
		if err != nil {
			return fmt.Errorf("netlab: enter %s: %w", host, err)
		}
		return fn()
	})
}

// Namespace returns the host's namespace handle, for netlink handles
// (netlink.NewHandleAt, nftables.WithNetNSFd). The lab owns it: do not close it.
func (l *Lab) Namespace(host string) (netns.NsHandle, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.namespace(host)
}

// dup returns a descriptor of the host's namespace that a Close cannot take away.
func (l *Lab) dup(host string) (netns.NsHandle, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ns, err := l.namespace(host)
	if err != nil {
		return ns, err
	}
	fd, err := unix.FcntlInt(uintptr(ns), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return netns.None(), fmt.Errorf("netlab: duplicate the handle of %s: %w", host, err)
	}
	return netns.NsHandle(fd), nil
}

// namespace finds a host's handle; l.mu is held.
func (l *Lab) namespace(host string) (netns.NsHandle, error) {
	if l.closed {
		return netns.None(), fmt.Errorf("netlab: host %s: %w", host, os.ErrClosed)
	}
	ns, ok := l.ns[host]
	if !ok {
		return netns.None(), fmt.Errorf("netlab: this lab has no host %q", host)
	}
	return ns, nil
}

// Hosts returns the hosts that this lab has.
func (l *Lab) Hosts() []Host { return slices.Clone(l.hosts) }

// adopt makes Close close c; it fails if the lab is closed already.
func (l *Lab) adopt(c closer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("netlab: %w", os.ErrClosed)
	}
	l.closers[c] = struct{}{}
	return nil
}

func (l *Lab) forget(c closer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.closers, c)
}

// Close ends everything that runs in the lab (it kills commands that Command started, and closes
// responders and connections) and removes the lab. It may be called more than once, also while
// other methods run; later calls do nothing.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	closers := l.closers
	l.closers = map[closer]struct{}{}
	l.mu.Unlock()

	var errs []error
	for c := range closers {
		errs = append(errs, c.Close())
	}
	if l.cgroup != nil {
		errs = append(errs, l.cgroup.close())
	}
	for _, name := range l.published {
		errs = append(errs, unpublish(name))
	}
	for host, ns := range l.ns {
		if err := unix.Close(int(ns)); err != nil {
			errs = append(errs, fmt.Errorf("netlab: close %s: %w", host, err))
		}
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	return errors.Join(errs...)
}

// LocalPorts makes the kernel of a host choose ports from first to last only for sockets without a
// fixed port.
func (l *Lab) LocalPorts(host string, first, last uint16) error {
	err := l.Do(host, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "%d %d", first, last), 0)
	})
	if err != nil {
		return fmt.Errorf("netlab: local ports of %s: %w", host, err)
	}
	return nil
}
