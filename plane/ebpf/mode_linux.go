package ebpf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/mode"
)

// Mode returns the mode ebpf over the packet path of another mode.
func Mode(packets mode.Mode) mode.Mode {
	m := facts(packets)
	m.Able = func(s mode.Settings) error {
		if err := packets.Able(s); err != nil {
			return err
		}
		return able(s)
	}
	m.Reduced = func(mode.Settings) error { return errors.Join(setsErrors(), reaps()) }
	m.New = func(s mode.Settings) (mode.Plane, error) { return newOver(packets, s) }
	m.Remove = func(_ context.Context, what mode.Removal) (mode.Report, error) { return remove(what) }
	return m
}

// able tries what the mode needs of this host, and changes nothing. It names all that is missing.
func able(s mode.Settings) error {
	o := optionsOf(s.Blocks)
	cookies, err := ownCookies()
	if _, e := os.Stat(o.bpffs()); e != nil {
		err = errors.Join(err, fmt.Errorf("no place for the BPF file system (--ebpf-bpffs): %w", e))
	}
	cgroup, e := o.cgroup()
	if e != nil {
		return errors.Join(err, e)
	}
	if err = errors.Join(err, probe(s.Family, cgroup)); err != nil {
		return err
	}
	all, err := neighbours(s.Family, cgroup, cookies...)
	if err != nil {
		return err
	}
	return alone(all)
}

func newOver(packets mode.Mode, s mode.Settings) (mode.Plane, error) {
	o := optionsOf(s.Blocks)
	cgroup, err := o.cgroup()
	if err != nil {
		return nil, fmt.Errorf("ebpf: %w", err)
	}
	if err := mountBPFFS(o.bpffs()); err != nil {
		return nil, fmt.Errorf("ebpf: %w", err)
	}
	under, err := packets.New(s)
	if err != nil {
		return nil, err
	}
	path, ok := under.(PacketPath)
	if !ok {
		err := fmt.Errorf("ebpf: mode %s cannot serve as the packet path", packets.Name)
		return nil, errors.Join(err, under.Close())
	}
	p, err := New(Config{Family: s.Family, Cgroup: cgroup, Pins: pinsBelow(o.bpffs()), Sockets: o.EBPF.SocketLB,
		Guard: o.EBPF.ProtectNodePorts, Exempt: o.EBPF.Exempt, Stale: o.EBPF.StaleSockets, Count: s.CountServices,
		Wait: true, Log: s.Log}, path)
	if err != nil {
		return nil, errors.Join(err, under.Close())
	}
	return p, nil
}

func (o *Options) bpffs() string { return cmp.Or(o.EBPF.BPFFS, defaultBPFFS) }

func (o *Options) cgroup() (string, error) {
	path, err := o.EBPF.Cgroup, error(nil)
	if path == "" {
		if path, err = findCgroup(); err != nil {
			return "", err
		}
	}
	return path, checkCgroup(path, o.EBPF.Cgroup != "")
}

// remove detaches the programs and removes the tables.
func remove(what mode.Removal) (r mode.Report, err error) {
	cookie, err := netnsCookie()
	if err != nil {
		return r, fmt.Errorf("ebpf: %w", err)
	}
	pins := pinsOf(pinsBelow(optionsOf(what.Blocks).bpffs()), cookie)
	for _, f := range what.Families {
		folder := filepath.Join(pins, strings.ToLower(f.String()))
		if _, e := os.Stat(folder); errors.Is(e, os.ErrNotExist) {
			continue
		}
		if e := errors.Join(unpin(folder)...); e != nil {
			err = errors.Join(err, fmt.Errorf("remove the eBPF programs of %s: %w", f, e))
			continue
		}
		r.Removed = append(r.Removed, fmt.Sprintf("the eBPF programs and tables of %s", f))
	}
	if e := os.Remove(pins); e != nil && !errors.Is(e, os.ErrNotExist) && !errors.Is(e, unix.ENOTEMPTY) {
		err = errors.Join(err, fmt.Errorf("remove the folder of pinned objects: %w", e))
	}
	return r, err
}
