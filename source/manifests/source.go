package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
)

// Config configures the source. Dir, the folder, is required.
type Config struct {
	Dir string
	// Log receives events of the folder; nil is slog.Default().
	Log *slog.Logger
	// OnProblem receives problems of files and objects, once for each change of a file; nil logs
	// them. Problem.File is a path below Dir, Dir included.
	OnProblem func(convert.Problem)
}

// Source follows one folder. Make one with [New].
type Source struct {
	cfg    Config
	log    *slog.Logger
	folder *folder
	// now are the objects in force, as they were sent.
	now map[id]object
	// clashes are the reported problems between files.
	clashes map[convert.Problem]bool
	// lost: the folder could not be read the last time.
	lost atomic.Bool
	sent bool // a first complete list
}

const (
	// settle is how long after a change the files are read: programs write a file in several steps.
	settle = 20 * time.Millisecond
	// maxSettle bounds that for files that change all the time.
	maxSettle = 200 * time.Millisecond
	// reread is the interval of reads that do not rely on notifications.
	reread = 2 * time.Second
)

// New returns a Source for a folder, which must exist. It reads no files yet.
func New(cfg Config) (*Source, error) {
	if _, err := os.ReadDir(cfg.Dir); err != nil {
		return nil, fmt.Errorf("--manifests: read the folder %s: %w", cfg.Dir, bare(err))
	}
	log := cmp.Or(cfg.Log, slog.Default())
	if cfg.OnProblem == nil {
		cfg.OnProblem = func(p convert.Problem) { log.Warn("Malformed object", "problem", p.String()) }
	}
	return &Source{cfg: cfg, log: log, folder: newFolder(os.DirFS(cfg.Dir)),
		now: map[id]object{}, clashes: map[convert.Problem]bool{}}, nil
}

// Connected reports whether the folder could be read the last time. It may be called from any
// goroutine.
func (s *Source) Connected() bool { return !s.lost.Load() }

// Run sends events to sink, from one goroutine, until ctx ends, and then returns nil. All changes
// between two reads of the folder are sent as one batch. The only error is that the folder cannot
// be read at the start; a folder that vanishes later changes nothing.
func (s *Source) Run(ctx context.Context, sink func(cluster.Event)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		// The periodic reads remain.
		s.log.Warn("Cannot watch the manifest folder, polling it", "every", reread, "err", err)
		watcher = &fsnotify.Watcher{}
	} else {
		defer watcher.Close()
	}
	watched := s.watch(watcher, nil)
	if err := s.look(nil, sink); err != nil {
		return fmt.Errorf("--manifests: read the folder %s: %w", s.cfg.Dir, bare(err))
	}
	regular := time.NewTicker(reread)
	defer regular.Stop()
	touched := map[string]bool{}
	var due <-chan time.Time
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-watcher.Events:
			touched[filepath.Base(ev.Name)] = true
			if due == nil {
				since = time.Now()
			}
			due = time.After(min(settle, max(0, maxSettle-time.Since(since))))
			continue
		case err := <-watcher.Errors:
			// Mostly the kernel had to drop events. The next regular read finds all changes.
			s.log.Debug("Lost notifications of changed files", "dir", s.cfg.Dir, "reads every", reread, "err", err)
			continue
		case <-due:
		case <-regular.C:
			watched = s.watch(watcher, watched)
		}
		due = nil
		if err := s.look(touched, sink); err != nil && !s.lost.Load() {
			s.log.Error("Cannot read the manifest folder, keeping the last known state", "dir", s.cfg.Dir, "err", err)
			s.lost.Store(true)
		} else if err == nil && s.lost.Load() {
			s.log.Info("The manifest folder can be read again", "dir", s.cfg.Dir)
			s.lost.Store(false)
		}
		touched = map[string]bool{}
		if s.folder.graced() {
			due, since = time.After(grace), time.Now()
		}
	}
}

