package ebpf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

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
	m.Reduced = reduced
	m.New = func(s mode.Settings) (mode.Plane, error) { return newOver(packets, s) }
	m.Remove = func(_ context.Context, what mode.Removal) (mode.Report, error) { return remove(what) }
	return m
}

// able tries what the mode needs of this host, and changes nothing. It names all that is missing.
func able(s mode.Settings) error {
	o := optionsOf(s.Blocks)
	var err error
	if _, e := os.Stat(o.bpffs()); e != nil {
		err = fmt.Errorf("no place for the BPF file system (--ebpf-bpffs): %w", e)
	}
	cgroup, e := o.cgroup()
	if e != nil {
		return errors.Join(err, e)
	}
	return errors.Join(err, probe(s.Family, cgroup))
}

// reduced returns what the mode does without on this host: parts that the kernel lacks, and all
// programs while those of others connect sockets.
func reduced(s mode.Settings) error {
	return errors.Join(setsErrors(), readsKernel(), reaps(), beside(s))
}

func beside(s mode.Settings) error {
	cgroup, err := optionsOf(s.Blocks).cgroup()
	if err != nil {
		return err
	}
	cookies, err := ownCookies()
	if err != nil {
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
	private, err := mountBPFFS(o.bpffs())
	if err != nil {
		return nil, fmt.Errorf("ebpf: %w", err)
	}
	if private && s.Log != nil {
		s.Log.Warn("Mounted the BPF file system for this mount namespace alone; in a container the eBPF programs end "+
			"with it, and packet rules serve until the next one starts: mount the host's /sys/fs/bpf there",
			"path", o.bpffs())
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
		Guard: o.EBPF.ProtectNodePorts, Exempt: o.EBPF.Exempt, Stale: o.EBPF.StaleSockets,
		Heartbeat: o.EBPF.Heartbeat.Duration, Count: s.CountServices,
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
