//go:build linux

package ebpf

import (
	"errors"
	"math"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/config/option"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/ebpf/bpf"
)

// detach detaches the program of a hook, as another program could.
func (p *Plane) detach(hook string) error {
	return p.kernel.links[hook].(interface{ Detach() error }).Detach()
}

// damage deletes all elements of a table, or switches the programs off.
func (p *Plane) damage(table string) error {
	switch k := p.kernel; table {
	case "frontends":
		return empty(&k.fronts)
	case "sets":
		return empty(&k.sets)
	case "slots":
		return empty(&k.slots)
	case "backends":
		return empty(&k.backends)
	}
	return p.switches.off(p.kernel.obj.Config)
}

func empty[K, V comparable](t *table[K, V]) error {
	all, err := t.read()
	for k := range all {
		err = errors.Join(err, t.inner.Delete(k))
	}
	return err
}

// unpinFamily removes what is pinned of a family.
func unpinFamily(pins string, f lb.Family) error {
	return errors.Join(unpin(filepath.Join(pins, strings.ToLower(f.String())))...)
}

// balance changes whose sockets the programs balance, as a changed configuration does.
func (p *Plane) balance(sockets string, exempt ...string) error {
	o := newOptions()
	o.EBPF.SocketLB, o.EBPF.Exempt = sockets, exempt
	return p.Configure(option.Blocks{o})
}

// startAlone is the check of a start for programs of others.
func startAlone(f lb.Family, cgroup string) error {
	cookie, err := netnsCookie()
	if err != nil {
		return err
	}
	all, err := neighbours(f, cgroup, cookie)
	return errors.Join(err, alone(all))
}

// ableWith is the check of a start, with these folders of the configuration.
func ableWith(f lb.Family, bpffs, cgroup string) error { return able(settingsWith(f, bpffs, cgroup)) }

func settingsWith(f lb.Family, bpffs, cgroup string) mode.Settings {
	o := newOptions()
	o.EBPF.BPFFS, o.EBPF.Cgroup = bpffs, cgroup
	return mode.Settings{Family: f, Blocks: option.Blocks{o}}
}

// fillAffinity fills the room of clients with those of namespaces that do not exist.
func (p *Plane) fillAffinity() error {
	m := p.kernel.obj.Affinity
	for i := range uint64(m.MaxEntries()) {
		choices := bpf.LBChoices{}
		choices.Of[0].Until = math.MaxUint64
		err := m.Put(1<<60+i, choices)
		for ; errors.Is(err, unix.ENOMEM); err = m.Put(1<<60+i, choices) {
			runtime.Gosched() // the kernel fetches memory for elements later
		}
		if errors.Is(err, unix.E2BIG) {
			return nil // some are of others
		}
		if err != nil {
			return err
		}
	}
	return errors.New("there is room left")
}

// setMost changes how many sockets may have storage.
func (p *Plane) setMost(n int32) error {
	return p.switches.change(func(s *bpf.LBSettings) { s.Most = n })
}
