//go:build linux

package ebpf

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/sockets"
	"kube-proxy/lb"
	"kube-proxy/plane/ebpf/bpf"
)

// reaper ends sockets whose endpoint is gone: connected UDP sockets, which would send to it for
// ever, and TCP sockets if they are wanted too. A pass looks once at each socket that the programs
// connected, in all network namespaces, and asks for each whether its backend is in the tables. So
// it needs no list of what left, and misses nothing that an earlier process removed. Passes run
// beside the writes; one serves all that asked meanwhile.
type reaper struct {
	obj   *ebpf.Collection
	ender *ender
	maps  *bpf.LBMaps
	stays func(to bpf.LBFront, at netip.AddrPort) bool // as Plane.stays
	tcp   bool
	ended *atomic.Uint64
	log   *slog.Logger
	asked chan struct{}
	done  sync.WaitGroup
	stop  context.CancelFunc
}

// reaps is an error if this kernel cannot end sockets with their endpoint.
func reaps() error {
	obj, e, err := loadStale(nil)
	if err == nil {
		obj.Close()
		e.close()
	}
	return err
}

// loadStale loads the program that finds stale sockets, with maps of its own or those of a family,
// and what ends sockets.
func loadStale(maps *bpf.LBMaps) (_ *ebpf.Collection, _ *ender, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("sockets whose endpoint is gone do not end, and their programs send to it until they "+
				"connect again: %w", err)
		}
	}()
	shared := map[string]*ebpf.Map{}
	if maps != nil {
		shared["backends"] = maps.Backends
	}
	obj, err := loadIterator(shared, "find_stale")
	if err != nil {
		return nil, nil, err
	}
	e, err := newEnder()
	if err != nil {
		obj.Close()
	}
	return obj, e, err
}

// newReaper starts a reaper for the maps of a family.
func newReaper(maps *bpf.LBMaps, stays func(bpf.LBFront, netip.AddrPort) bool, tcp bool, ended *atomic.Uint64,
	log *slog.Logger) (*reaper, error) {
	obj, e, err := loadStale(maps)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &reaper{obj: obj, ender: e, maps: maps, stays: stays, tcp: tcp, ended: ended, log: log,
		asked: make(chan struct{}, 1), stop: stop}
	r.done.Go(func() { r.run(ctx) })
	return r, nil
}

// ask asks for a pass.
func (r *reaper) ask() {
	if r == nil {
		return
	}
	select {
	case r.asked <- struct{}{}:
	default: // one is due
	}
}

func (r *reaper) close() {
	if r == nil {
		return
	}
	r.stop()
	r.done.Wait()
	r.obj.Close()
	r.ender.close()
}

func (r *reaper) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.asked:
		}
		if err := r.pass(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("Failed to end sockets whose endpoint is gone; "+
				"their programs may send to it until they connect again", "err", err)
		}
	}
}

// pass ends the sockets that are stale now.
func (r *reaper) pass(ctx context.Context) error {
	found, err := r.find()
	if err != nil || len(found) == 0 {
		return err
	}
	ended, err := r.ender.destroy(ctx, found)
	r.ended.Add(uint64(ended))
	if ended > 0 {
		r.log.Info("Ended sockets whose endpoint is gone", "sockets", ended)
	}
	return err
}

// find lists the sockets whose backend is not in the tables, unless they may stay: it may be in
// another set or under another number.
func (r *reaper) find() (found []bpf.StaleStale, err error) {
	err = iterate(r.obj.Programs["find_stale"], r.maps.Connected, func(s *bpf.StaleStale) {
		to := bpf.LBFront{Addr: s.Peer.Addr, Port: s.Peer.Port, Proto: uint8(s.Proto)}
		if (r.tcp || s.Proto == unix.IPPROTO_UDP) && !r.stays(to, placeOf(s.Peer.BackendAddr, s.Peer.BackendPort)) {
			found = append(found, *s)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("look for stale sockets: %w", err)
	}
	return found, nil
}

func connectedOf(s bpf.StaleStale) sockets.Connected {
	return sockets.Connected{
		Cookie: s.Cookie, Family: uint8(s.Family), Proto: lb.Proto(s.Proto), From: placeOf(s.Src, s.SrcPort),
		To: placeOf(s.Dst, s.DstPort),
	}
}

// reading looks up elements of the tables as the programs do, in any goroutine.
type reading struct{ fronts, sets, slots, backends *ebpf.Map }

func openReading(m *bpf.LBMaps) (*reading, error) {
	t := &reading{}
	for inner, outer := range map[**ebpf.Map]*ebpf.Map{&t.fronts: m.Frontends, &t.sets: m.Sets, &t.slots: m.Slots,
		&t.backends: m.Backends} {
		if err := outer.Lookup(uint32(0), inner); err != nil {
			t.close()
			return nil, fmt.Errorf("open a table of the eBPF programs: %w", err)
		}
	}
	return t, nil
}

func (t *reading) close() {
	for _, m := range []*ebpf.Map{t.fronts, t.sets, t.slots, t.backends} {
		if m != nil {
			m.Close()
		}
	}
}

// backendsOf returns the backends of a set, by slot; set 0 has none.
func (t *reading) backendsOf(number uint32) (all []netip.AddrPort) {
	var s bpf.LBSet
	if number == 0 || t.sets.Lookup(number, &s) != nil {
		return nil
	}
	for slot := range s.Count {
		var at bpf.LBSlot
		var b bpf.LBBackend
		if t.slots.Lookup(bpf.LBPlace{Set: number, Slot: slot}, &at) == nil &&
			t.backends.Lookup(at.Backend, &b) == nil {
			all = append(all, placeOf(b.Addr, b.Port))
		}
	}
	return all
}

// all reads the tables.
func (t *reading) all() (s *snapshot, err error) {
	return read(&table[bpf.LBFront, bpf.LBFrontend]{name: "frontends", inner: t.fronts},
		&table[uint32, bpf.LBSet]{name: "sets", inner: t.sets},
		&table[bpf.LBPlace, bpf.LBSlot]{name: "slots", inner: t.slots},
		&table[uint32, bpf.LBBackend]{name: "backends", inner: t.backends})
}
