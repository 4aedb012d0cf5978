//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// attachment is a program at a hook of a cgroup.
type attachment struct {
	hook    hook
	program ebpf.ProgramID
	link    link.ID // 0 for none
	cgroup  string  // where it is attached without a link; "" if that is not visible
}

// programsOf returns the programs that are attached.
func programsOf(all []attachment) (ids []ebpf.ProgramID) {
	for _, a := range all {
		ids = append(ids, a.program)
	}
	return ids
}

// linked returns what links attach to cgroups at our hooks, wherever these are. It needs
// CAP_SYS_ADMIN.
func linked() (all []attachment, err error) {
	at := map[ebpf.AttachType]hook{}
	for _, h := range hooks(lb.IPv4) { // of both families
		at[h.attach] = h
	}
	links := &link.Iterator{}
	defer func() { links.Close() }()
	next := func() bool {
		for range attempts {
			if links.Next() {
				return true
			}
			if !errors.Is(links.Err(), unix.EAGAIN) { // else a process is making a link
				return false
			}
			links = &link.Iterator{ID: links.ID}
			time.Sleep(time.Millisecond)
		}
		return links.Next()
	}
	for next() {
		info, err := links.Link.Info()
		if err != nil {
			return nil, fmt.Errorf("look at link %d: %w", links.ID, err)
		}
		cgroup := info.Cgroup()
		if cgroup == nil || cgroup.CgroupId == 0 { // 0: it is detached
			continue
		}
		if h, ours := at[ebpf.AttachType(cgroup.AttachType)]; ours {
			all = append(all, attachment{hook: h, program: info.Program, link: links.ID})
		}
	}
	if err := links.Err(); err != nil && !lacksBPF(err) {
		return nil, fmt.Errorf("list the links of eBPF programs: %w", explainIDs(err))
	}
	return all, nil
}

// atHooks returns the programs at these hooks of a cgroup, of those below it and, without their
// place, of those above it. The error satisfies lacksBPF if the kernel seems to have none of the
// hooks; a seccomp filter looks the same.
func atHooks(root string, hooks []hook) (all []attachment, err error) {
	var known []hook // to this kernel
	var lacks error
	for _, h := range hooks {
		at, err := programsAt(root, h, true)
		if lacksBPF(err) {
			lacks = err
			continue
		}
		if err != nil {
			return nil, err
		}
		known = append(known, h)
		for _, p := range at.Programs {
			all = append(all, attachment{hook: h, program: p.ID})
		}
	}
	if len(known) == 0 {
		return nil, lacks
	}
	err = eachCgroup(root, func(path string) error {
		for _, h := range known {
			at, err := programsAt(path, h, false)
			if err != nil {
				return err
			}
			for _, p := range at.Programs {
				all = slices.DeleteFunc(all, func(a attachment) bool {
					return a.cgroup == "" && a.hook.name == h.name && a.program == p.ID
				})
				all = append(all, attachment{hook: h, program: p.ID, cgroup: path})
			}
		}
		return nil
	})
	return all, err
}

// lacksBPF reports whether an error means that the kernel has no such hook or no eBPF at all.
func lacksBPF(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, ebpf.ErrNotSupported)
}

// eachCgroup calls f for a cgroup and those below it. It passes over one that is removed meanwhile,
// and one that only others may open: a process without root meets these, and it sees programs there
// by their links or by the sockets that they redirect.
func eachCgroup(root string, f func(path string) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = f(path)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV):
			return nil
		case errors.Is(err, unix.EACCES) && path != root:
			return fs.SkipDir
		}
		return err
	})
}

// attachments returns all that is attached at our hooks: by links anywhere, and without links at
// the visible cgroups.
func attachments() ([]attachment, error) {
	root, err := findCgroup()
	if err != nil {
		return linked() // which need no visible hierarchy
	}
	direct, err := atHooks(root, hooks(lb.IPv4))
	if lacksBPF(err) {
		return linked() // to distinguish a kernel without eBPF from a filter
	}
	if err != nil {
		return nil, err
	}
	if len(direct) == 0 { // most nodes have none, and most processes may not list links
		all, err := linked()
		if errors.Is(err, unix.EPERM) {
			return nil, nil
		}
		return all, err
	}
	all, err := linked()
	if err != nil {
		return nil, err
	}
	for _, d := range direct {
		byLink := func(a attachment) bool { return a.hook.name == d.hook.name && a.program == d.program }
		if !slices.ContainsFunc(all, byLink) {
			all = append(all, d)
		}
	}
	return all, nil
}

