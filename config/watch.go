package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a file has to be left alone before it is read: editors write in steps.
const settle = 100 * time.Millisecond

// settleMost limits that wait: other programs may write in the same folder all the time.
const settleMost = 10 * settle

// inspectAnyway is how often a file is read without a notification: not every file system sends
// them.
const inspectAnyway = 30 * time.Second

// busyLooks is the number of consecutive reads that may find the file open for writing before this
// is reported.
const busyLooks = 300

// newWatcher is replaced by tests.
var newWatcher = fsnotify.NewWatcher

// errBusy is the error of a file that a process has open for writing: its content may be
// incomplete, and an incomplete configuration can lack restrictions of tenants.
var errBusy = errors.New("a process is writing it; it is read when it is closed")

// readWhole reads a file that no process is writing, where the kernel can report that.
func readWhole(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(f)
	if err == nil && openForWriting(f) {
		err = &fs.PathError{Op: "read", Path: file, Err: errBusy}
	}
	return content, err
}

// readAtStart reads a file once. It waits up to a few seconds for a process that writes it.
func readAtStart(file string) (content []byte, err error) {
	for range 3 * settleMost / settle {
		content, err = readWhole(file)
		if !errors.Is(err, errBusy) {
			break
		}
		time.Sleep(settle)
	}
	return content, err
}

// Watch calls changed with the content of the file whenever it differs from the one before: after a
// write, after a rename over it, and after the swap of a symbolic link on the way to it, as a
// mounted ConfigMap does (PR-04). While a process has the file open for writing, it waits (TN-80).
// A file that cannot be read is reported once, with the error; the watch continues, and reports the
// content as soon as it can be read. before is the known content.
//
// If the kernel sends no notifications, deaf is called, and the file is read periodically: many
// nodes run out of inotify instances. Watch returns when ctx ends, or when nothing can be watched.
func Watch(ctx context.Context, file string, before []byte, changed func(content []byte, err error),
	deaf func(every time.Duration, err error)) error {
	w, err := newWatcher()
	if err != nil {
		deaf(inspectAnyway, err)
		w = &fsnotify.Watcher{} // its channels are silent
	} else {
		defer w.Close()
	}
	inotify := err == nil
	file, err = filepath.Abs(file)
	if err != nil {
		return fmt.Errorf("watch the configuration file: %w", err)
	}
	known, failed := sha256.Sum256(before), ""
	busy := 0 // consecutive reads of a file that is being written
	// look returns the time until the next one.
	look := func() time.Duration {
		if inotify {
			follow(w, file)
		}
		content, err := readWhole(file)
		if errors.Is(err, errBusy) {
			busy++
			if busy < busyLooks {
				return settle
			}
		} else {
			busy = 0
		}
		switch {
		case err != nil:
			if err.Error() != failed {
				failed = err.Error()
				changed(nil, fmt.Errorf("read the configuration file: %w", err))
			}
		case sha256.Sum256(content) != known || failed != "":
			known, failed = sha256.Sum256(content), ""
			changed(content, nil)
		}
		if busy > 0 {
			return settleMost
		}
		return inspectAnyway
	}
	timer := time.NewTimer(look()) // it may have changed since it was read
	defer timer.Stop()
	var first time.Time // of the events since the last look
	soon := func() {
		if first.IsZero() {
			first = time.Now()
		}
		timer.Reset(min(settle, time.Until(first.Add(settleMost))))
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-w.Events:
			if !ok {
				return errors.New("watch the configuration file: the watcher ended")
			}
			soon()
		case <-w.Errors: // events were lost, perhaps of this file
			soon()
		case <-timer.C:
			first = time.Time{}
			timer.Reset(look())
		}
	}
}

// follow watches the folders of the file and of each symbolic link on the way to it, and no others.
// A folder that cannot be watched is left to the periodic read.
func follow(w *fsnotify.Watcher, file string) {
	dirs := folders(file)
	for _, dir := range w.WatchList() {
		if !slices.Contains(dirs, dir) {
			_ = w.Remove(dir)
		}
	}
	for _, dir := range dirs {
		_ = w.Add(dir) // also for a watched one: a folder may have been replaced
	}
}

// folders returns the folders in which a change may change the target of file. It follows links a
// step at a time, 40 at most, as the kernel does.
func folders(file string) []string {
	var dirs []string
	for range 40 {
		// The first link on the path decides the target of the rest.
		at, rest := firstLink(file)
		if at == "" {
			return append(dirs, filepath.Dir(file))
		}
		dirs = append(dirs, filepath.Dir(at))
		to, err := os.Readlink(at)
		if err != nil {
			return dirs
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(at), to)
		}
		file = filepath.Join(to, rest)
	}
	return dirs
}

// firstLink returns the first part of the path that is a symbolic link, and the rest; "" without a
// link.
func firstLink(file string) (at, rest string) {
	for i := 1; i <= len(file); i++ {
		if i < len(file) && file[i] != filepath.Separator {
			continue
		}
		if info, err := os.Lstat(file[:i]); err == nil && info.Mode()&os.ModeSymlink != 0 {
			return file[:i], file[i:]
		}
	}
	return "", ""
}
