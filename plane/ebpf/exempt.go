//go:build linux

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"kube-proxy/plane/ebpf/bpf"
)

// exemptions keeps the maps of network namespaces and cgroups whose sockets take the packet path.
// They are files that match patterns: a namespace is a file such as those of `ip netns`, or a
// symbolic link to one; a cgroup is a folder. It follows the folders that have such files, and
// compares all when asked to.
type exemptions struct {
	log      *slog.Logger
	switches *switches
	watcher  *fsnotify.Watcher // nil for none
	stop     context.CancelFunc
	done     sync.WaitGroup

	mu       sync.Mutex
	patterns []string
	netns    *ebpf.Map // nil before the first use
	cgroups  *ebpf.Map
	watched  map[string]bool
}

// exemptAgain is when files are looked at after a change in their folder: a namespace is mounted
// over its file a moment after that was made.
var exemptAgain = []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, time.Second}

func newExemptions(s *switches, log *slog.Logger) *exemptions {
	ctx, stop := context.WithCancel(context.Background())
	x := &exemptions{log: log, switches: s, stop: stop, watched: map[string]bool{}}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("Cannot watch the folders of exempt namespaces and cgroups; looking at them with each full comparison",
			"err", err)
		return x
	}
	x.watcher = w
	x.done.Go(func() { x.run(ctx) })
	return x
}

func (x *exemptions) run(ctx context.Context) {
	timer, left := time.NewTimer(0), []time.Duration(nil)
	<-timer.C
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.watcher.Events:
			left = exemptAgain
		case <-x.watcher.Errors: // events were lost
			left = exemptAgain
		case <-timer.C:
			if err := x.update(); err != nil {
				x.log.Warn("Failed to exempt namespaces and cgroups", "err", err)
			}
			left = left[1:]
		}
		if len(left) > 0 {
			timer.Reset(left[0])
		}
	}
}

func (x *exemptions) close() error {
	x.stop()
	x.done.Wait()
	if x.watcher == nil {
		return nil
	}
	return x.watcher.Close()
}

// want takes other patterns.
func (x *exemptions) want(patterns []string) error {
	x.mu.Lock()
	x.patterns = slices.Clone(patterns)
	x.mu.Unlock()
	return x.update()
}

// use has the maps of programs follow from now on; nil for none.
func (x *exemptions) use(m *bpf.LBMaps) error {
	x.mu.Lock()
	if x.netns, x.cgroups = nil, nil; m != nil {
		x.netns, x.cgroups = m.ExemptNetns, m.ExemptCgroups
	}
	x.mu.Unlock()
	return x.update()
}

// update makes the maps hold what matches the patterns now.
func (x *exemptions) update() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.netns == nil {
		return nil
	}
	err := x.watch()
	netns, cgroups, e := exempt(x.patterns)
	err = errors.Join(err, e, hold(x.netns, netns), hold(x.cgroups, cgroups))
	any := len(netns)+len(cgroups) > 0
	return errors.Join(err, x.switches.change(func(s *bpf.LBSettings) { s.Exempts = flag(any) }))
}

// watch follows the folders in which something may match.
func (x *exemptions) watch() error {
	if x.watcher == nil {
		return nil
	}
	want := map[string]bool{}
	for _, p := range x.patterns {
		for at := filepath.Dir(p); ; at = filepath.Dir(at) {
			folders, err := filepath.Glob(at)
			for _, f := range folders {
				want[f] = err == nil
			}
			if len(folders) > 0 && at == pathOf(at) || at == "/" { // above there is nothing that may come
				break
			}
		}
	}
	var errs []error
	for f := range want {
		if x.watched[f] {
			continue
		}
		if err := x.watcher.Add(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("watch %s: %w", f, err))
		} else {
			x.watched[f] = err == nil
		}
	}
	live := x.watcher.WatchList()
	maps.DeleteFunc(x.watched, func(f string, _ bool) bool { return !slices.Contains(live, f) })
	return errors.Join(errs...)
}

// pathOf returns a pattern without the part that has wildcards.
func pathOf(pattern string) string {
	for at := pattern; ; at = filepath.Dir(at) {
		if !slices.ContainsFunc([]byte(at), func(c byte) bool { return c == '*' || c == '?' || c == '[' }) {
			return at
		}
	}
}

// exempt returns the cookies of the namespaces and the numbers of the cgroups that match.
func exempt(patterns []string) (netns, cgroups map[uint64]uint32, err error) {
	netns, cgroups = map[uint64]uint32{}, map[uint64]uint32{}
	for _, p := range patterns {
		files, e := filepath.Glob(p)
		err = errors.Join(err, e)
		for _, f := range files {
			var st unix.Statfs_t
			switch e := unix.Statfs(f, &st); {
			case errors.Is(e, unix.ENOENT):
			case e != nil:
				err = errors.Join(err, fmt.Errorf("look at %s: %w", f, e))
			case st.Type == unix.CGROUP2_SUPER_MAGIC:
				if id, e := cgroupID(f); e == nil {
					cgroups[id] = 1
				}
			case st.Type == unix.NSFS_MAGIC:
				cookie, e := cookieOf(f, 0)
				if e == nil && cookie != 0 {
					netns[cookie] = 1
				} else {
					err = errors.Join(err, e)
				}
			}
		}
	}
	return netns, cgroups, err
}

// hold makes a map have these elements.
func hold(m *ebpf.Map, want map[uint64]uint32) (err error) {
	have := map[uint64]bool{}
	err = prune(m, func(key uint64, _ uint32) bool {
		have[key] = true
		return want[key] == 0
	})
	for key := range want {
		if !have[key] {
			err = errors.Join(err, m.Put(key, uint32(1)))
		}
	}
	if err != nil {
		return fmt.Errorf("write exempt namespaces and cgroups: %w", err)
	}
	return nil
}