// installed are the attached programs of a proxy of one family.
type installed struct {
	owner
	attached []attachment
}

// installedHere returns the programs of any build that were attached by proxies of a network
// namespace, and those whose proxy is unknown because their settings are gone: these serve no new
// connection.
func installedHere(all []attachment) (here []installed, err error) {
	owners, err := identify(programsOf(all))
	if err != nil || len(owners) == 0 {
		return nil, err
	}
	cookie, err := netnsCookie()
	if err != nil {
		return nil, err
	}
	sets := map[ebpf.MapID]*installed{}
	for _, a := range all {
		o, ours := owners[a.program]
		if !ours || o.node != cookie && o.config != 0 {
			continue
		}
		if sets[o.config] == nil {
			sets[o.config] = &installed{owner: o}
		}
		s := sets[o.config]
		s.attached = append(s.attached, a)
		s.family = max(s.family, o.family)
	}
	for _, config := range slices.Sorted(maps.Keys(sets)) {
		here = append(here, *sets[config])
	}
	return here, nil
}

// detach detaches a program, even if its link is open or pinned elsewhere.
func (a attachment) detach() error {
	switch {
	case a.link != 0:
		l, err := link.NewFromID(a.link)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("open the link of %s: %w", a.hook.name, explainIDs(err))
		}
		defer l.Close()
		if err := l.(interface{ Detach() error }).Detach(); err != nil {
			return fmt.Errorf("detach the link of %s: %w", a.hook.name, explain(err))
		}
		return nil
	case a.cgroup == "":
		return fmt.Errorf("detach %s: it is attached to a cgroup that this process does not see: run it with the "+
			"host's /sys/fs/cgroup mounted", a.hook.name)
	}
	dir, err := os.Open(a.cgroup)
	if err != nil {
		return fmt.Errorf("detach %s: %w", a.hook.name, err)
	}
	defer dir.Close()
	p, err := ebpf.NewProgramFromID(a.program)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the program of %s: %w", a.hook.name, explainIDs(err))
	}
	defer p.Close()
	err = link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(dir.Fd()), Attach: a.hook.attach, Program: p})
	if err != nil {
		return fmt.Errorf("detach %s from the cgroup %s: %w", a.hook.name, a.cgroup, explain(err))
	}
	return nil
}

// connecting are the hooks by which sockets get endpoints. They are detached first: from then on
// new connections take the packet path, while replies are still translated.
var connecting = []string{"connect4", "connect6", "sendmsg4", "sendmsg6"}

// installedOf asks the kernel for the programs of proxies of this network namespace in these
// families.
func installedOf(families []lb.Family) ([]installed, error) {
	all, err := attachments()
	if err != nil {
		return nil, err
	}
	here, err := installedHere(all)
	return slices.DeleteFunc(here, func(s installed) bool {
		return s.config != 0 && s.family != 0 && !slices.Contains(families, s.family)
	}), err
}

// uninstall detaches the programs of these families, asks the kernel again, and returns what was
// and what still is attached.
func uninstall(families []lb.Family) (removed, left []installed, err error) {
	removed, err = installedOf(families)
	if err != nil || len(removed) == 0 {
		return nil, nil, err
	}
	errs := detachConnecting(removed)
	for _, s := range removed {
		for _, a := range s.attached {
			if !slices.Contains(connecting, a.hook.name) {
				errs = append(errs, a.detach())
			}
		}
	}
	left, err = installedOf(families)
	if len(left) == 0 && err == nil { // a failure of what has gone by itself does not matter
		return removed, nil, nil
	}
	return removed, left, errors.Join(append(errs, err)...)
}

func detachConnecting(sets []installed) (errs []error) {
	for _, s := range sets {
		for _, a := range s.attached {
			if slices.Contains(connecting, a.hook.name) {
				errs = append(errs, a.detach())
			}
		}
	}
	return errs
}

