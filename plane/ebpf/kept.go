//go:build linux

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"kube-proxy/plane/ebpf/bpf"
)

// census keeps the numbers of sockets with storage right, by which programs bound them. Programs
// count up when they make storage, and down when a socket closes; but no hook sees the close of a
// socket that the kernel itself uses, or of one that closed while programs were detached. So a pass
// counts what exists: at each comparison, and soon after a socket found no room. Where the kernel
// has no BTF, the numbers are estimates, which begin again at 0 after a while without room.
type census struct {
	maps  *bpf.LBMaps
	obj   *ebpf.Collection // nil without BTF
	log   *slog.Logger
	asked chan struct{}
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu     sync.Mutex // held during a pass
	lacked uint32     // calls without room at the last pass
	began  time.Time  // the last time at which the estimates began again
}

const (
	// censusEvery is how often a census looks whether a socket found no room.
	censusEvery = 2 * time.Second
	// censusRest is how many times as long as the last pass a census waits for the next one: a
	// tenant who keeps its bound full costs at most this share of a processor.
	censusRest = 20
	// estimateEnds is how long programs have no room before estimates begin again at 0. Meanwhile
	// the memory of sockets grows by one bound at most.
	estimateEnds = 10 * time.Minute
)

// newCensus starts a census for the maps of a family. Without BTF it estimates.
func newCensus(maps *bpf.LBMaps, log *slog.Logger) (*census, error) {
	c := &census{maps: maps, log: log, asked: make(chan struct{}, 1), began: time.Now()}
	obj, err := loadIterator(nil, "find_kept")
	if err == nil {
		c.obj = obj
	} else if !errors.Is(err, ebpf.ErrNotSupported) {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.done.Go(func() { c.run(ctx) })
	return c, nil
}

// ask asks for a pass.
func (c *census) ask() {
	select {
	case c.asked <- struct{}{}:
	default: // one is due
	}
}

func (c *census) close() {
	if c == nil {
		return
	}
	c.stop()
	c.done.Wait()
	if c.obj != nil {
		c.obj.Close()
	}
}

func (c *census) run(ctx context.Context) {
	for rest := censusEvery; ; {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-c.asked:
			asked = true
		case <-time.After(rest):
		}
		start := time.Now()
		if err := c.pass(asked); err != nil && ctx.Err() == nil {
			c.log.Warn("Failed to count the sockets that eBPF programs know; some may take the packet path", "err", err)
		}
		rest = max(censusEvery, censusRest*time.Since(start))
	}
}

// pass corrects the numbers, if it was asked for or a socket found no room since the last pass.
func (c *census) pass(asked bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, err := c.read()
	if err != nil || !asked && before.all.Lacked == c.lacked {
		return err
	}
	if c.obj == nil {
		return c.expire(before)
	}
	exist, err := c.count()
	if err != nil {
		return err
	}
	after, err := c.read()
	if err == nil {
		err = c.correct(before, exist, after)
	}
	c.lacked = after.all.Lacked
	return err
}

// numbers are those of sockets with storage, by the cookies of network namespaces.
type numbers struct {
	all bpf.LBUsage
	of  map[uint64]int32
}

// read returns what the programs have counted.
func (c *census) read() (n numbers, err error) {
	n.of = map[uint64]int32{}
	err = errors.Join(c.maps.Kept.Lookup(uint32(0), &n.all),
		prune(c.maps.KeptOf, func(netns uint64, sockets int32) bool { n.of[netns] = sockets; return false }))
	if err != nil {
		return n, fmt.Errorf("read the numbers of sockets: %w", err)
	}
	return n, nil
}

// count returns what exists.
func (c *census) count() (n numbers, err error) {
	n.of = map[uint64]int32{}
	for _, storage := range []*ebpf.Map{c.maps.Connected, c.maps.Flows} {
		err := iterate(c.obj.Programs["find_kept"], storage, func(netns *uint64) {
			n.all.Sockets++
			n.of[*netns]++
		})
		if err != nil {
			return n, fmt.Errorf("count the sockets of eBPF programs: %w", err)
		}
	}
	return n, nil
}

// correct writes the numbers of what exists that are not between those before and after they were
// counted: sockets open and close meanwhile.
func (c *census) correct(before, exist, after numbers) error {
	right := func(is, was, now int32) bool { return min(was, now) <= is && is <= max(was, now) }
	var errs []error
	if !right(exist.all.Sockets, before.all.Sockets, after.all.Sockets) {
		exist.all.Lacked = after.all.Lacked
		errs = append(errs, c.maps.Kept.Put(uint32(0), exist.all))
	}
	for netns, n := range exist.of {
		if !right(n, before.of[netns], after.of[netns]) {
			errs = append(errs, c.maps.KeptOf.Put(netns, n))
		}
	}
	for netns := range before.of {
		if !right(exist.of[netns], before.of[netns], after.of[netns]) && exist.of[netns] == 0 {
			if err := c.maps.KeptOf.Delete(netns); !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("correct the numbers of sockets: %w", err)
	}
	return nil
}

// expire begins estimates again at 0, if sockets have found no room and it is time.
func (c *census) expire(is numbers) error {
	if is.all.Lacked == c.lacked || time.Since(c.began) < estimateEnds {
		return nil
	}
	c.began, c.lacked = time.Now(), 0
	return uncount(c.maps)
}

// uncount resets the numbers of sockets with storage: existing storage no longer counts.
func uncount(maps *bpf.LBMaps) error {
	if err := errors.Join(prune(maps.KeptOf, func(uint64, int32) bool { return true }),
		maps.Kept.Put(uint32(0), bpf.LBUsage{})); err != nil {
		return fmt.Errorf("reset the numbers of sockets: %w", err)
	}
	return nil
}
