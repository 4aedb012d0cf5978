//go:build linux

package ebpf

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"runtime"
	"strings"

	cilium "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kube-proxy/config/option"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/ebpf/bpf"
)

// Failed is why the programs are off; nil where they are on.
func (p *Plane) Failed() error { return p.failed }

// Unreaped is why sockets do not end with their endpoint; nil where they do.
func (p *Plane) Unreaped() error { return p.unreaped }

// Writes is how many elements the plane has written or deleted.
func (p *Plane) Writes() uint64 { return p.kernel.writes }

// CloseKernel has the process forget the programs, as if it had ended.
func (p *Plane) CloseKernel() error {
	return p.forget()
}

// Pins is the folder of what is pinned of all families.
func (p *Plane) Pins() string { return p.cfg.Pins }

// Unpin removes what is pinned of a family.
func Unpin(pins string, f lb.Family) error {
	return errors.Join(unpin(filepath.Join(pins, strings.ToLower(f.String())))...)
}

// Detach detaches the program of a hook, as another program could.
func (p *Plane) Detach(hook string) error {
	l := p.kernel.links[hook].(interface{ Detach() error })
	return l.Detach()
}

// Damage deletes all elements of a table, or switches the programs off.
func (p *Plane) Damage(table string) error {
	switch table {
	case "frontends":
		return damage(&p.kernel.fronts)
	case "sets":
		return damage(&p.kernel.sets)
	case "slots":
		return damage(&p.kernel.slots)
	case "backends":
		return damage(&p.kernel.backends)
	}
	return p.switches.off(p.kernel.obj.Config)
}

func damage[K, V comparable](t *table[K, V]) error {
	all, err := t.read()
	for k := range all {
		err = errors.Join(err, t.inner.Delete(k))
	}
	return err
}

// AuditPrograms is the part of an audit that is about the programs.
func (p *Plane) AuditPrograms() (int, error) { return p.audit() }

// Switch changes whose sockets the programs balance, as a changed configuration does.
func (p *Plane) Switch(sockets string, exempt ...string) error {
	o := newOptions()
	o.EBPF.SocketLB, o.EBPF.Exempt = sockets, exempt
	return p.Configure(option.Blocks{o})
}

// Break has the next write of backends fail.
func (p *Plane) Break() { p.kernel.backends.inner.Close() }

// The checks of a host.
var (
	CheckCgroup  = checkCgroup
	FindCgroupIn = findCgroupIn
	MountBPFFS   = mountBPFFS
)

// SetsErrors is an error if programs cannot set the error of a call.
var SetsErrors = setsErrors

// Reap makes a pass over the sockets.
func (p *Plane) Reap(ctx context.Context) error { return p.kernel.reaper.pass(ctx) }

// Memory is how many bytes of the kernel the tables take.
func (p *Plane) Memory() (n uint64) {
	for _, m := range []*cilium.Map{p.kernel.fronts.inner, p.kernel.sets.inner, p.kernel.slots.inner,
		p.kernel.backends.inner} {
		info, err := m.Info()
		if err != nil {
			panic(err)
		}
		size, _ := info.Memlock()
		n += size
	}
	return n
}

// Settle notes how a write ended.
func (p *Plane) Settle(err error) { p.settle(err) }

// Alone is the check of a start for programs of others.
func Alone(f lb.Family, cgroup string) error {
	cookie, err := netnsCookie()
	if err != nil {
		return err
	}
	all, err := neighbours(f, cgroup, cookie)
	return errors.Join(err, alone(all))
}

// NetnsCookie and CookieByProgram are two ways to the cookie of the thread's network namespace.
var (
	NetnsCookie     = netnsCookie
	CookieByProgram = cookieByProgram
	OwnCookies      = ownCookies
)

// Choices is how many choices a client has room for.
const Choices = len(bpf.LBChoices{}.Of)

// FillAffinity fills the room of clients with those of namespaces that do not exist.
func (p *Plane) FillAffinity() error {
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

// Knows reports whether the programs keep a peer of a socket.
func (p *Plane) Knows(fd int) (bool, error) {
	var peer bpf.LBPeer
	err := p.kernel.obj.Connected.Lookup(uint32(fd), &peer)
	if errors.Is(err, cilium.ErrKeyNotExist) {
		return false, nil
	}
	return peer.Backend != 0, err
}

// SocketBytes and EmptyBytes are what bounds reckon with for each socket and for empty tables.
const SocketBytes, EmptyBytes = socketBytes, emptyBytes

// SetBackends writes backends.
func (p *Plane) SetBackends(all map[uint32]bpf.LBBackend) error { return p.kernel.backends.set(all) }

// Reduced is what a check finds to be off.
var Reduced = reaps

// SetMost changes how many sockets may have storage.
func (p *Plane) SetMost(each, all int32) error {
	return p.switches.change(func(s *bpf.LBSettings) { s.Most = [2]int32{each, all} })
}

// Kept returns how many elements the storage of sockets has, in all and by network namespace.
func (p *Plane) Kept() (all int32, each map[uint64]int32, err error) {
	each = map[uint64]int32{}
	return all, each, errors.Join(p.kernel.obj.Kept.Lookup(uint32(0), &all),
		prune(p.kernel.obj.KeptOf, func(netns uint64, n int32) bool {
			each[netns] = n
			return false
		}))
}

// Able is the check of a start, with these folders of the configuration.
func Able(f lb.Family, bpffs, cgroup string) error {
	o := newOptions()
	o.EBPF.BPFFS, o.EBPF.Cgroup = bpffs, cgroup
	return able(mode.Settings{Family: f, Blocks: option.Blocks{o}})
}
