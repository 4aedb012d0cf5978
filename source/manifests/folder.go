package manifests

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"kube-proxy/source/convert"
)

// Load reads the folder at the root of fsys once. The error concerns the folder; faults of a file
// or an object are problems, and the rest is used.
func Load(fsys fs.FS) (Objects, []convert.Problem, error) {
	f := newFolder(fsys)
	read, err := f.scan(nil, time.Time{})
	if err != nil {
		return Objects{}, nil, fmt.Errorf("read the folder: %w", bare(err))
	}
	all, clashes := f.merge()
	var out Objects
	for _, o := range all {
		out.add(o)
	}
	return out, append(read, clashes...), nil
}

// folder is the state of a folder's files.
type folder struct {
	fsys  fs.FS
	files map[string]*held
}

// held is one file: its contents, or the last ones that could be parsed.
type held struct {
	info fs.FileInfo
	sum  [sha256.Size]byte
	// objects are in force.
	objects []object
	// good: the objects came from a well-formed text.
	good bool
	// missing is the time since which the file is missing or empty; zero if it exists. Editors
	// replace a file by a new one, or empty it and write it again: for a short while that is no
	// deletion.
	missing time.Time
	// unreadable is why the file could not be read the last time.
	unreadable string
	other      []string
}

// grace is how long a file may be missing or empty until its objects go.
const grace = 150 * time.Millisecond

// maxFile bounds a file's size in bytes.
const maxFile = 256 << 20

func newFolder(fsys fs.FS) *folder { return &folder{fsys: fsys, files: map[string]*held{}} }

// isManifest reports whether a file of that name is read.
func isManifest(name string) bool {
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// scan reads the files that are new, look changed or are named in touched, and returns their
// problems. The error concerns the folder as a whole; then nothing has changed.
func (f *folder) scan(touched map[string]bool, now time.Time) ([]convert.Problem, error) {
	entries, err := fs.ReadDir(f.fsys, ".")
	if err != nil {
		return nil, err
	}
	var problems []convert.Problem
	there := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		if !isManifest(name) {
			continue
		}
		info, err := fs.Stat(f.fsys, name) // of the target of a link
		h := f.files[name]
		dangling := errors.Is(err, fs.ErrNotExist) && e.Type() == fs.ModeSymlink && h.empty()
		if errors.Is(err, fs.ErrNotExist) && !dangling {
			continue
		}
		if err == nil && h != nil && !touched[name] && h.missing.IsZero() && same(h.info, info) {
			there[name] = true
			continue
		}
		var data []byte
		if err == nil {
			data, err = f.read(name, info)
		}
		if errors.Is(err, fs.ErrNotExist) && !dangling {
			continue
		}
		if h == nil {
			h = &held{}
			f.files[name] = h
		}
		if err == nil && len(data) == 0 && len(h.objects) > 0 && !h.expired(now) {
			continue
		}
		there[name] = true
		problems = append(problems, h.take(name, info, data, err)...)
	}
	for name, h := range f.files {
		switch {
		case there[name]:
			h.missing = time.Time{}
		case h.missing.IsZero() && !now.IsZero() && len(h.objects) > 0:
			h.missing = now
		case h.expired(now) || len(h.objects) == 0:
			delete(f.files, name)
		}
	}
	return problems, nil
}

func (f *folder) read(name string, info fs.FileInfo) ([]byte, error) {
	switch {
	case info.Size() > maxFile:
		return nil, fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxFile)
	case info.IsDir():
		return nil, errors.New("it is a folder, and folders below this one are not read")
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	}
	return fs.ReadFile(f.fsys, name)
}

func same(a, b fs.FileInfo) bool {
	return a != nil && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (h *held) expired(now time.Time) bool { return !h.missing.IsZero() && now.Sub(h.missing) >= grace }

// graced reports whether a file of the folder waits for the end of its grace.
func (f *folder) graced() bool {
	for _, h := range f.files {
		if !h.missing.IsZero() {
			return true
		}
	}
	return false
}

// take brings a file's new text into force, as far as it is good.
func (h *held) take(name string, info fs.FileInfo, data []byte, err error) []convert.Problem {
	if err != nil {
		h.info = nil // try again
		if h.unreadable == err.Error() {
			return nil
		}
		h.unreadable = err.Error()
		then := thenFile
		if h.empty() {
			then = "the file is left out"
		}
		return []convert.Problem{{File: name, What: "cannot be read: " + bare(err).Error(), Then: then}}
	}
	sum := sha256.Sum256(data)
	again := h.info != nil && h.sum == sum
	h.info, h.sum, h.unreadable = info, sum, ""
	if again {
		return nil
	}
	text := parse(name, data)
	h.other = text.other
	h.sayWhatStays(text.problems)
	switch {
	case !text.malformed:
		h.objects = text.with(h.objects, func(i id) bool { return text.refused[i] })
		h.good = true
	case !h.good:
		h.objects = text.with(h.objects, func(id) bool { return true })
	}
	return text.problems
}

// empty reports whether nothing of the file is in force.
func (h *held) empty() bool { return h == nil || len(h.objects) == 0 }

// bare returns the error of an operation on a file without the operation and the name.
func bare(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// sayWhatStays adds to those problems that a last good version is in force.
func (h *held) sayWhatStays(problems []convert.Problem) {
	last := map[id]bool{}
	for _, o := range h.objects {
		last[o.id] = true
	}
	for i := range problems {
		switch p := &problems[i]; {
		case p.Then == thenNewFile && len(last) > 0:
			p.Then = thenFile
		case p.Then == thenNewObject && last[id{p.Kind, p.Name}]:
			p.Then = thenObject
		}
	}
}

// with returns the text's objects and those of the last ones that stay although the text does not
// have them.
func (f *file) with(last []object, stays func(id) bool) []object {
	given := map[id]bool{}
	for _, o := range f.objects {
		given[o.id] = true
	}
	out := f.objects
	for _, o := range last {
		if !given[o.id] && stays(o.id) {
			out = append(out, o)
		}
	}
	return out
}

// merge returns all objects in force, in the order of file names and lines; of an object in two
// files the first counts. A file that is missing at the moment has the lowest priority: it may have
// been renamed.
func (f *folder) merge() ([]object, []convert.Problem) {
	names := slices.SortedFunc(maps.Keys(f.files), func(a, b string) int {
		if am, bm := !f.files[a].missing.IsZero(), !f.files[b].missing.IsZero(); am != bm {
			if am {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
	first := map[id]object{}
	var all []object
	var clashes []convert.Problem
	for _, name := range names {
		for _, o := range f.files[name].objects {
			if winner, twice := first[o.id]; twice {
				if f.files[name].missing.IsZero() {
					clashes = append(clashes, twiceProblem(o, winner.file, winner.line))
				}
				continue
			}
			first[o.id] = o
			all = append(all, o)
		}
	}
	return all, clashes
}
