package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

// PR-04: a change is one of content, however it is made.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	mounted := filepath.Join(dir, "mounted")
	version := func(name, content string) string { // as the kubelet does
		t.Helper()
		must(t, os.MkdirAll(filepath.Join(mounted, name), 0o755))
		must(t, os.WriteFile(filepath.Join(mounted, name, "config.conf"), []byte(content), 0o600))
		return name
	}
	must(t, os.Mkdir(mounted, 0o755))
	must(t, os.Symlink(version("..v1", "one"), filepath.Join(mounted, "..data")))
	must(t, os.Symlink("..data/config.conf", filepath.Join(mounted, "config.conf")))
	must(t, os.Symlink("mounted/config.conf", filepath.Join(dir, "link.conf")))
	plain := filepath.Join(dir, "plain.conf")
	must(t, os.WriteFile(plain, []byte("one"), 0o600))
	swap := func(name, content string) {
		must(t, os.Symlink(version(name, content), filepath.Join(mounted, "..data_tmp")))
		must(t, os.Rename(filepath.Join(mounted, "..data_tmp"), filepath.Join(mounted, "..data")))
	}
	for _, tc := range []struct {
		name, file string
		steps      []func()
		want       []string // the report of each step, "" for none
	}{
		{"written", plain, []func(){
			func() { must(t, os.WriteFile(plain, []byte("two"), 0o600)) },
			func() { must(t, os.WriteFile(plain, []byte("two"), 0o600)) }, // the same again
			func() { must(t, os.Chmod(plain, 0o644)) },
			func() { must(t, os.WriteFile(plain, []byte("three"), 0o600)) },
		}, []string{"two", "", "", "three"}},
		{"renamed over", plain, []func(){
			func() { must(t, os.WriteFile(plain+"~", []byte("two"), 0o600)); must(t, os.Rename(plain+"~", plain)) },
			func() { must(t, os.WriteFile(plain, []byte("three"), 0o600)) },
		}, []string{"two", "three"}},
		{"gone and back", plain, []func(){
			func() { must(t, os.Remove(plain)) },
			func() { must(t, os.WriteFile(plain, []byte("one"), 0o600)) }, // as it was
			func() { must(t, os.Remove(plain)) },
			func() { must(t, os.WriteFile(plain, []byte("two"), 0o600)) },
		}, []string{"error", "one", "error", "two"}},
		{"mounted", filepath.Join(mounted, "config.conf"), []func(){
			func() { swap("..v2", "two") },
			func() { swap("..v3", "two") }, // another object, the same content
			func() { swap("..v4", "three") },
			func() { must(t, os.RemoveAll(filepath.Join(mounted, "..v2"))) },
			func() { swap("..v5", "one") },
		}, []string{"two", "", "three", "", "one"}},
		{"through two links", filepath.Join(dir, "link.conf"), []func(){func() { swap("..v6", "two") }},
			[]string{"two"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must(t, os.WriteFile(plain, []byte("one"), 0o600))
			ctx, cancel := context.WithCancel(t.Context())
			reports, ended := make(chan string, 100), make(chan error, 1)
			go func() {
				ended <- Watch(ctx, tc.file, []byte("one"), func(content []byte, err error) {
					if err != nil {
						content = []byte("error")
					}
					reports <- string(content)
				}, mustWatch(t))
			}()
			time.Sleep(2 * settle) // the watch begins
			for i, step := range tc.steps {
				step()
				wait := 8 * settle // long enough for a report on a busy machine
				if tc.want[i] != "" {
					wait = inspectAnyway / 2
				}
				got := ""
				select {
				case got = <-reports:
				case <-time.After(wait):
				}
				if got != tc.want[i] {
					t.Errorf("step %d: reported %q, want %q", i, got, tc.want[i])
				}
			}
			cancel()
			must(t, <-ended)
			if len(reports) > 0 {
				t.Errorf("reported %q too", <-reports)
			}
		})
	}
}

// mustWatch fails the test if the kernel sends no notification of changes.
func mustWatch(t *testing.T) func(time.Duration, error) {
	return func(_ time.Duration, err error) { t.Errorf("no watch: %v", err) }
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The watch also reports a change between the first read and its start.
func TestWatchBegins(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c")
	must(t, os.WriteFile(file, []byte("new"), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got := ""
	must(t, Watch(ctx, file, []byte("old"), func(content []byte, _ error) { got = string(content); cancel() },
		mustWatch(t)))
	if got != "new" {
		t.Errorf("reported %q", got)
	}
}

// A file that is written slowly is not read half-way: a half file may lack externalIPCIDRs, and
// then all external IPs would be served (TN-80).
func TestWatchSlowWriterTN80(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte("before"), 0o600))
	noticed := make(chan string, 10)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- Watch(ctx, file, []byte("before"), func(content []byte, err error) {
			noticed <- fmt.Sprintf("%s %v", content, err)
		}, mustWatch(t))
	}()
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	for range 3 {
		_, err := f.WriteString("part ")
		must(t, err)
		time.Sleep(3 * settle) // longer than the file has to be left alone
	}
	must(t, f.Close())
	if got := <-noticed; got != "part part part  <nil>" {
		t.Errorf("read %q while the file was being written", got)
	}
	stop()
	must(t, <-ended)
}

// A folder in which others write all the time, such as that of a log, does not delay the report of
// a change.
func TestWatchBusyFolder(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c")
	must(t, os.WriteFile(file, []byte("one"), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), inspectAnyway/2)
	defer cancel()
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = os.WriteFile(filepath.Join(dir, "log"), []byte("line"), 0o600)
			time.Sleep(settle / 50)
		}
	}()
	time.AfterFunc(2*settle, func() { _ = os.WriteFile(file, []byte("two"), 0o600) })
	got := ""
	must(t, Watch(ctx, file, []byte("one"), func(content []byte, _ error) { got = string(content); cancel() },
		mustWatch(t)))
	if got != "two" {
		t.Errorf("reported %q in %v", got, inspectAnyway/2)
	}
}

// On a node that has run out of inotify instances, changes are noticed too, only later.
func TestWatchWithoutInotify(t *testing.T) {
	t.Cleanup(func() { newWatcher = fsnotify.NewWatcher })
	newWatcher = func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }
	file := filepath.Join(t.TempDir(), "c")
	must(t, os.WriteFile(file, []byte("one"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(time.Second, func() { must(t, os.WriteFile(file, []byte("two"), 0o600)) })
		var got string
		var deaf error
		must(t, Watch(ctx, file, []byte("one"), func(content []byte, _ error) { got = string(content); cancel() },
			func(_ time.Duration, err error) {
				deaf = err
				time.AfterFunc(2*inspectAnyway, cancel)
			}))
		if got != "two" || !errors.Is(deaf, syscall.EMFILE) {
			t.Errorf("reported %q, and of %v", got, deaf)
		}
	})
}
