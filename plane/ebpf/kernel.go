//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/ebpf/bpf"
)

// kernel is what one family has in the kernel: maps, programs, and the links that attach these to
// the cgroup. All are pinned, so that they outlive the process.
type kernel struct {
	family lb.Family
	cgroup string
	pins   string // the folder of the family
	obj    bpf.LBObjects
	links  map[string]link.Link

	fronts   table[bpf.LBFront, bpf.LBFrontend]
	sets     table[uint32, bpf.LBSet]
	slots    table[bpf.LBPlace, bpf.LBSlot]
	backends table[uint32, bpf.LBBackend]
	writes   uint64 // elements that were written or deleted
	census   *census
	reaper   *reaper  // nil for none
	witness  *witness // nil for none
}

// snapshot is the content of the tables.
type snapshot struct {
	fronts   map[bpf.LBFront]bpf.LBFrontend
	sets     map[uint32]bpf.LBSet
	slots    map[bpf.LBPlace]bpf.LBSlot
	backends map[uint32]bpf.LBBackend
}

// hook is a program and where it is attached.
type hook struct {
	name    string
	attach  ebpf.AttachType
	program func(*bpf.LBPrograms) *ebpf.Program
}

// hooks returns those of a family. IPv4 has those of IPv6 sockets too, which may have IPv4
// addresses.
func hooks(f lb.Family) []hook {
	all := []hook{
		{"sock_release", ebpf.AttachCgroupInetSockRelease, func(p *bpf.LBPrograms) *ebpf.Program {
			return p.SockRelease
		}},
		{"recvmsg6", ebpf.AttachCGroupUDP6Recvmsg, func(p *bpf.LBPrograms) *ebpf.Program { return p.Recvmsg6 }},
		{"getpeername6", ebpf.AttachCgroupInet6GetPeername, func(p *bpf.LBPrograms) *ebpf.Program {
			return p.Getpeername6
		}},
		{"sendmsg6", ebpf.AttachCGroupUDP6Sendmsg, func(p *bpf.LBPrograms) *ebpf.Program { return p.Sendmsg6 }},
		{"connect6", ebpf.AttachCGroupInet6Connect, func(p *bpf.LBPrograms) *ebpf.Program { return p.Connect6 }},
		{"post_bind6", ebpf.AttachCGroupInet6PostBind, func(p *bpf.LBPrograms) *ebpf.Program { return p.PostBind6 }},
	}
	if f == lb.IPv6 {
		return all
	}
	return append([]hook{
		{"recvmsg4", ebpf.AttachCGroupUDP4Recvmsg, func(p *bpf.LBPrograms) *ebpf.Program { return p.Recvmsg4 }},
		{"getpeername4", ebpf.AttachCgroupInet4GetPeername, func(p *bpf.LBPrograms) *ebpf.Program {
			return p.Getpeername4
		}},
		{"sendmsg4", ebpf.AttachCGroupUDP4Sendmsg, func(p *bpf.LBPrograms) *ebpf.Program { return p.Sendmsg4 }},
		{"connect4", ebpf.AttachCGroupInet4Connect, func(p *bpf.LBPrograms) *ebpf.Program { return p.Connect4 }},
		{"post_bind4", ebpf.AttachCGroupInet4PostBind, func(p *bpf.LBPrograms) *ebpf.Program { return p.PostBind4 }},
	}, all...)
}

// pinned are the maps that outlive the process.
var pinned = []string{"config", "frontends", "sets", "slots", "backends", "addresses", "exempt_netns", "exempt_cgroups",
	"affinity", "connected", "flows", "kept", "kept_of"}

// specOf returns the maps and programs of a family.
func specOf(f lb.Family) (*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadLB()
	if err != nil {
		return nil, fmt.Errorf("read the programs: %w", err)
	}
	if err := spec.Variables["family"].Set(uint8(f)); err != nil {
		return nil, fmt.Errorf("set the programs' family: %w", err)
	}
	if err := spec.Variables["has_retval"].Set(flag(setsErrors() == nil)); err != nil {
		return nil, fmt.Errorf("set whether programs may set an error: %w", err)
	}
	if err := spec.Variables["has_btf"].Set(flag(readsKernel() == nil)); err != nil {
		return nil, fmt.Errorf("set whether programs read the kernel's structs: %w", err)
	}
	return spec, nil
}

// readsKernel is an error if programs cannot read the kernel's structs.
func readsKernel() error {
	err := hasBTF()
	if err == nil { // with CAP_PERFMON
		err = features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnProbeReadKernel)
	}
	if err != nil {
		return fmt.Errorf("sockets of pods take the packet path, because programs do not see which network namespaces "+
			"lead to the node; and connections of MPTCP, NFS, SMB, Ceph, iSCSI, NVMe and L2TP to a Service are not "+
			"left to the nftables rules: %w", err)
	}
	return nil
}

// setsErrors is an error if programs cannot set the error of a call (before Linux 5.18).
func setsErrors() error {
	if err := features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnSetRetval); err != nil {
		return fmt.Errorf("sockets that a Service refuses fail as the nftables rules have it, and bind() to a "+
			"NodePort with EPERM: %w", err)
	}
	return nil
}