// watch requests notifications of changes in the folder; again if another folder has replaced it.
func (s *Source) watch(w *fsnotify.Watcher, watched os.FileInfo) os.FileInfo {
	info, err := os.Stat(s.cfg.Dir)
	if err != nil || w.Events == nil || watched != nil && os.SameFile(info, watched) && len(w.WatchList()) > 0 {
		return watched
	}
	if len(w.WatchList()) > 0 {
		err = w.Remove(s.cfg.Dir)
	}
	err = errors.Join(err, w.Add(s.cfg.Dir))
	if err != nil {
		s.log.Warn("Cannot watch the manifest folder, polling it", "dir", s.cfg.Dir, "every", reread, "err", err)
		return nil
	}
	return info
}

// look reads changes and sends them.
func (s *Source) look(touched map[string]bool, sink func(cluster.Event)) error {
	problems, err := s.folder.scan(touched, time.Now())
	if err != nil {
		return err
	}
	for _, p := range problems {
		s.report(p)
	}
	all, clashes := s.folder.merge()
	reported := map[convert.Problem]bool{}
	for _, p := range clashes {
		reported[p] = true
		if !s.clashes[p] {
			s.report(p)
		}
	}
	s.clashes = reported
	if !s.sent {
		s.sendAll(all, sink)
	} else {
		s.sendChanges(all, sink)
	}
	return nil
}

func (s *Source) report(p convert.Problem) {
	p.File = filepath.Join(s.cfg.Dir, p.File)
	s.cfg.OnProblem(p)
}

// sendAll sends the first, complete list.
func (s *Source) sendAll(all []object, sink func(cluster.Event)) {
	s.sent = true
	var list Objects
	for _, o := range all {
		list.add(o)
		s.now[o.id] = o
	}
	for _, n := range list.Nodes {
		sink(cluster.NodeSet{Node: n})
	}
	sink(cluster.CIDRsListed{CIDRs: list.CIDRs})
	sink(cluster.SlicesListed{Slices: list.Slices})
	sink(cluster.ServicesListed{Services: list.Services})
	s.log.Info("Read manifests", "dir", s.cfg.Dir, "files", len(s.folder.files), "services", len(list.Services),
		"slices", len(list.Slices), "nodes", len(list.Nodes), "cidrs", len(list.CIDRs))
	if len(s.folder.files) == 0 {
		s.log.Warn("The folder has no manifests: files that end in .yaml, .yml or .json", "dir", s.cfg.Dir)
	}
	for _, name := range slices.Sorted(maps.Keys(s.folder.files)) {
		if other := s.folder.files[name].other; len(other) > 0 {
			s.log.Debug("Ignored objects of other kinds", "file", name, "kinds", other)
		}
	}
}

// sendChanges sends the differences from the sent objects, new ones before deleted ones.
func (s *Source) sendChanges(all []object, sink func(cluster.Event)) {
	var batch cluster.Batch
	next := make(map[id]object, len(all))
	for _, o := range all {
		next[o.id] = o
		was, known := s.now[o.id]
		if !known || !equal(was.value, o.value) {
			batch = append(batch, convert.SetEvent(o.value))
		}
	}
	for i := range s.now {
		if _, stays := next[i]; !stays {
			batch = append(batch, convert.GoneEvent(i.kind, i.name))
		}
	}
	s.now = next
	if len(batch) == 0 {
		return
	}
	s.log.Info("Manifests changed", "dir", s.cfg.Dir, "objects", len(batch))
	sink(batch)
}

func equal(a, b any) bool {
	switch v := a.(type) {
	case *cluster.Service:
		o, ok := b.(*cluster.Service)
		return ok && v.Equal(o)
	case *cluster.Slice:
		o, ok := b.(*cluster.Slice)
		return ok && v.Equal(o) && v.SamePlaces(o)
	case *cluster.Node:
		o, ok := b.(*cluster.Node)
		return ok && v.Equal(o)
	default:
		c := a.(*cluster.ServiceCIDR)
		o, ok := b.(*cluster.ServiceCIDR)
		return ok && slices.Equal(c.Prefixes, o.Prefixes)
	}
}
