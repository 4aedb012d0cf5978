package ipvs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// loadScheduler loads the modules lblc and lblcr, which the kernel must not load for a virtual
// server. Loading them waits until no network namespace is being removed, and that waits for the
// lock of IPVS. The request for a virtual server holds this lock: a deadlock of the whole node. A
// query for a device of the module's name loads it without a lock, if this process has
// CAP_SYS_MODULE.
func loadScheduler(name string) {
	if name != "lblc" && name != "lblcr" {
		return
	}
	module := "ip_vs_" + name
	if _, err := os.Stat("/sys/module/" + module); err == nil {
		return
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if ifr, err := unix.NewIfreq(module); err == nil {
		_ = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr)
	}
}

// hasScheduler reports whether the kernel has a scheduler, and IPVS for the family. The kernel has
// no list, so it creates a virtual server at a documentation address, and removes it (DP-35). That
// loads a module.
func hasScheduler(ctx context.Context, kernel *ipvs.Conn, f lb.Family, name string) (bool, error) {
	s := ipvs.Service{ServiceID: probeID(f), Scheduler: name, Flags: schedulerFlags(name)}
	s.Netmask = s.Family.WholeAddress()
	loadScheduler(name)
	try := func(verb ipvs.Verb) error { return kernel.Do(ctx, []ipvs.Op{{Verb: verb, Service: s}}, nil) }
	remove := func() error {
		// ESRCH: another proxy probes too.
		if err := try(ipvs.DelService); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("try scheduler %s: %w", name, err)
		}
		return nil
	}
	err := try(ipvs.NewService)
	if errors.Is(err, unix.EEXIST) { // left by a proxy that ended during its probe
		if err := remove(); err != nil {
			return false, err
		}
		err = try(ipvs.NewService)
	}
	switch {
	case err == nil, errors.Is(err, unix.EEXIST):
		return true, remove()
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case errors.Is(err, unix.EAFNOSUPPORT):
		return false, fmt.Errorf("IPVS of this kernel has no %s (CONFIG_IP_VS_IPV6)", f)
	default:
		return false, fmt.Errorf("try scheduler %s: %w", name, err)
	}
}

// checkScheduler returns an error if the kernel does not have the scheduler. It wraps
// [mode.ErrAsked] if the configuration names it and the kernel has others. Otherwise the kernel
// lacks modules of IPVS, and the process uses another mode.
func checkScheduler(ctx context.Context, kernel *ipvs.Conn, f lb.Family, asked string) error {
	name := schedulerOf(asked)
	there, err := hasScheduler(ctx, kernel, f, name)
	if there || err != nil {
		return err
	}
	lacks := fmt.Sprintf("this kernel has no scheduler %q for IPVS (the module ip_vs_%s)", name, name)
	var others []string
	for _, other := range schedulers() {
		if other == name {
			continue
		}
		there, err := hasScheduler(ctx, kernel, f, other)
		if err != nil {
			return fmt.Errorf("%s: %w", lacks, err)
		}
		if there {
			others = append(others, other)
		}
	}
	switch {
	case len(others) == 0:
		return fmt.Errorf("%s, and no other", lacks)
	case asked == "":
		return fmt.Errorf("%s; it has %s: choose one with --ipvs-scheduler (ipvs.scheduler)", lacks,
			strings.Join(others, ", "))
	default:
		return fmt.Errorf("--ipvs-scheduler (ipvs.scheduler): %w: %s; it has %s", mode.ErrAsked, lacks,
			strings.Join(others, ", "))
	}
}