// load loads maps and programs, with room for counters if they count. Maps pinned in the folder are
// used again; "" pins nothing.
func load(f lb.Family, pins string, counts bool) (obj bpf.LBObjects, err error) {
	if err := raiseMemlock(); err != nil {
		return obj, err
	}
	spec, err := specOf(f)
	if err != nil {
		return obj, err
	}
	if !counts {
		spec.Maps["counters"].MaxEntries = 1 // the kernel allocates the buckets of all at once
	}
	if pins != "" {
		for _, m := range pinned {
			spec.Maps[m].Pinning = ebpf.PinByName
		}
		if err := unpinChanged(pins, spec.Maps); err != nil {
			return obj, err
		}
	}
	options := ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pins}}
	if hasBTF() != nil {
		options.Programs.KernelTypes = spec.Types // of fields that the programs then do not read
	}
	err = spec.LoadAndAssign(&obj, &options)
	if err == nil {
		return obj, sign(f, &obj)
	}
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = fmt.Errorf("%w: %w", err, plane.ErrUnsupported)
	}
	return obj, fmt.Errorf("load the programs of %s: %w", f, explain(err))
}

// sign binds the settings to all programs of a family, for those of answers do not read them. By
// the settings a removal recognizes the programs.
func sign(f lb.Family, obj *bpf.LBObjects) error {
	for _, h := range hooks(f) {
		if err := h.program(&obj.LBPrograms).BindMap(obj.Config); err != nil {
			return errors.Join(fmt.Errorf("bind the settings to the program %s: %w", h.name, explain(err)), obj.Close())
		}
	}
	return nil
}

// unpinChanged unpins the maps whose layout is not that of this program. The attached programs keep
// using them until their links have programs with new maps, which are written before. So a change
// of the layout of one map leaves the others, and no socket is without a program.
func unpinChanged(pins string, specs map[string]*ebpf.MapSpec) error {
	for _, name := range pinned {
		file := filepath.Join(pins, name)
		m, err := ebpf.LoadPinnedMap(file, nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			same := sameLayout(m, specs[name])
			if err = m.Close(); same && err == nil {
				continue
			}
		}
		if err = errors.Join(err, os.Remove(file)); err != nil {
			return fmt.Errorf("replace the map %s of another layout: %w", file, err)
		}
	}
	return nil
}

// sameLayout reports whether a map is as this program makes it; of a growing table, its elements
// too.
func sameLayout(m *ebpf.Map, spec *ebpf.MapSpec) bool {
	if spec.Compatible(m) != nil {
		return false
	}
	if spec.InnerMap == nil {
		return true
	}
	var inner *ebpf.Map
	if m.Lookup(uint32(0), &inner) != nil {
		return false
	}
	defer inner.Close()
	want := spec.InnerMap
	return inner.Type() == want.Type && inner.KeySize() == want.KeySize && inner.ValueSize() == want.ValueSize
}

// open takes over what an earlier process pinned, or creates it. The programs that are attached
// keep serving with the same maps.
func open(f lb.Family, cgroup, pins string, counts bool) (_ *kernel, err error) {
	k := &kernel{family: f, cgroup: cgroup, pins: pins, links: map[string]link.Link{}}
	if err := os.MkdirAll(pins, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of pinned objects: %w", err)
	}
	if k.obj, err = load(f, pins, counts); err != nil {
		return nil, err
	}
	if err := k.openTables(); err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

func (k *kernel) openTables() error {
	spec, err := bpf.LoadLB()
	if err != nil {
		return fmt.Errorf("read the maps: %w", err)
	}
	return errors.Join(
		k.fronts.open("frontends", k.obj.Frontends, spec.Maps["frontends"], &k.writes),
		k.sets.open("sets", k.obj.Sets, spec.Maps["sets"], &k.writes),
		k.slots.open("slots", k.obj.Slots, spec.Maps["slots"], &k.writes),
		k.backends.open("backends", k.obj.Backends, spec.Maps["backends"], &k.writes))
}

// attach attaches the programs, or puts them in the place of those that are attached. It returns
// how many hooks had none. First come the hooks of answers: no socket gets a backend before its
// replies are translated.
func (k *kernel) attach() (attached int, err error) {
	for _, h := range hooks(k.family) {
		l := k.links[h.name]
		if l == nil {
			l = k.adopt(h)
		}
		if l == nil {
			if l, err = k.create(h); err != nil {
				return attached, err
			}
			attached++
		}
		k.links[h.name] = l
	}
	return attached, nil
}

// adopt returns the pinned link of a hook with the program in it, or nil if that is missing or
// detached.
func (k *kernel) adopt(h hook) link.Link {
	l, err := link.LoadPinnedLink(k.pinOf(h), nil)
	if err != nil {
		return nil
	}
	if k.attached(l) == nil && l.Update(h.program(&k.obj.LBPrograms)) == nil {
		return l
	}
	l.Close()
	return nil
}

func (k *kernel) pinOf(h hook) string { return filepath.Join(k.pins, "link_"+h.name) }

// attached is an error if a link attaches nothing to our cgroup.
func (k *kernel) attached(l link.Link) error {
	if l == nil {
		return errors.New("there is no link")
	}
	info, err := l.Info()
	if err != nil {
		return fmt.Errorf("look at a link: %w", err)
	}
	id, err := cgroupID(k.cgroup)
	switch at := info.Cgroup(); {
	case err != nil:
		return err
	case at == nil:
		return errors.New("the link is not of a cgroup")
	case at.CgroupId == 0:
		return errors.New("the link is detached")
	case at.CgroupId != id:
		return fmt.Errorf("the link is of cgroup %d, and %s is %d", at.CgroupId, k.cgroup, id)
	}
	return nil
}

func (k *kernel) create(h hook) (link.Link, error) {
	p := h.program(&k.obj.LBPrograms)
	l, err := link.AttachCgroup(link.CgroupOptions{Path: k.cgroup, Attach: h.attach, Program: p})
	if err != nil {
		return nil, fmt.Errorf("attach %s to the cgroup %s: %w", h.name, k.cgroup, occupied(k.cgroup, h, err))
	}
	if err := os.Remove(k.pinOf(h)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("remove a stale pin: %w", err), l.Close())
	}
	if err := l.Pin(k.pinOf(h)); err != nil {
		return nil, errors.Join(fmt.Errorf("pin the link of %s: %w", h.name, err), l.Close())
	}
	return l, nil
}