// disconnect detaches the programs that connect sockets of a family, of all processes. Open sockets
// still get answers.
func disconnect(f lb.Family) error {
	here, err := installedOf([]lb.Family{f})
	return errors.Join(append(detachConnecting(here), err)...)
}

// detachStrays detaches the programs of this network namespace and family that have other settings
// than ours, and returns their number. An earlier process pinned them in a BPF file system that
// this one does not see, and they would balance by its tables.
func (k *kernel) detachStrays() (int, error) {
	info, err := k.obj.Config.Info()
	if err != nil {
		return 0, fmt.Errorf("look at the settings of the programs: %w", err)
	}
	own, _ := info.ID()
	all, err := installedOf([]lb.Family{k.family})
	if errors.Is(err, unix.EPERM) { // reported with the programs of others
		return 0, nil
	}
	strays := slices.DeleteFunc(all, func(s installed) bool {
		return s.config == own || s.config == 0 || s.family == 0
	})
	var errs []error
	for _, s := range strays {
		for _, a := range s.attached {
			errs = append(errs, a.detach())
		}
	}
	return count(strays), errors.Join(append(errs, err)...)
}

// remove detaches the programs and removes the tables. It asks the kernel for the programs: the BPF
// file system may be another one than that of the process that pinned them.
func remove(what mode.Removal) (r mode.Report, err error) {
	removed, left, err := uninstall(what.Families)
	switch {
	case len(left) > 0:
		err = fmt.Errorf("%d eBPF programs of mode ebpf still connect sockets to endpoints: %w: %w", count(left), err,
			mode.ErrOverrides)
	case errors.Is(err, unix.EPERM) && what.Beside: // as in the chart, whose init container removes them
		err = judgeByPeers(what, err)
	case err != nil:
		err = fmt.Errorf("look for eBPF programs of mode ebpf: %w", err)
	}
	for _, f := range what.Families {
		n := 0
		for _, s := range removed {
			if s.family == f && len(left) == 0 {
				n += len(s.attached)
			}
		}
		r.Count(n, "eBPF programs of %s", f)
	}
	return r, errors.Join(err, unpinAll(pinsBelow(optionsOf(what.Blocks).bpffs()), what.Families, &r))
}

// judgeByPeers is for a process that may not ask for programs; why is the reason. It returns an
// error if its own sockets show that programs connect them.
func judgeByPeers(what mode.Removal, why error) error {
	if what.Served == nil {
		return nil
	}
	for _, f := range what.Families {
		to, is, err := redirected(what.Served(f))
		if err != nil {
			return fmt.Errorf("look for eBPF programs of mode ebpf: %w", err)
		}
		if to.IsValid() {
			return fmt.Errorf("eBPF programs connect sockets for %s to %s, and this process may not remove them (%w): "+
				"run kube-proxy --init-only in a privileged container, as the chart does: %w", to, is, why,
				mode.ErrOverrides)
		}
	}
	return nil
}

func count(all []installed) (n int) {
	for _, s := range all {
		n += len(s.attached)
	}
	return n
}

// unpinAll removes what proxies of this network namespace have pinned below a folder.
func unpinAll(pins string, families []lb.Family, r *mode.Report) (err error) {
	folders, err := filepath.Glob(filepath.Join(pins, "netns-*"))
	if err != nil || len(folders) == 0 {
		return err
	}
	cookie, err := netnsCookie()
	if err != nil {
		return fmt.Errorf("remove the tables of mode ebpf: %w", err)
	}
	own := pinsOf(pins, cookie)
	for _, f := range families {
		folder := filepath.Join(own, strings.ToLower(f.String()))
		if _, e := os.Stat(folder); errors.Is(e, os.ErrNotExist) {
			continue
		}
		if e := errors.Join(unpin(folder)...); e != nil {
			err = errors.Join(err, fmt.Errorf("remove the eBPF tables of %s: %w", f, e))
			continue
		}
		r.Removed = append(r.Removed, fmt.Sprintf("the eBPF tables of %s", f))
	}
	if e := os.Remove(own); e != nil && !errors.Is(e, os.ErrNotExist) && !errors.Is(e, unix.ENOTEMPTY) {
		err = errors.Join(err, fmt.Errorf("remove the folder of pinned objects: %w", e))
	}
	return err
}