// repin replaces the links whose hook or pin another program removed, and returns how many.
func (k *kernel) repin() (int, error) {
	for _, h := range hooks(k.family) {
		l := k.links[h.name]
		if l == nil {
			continue
		}
		if _, err := os.Stat(k.pinOf(h)); err == nil && k.attached(l) == nil {
			continue
		}
		if err := l.Close(); err != nil {
			return 0, fmt.Errorf("close the link of %s: %w", h.name, err)
		}
		delete(k.links, h.name)
	}
	return k.attach()
}

func (k *kernel) read() (s *snapshot, err error) {
	return read(&k.fronts, &k.sets, &k.slots, &k.backends)
}

func read(fronts *table[bpf.LBFront, bpf.LBFrontend], sets *table[uint32, bpf.LBSet],
	places *table[bpf.LBPlace, bpf.LBSlot], backends *table[uint32, bpf.LBBackend]) (s *snapshot, err error) {
	s = &snapshot{}
	if s.fronts, err = fronts.read(); err != nil {
		return nil, err
	}
	if s.sets, err = sets.read(); err != nil {
		return nil, err
	}
	for number, set := range s.sets {
		set.Passes = 0 // of programs alone
		s.sets[number] = set
	}
	if s.slots, err = places.read(); err != nil {
		return nil, err
	}
	s.backends, err = backends.read()
	return s, err
}

// write writes a batch in the order in which any state between serves: a program follows a frontend
// to a set, a slot and a backend.
func (k *kernel) write(b *batch) error {
	for _, step := range []func() error{
		func() error { return k.backends.set(b.backends.put) },
		func() error { return k.slots.set(b.slots.put) },
		func() error { return k.sets.set(b.sets.put) },
		func() error { return k.fronts.set(b.fronts.put) },
		func() error { return k.fronts.remove(b.fronts.gone) },
		func() error { return k.sets.remove(b.sets.gone) },
		func() error { return k.slots.remove(b.slots.gone) },
		func() error { return k.backends.remove(b.backends.gone) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// clear empties the tables at once.
func (k *kernel) clear() error {
	return errors.Join(k.fronts.replace(0), k.sets.replace(0), k.slots.replace(0), k.backends.replace(0))
}

// close closes what this process has of the kernel's objects, which stay.
func (k *kernel) close() error {
	k.census.close()
	k.reaper.close()
	errs := []error{
		k.witness.close(), k.obj.Close(), k.fronts.close(), k.sets.close(), k.slots.close(), k.backends.close(),
	}
	for _, l := range k.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// unpin removes the pins of a folder, and with them the objects that no process has open. The links
// go first: from then on sockets take the packet path.
func unpin(folder string) (errs []error) {
	for _, pattern := range []string{"link_connect*", "link_send*", "*"} {
		files, err := filepath.Glob(filepath.Join(folder, pattern))
		errs = append(errs, err)
		for _, f := range files {
			errs = append(errs, os.Remove(f))
		}
	}
	return append(errs, os.Remove(folder))
}

// expire deletes what clients remember if all of that has expired.
func (k *kernel) expire() error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	err = prune(k.obj.Affinity, func(_ uint64, choices bpf.LBChoices) bool {
		return !slices.ContainsFunc(choices.Of[:], func(c bpf.LBChoice) bool { return c.Until >= now })
	})
	if err != nil {
		return fmt.Errorf("delete the expired choices of clients: %w", err)
	}
	return nil
}
