//go:build linux

package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/cluster"
)

// alone gives the test a mount namespace of its own. Its thread ends with it.
func alone(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	do(t, unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS))
	do(t, unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""))
}

// SN-06: a disk that is full or read-only makes a write fail with one line, and the snapshot before
// stays.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, mount string)
		want  string
	}{
		{"full", func(*testing.T, string) {}, "no space left on device"},
		{"read-only", func(t *testing.T, mount string) {
			do(t, unix.Mount("", mount, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}, "read-only file system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			alone(t)
			mount := t.TempDir()
			do(t, unix.Mount("tmpfs", mount, "tmpfs", 0, "size=64k"))
			defer unix.Unmount(mount, unix.MNT_DETACH)
			dir := filepath.Join(mount, "s")
			mustSave(t, dir, storeOf(oldServices))
			c.spoil(t, mount)
			saved, err := Save(dir, origin(), storeOf(newServices))
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v; want one line with %q", err, c.want)
			}
			if c.name == "full" && saved.Size == 0 {
				t.Error("what a full disk took is not counted")
			}
			if s, err := Load(dir, "n1", time.Hour, now); err != nil || s.Services() != oldServices {
				t.Errorf("after it: %v", err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("it leaves %v (%v)", left, err)
			}
		})
	}
}

// SN-06: two processes with one directory never write at once: the second fails, and the file is
// whole.
func TestTwoWriters(t *testing.T) {
	t.Parallel()
	dir, _ := saved(t)
	other, _, err := open(unix.AT_FDCWD, dir, unix.S_IFDIR)
	do(t, err)
	do(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))
	if _, err := Save(dir, origin(), storeOf(1)); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("while another process writes: %v", err)
	}
	do(t, other.Close())
	mustSave(t, dir, storeOf(1))
}

// SN-06: a symbolic link in the place of a file is replaced, not followed.
func TestLinkIsReplaced(t *testing.T) {
	t.Parallel()
	for _, name := range []string{current, next} {
		dir, _ := saved(t)
		target := filepath.Join(t.TempDir(), "precious")
		do(t, os.WriteFile(target, []byte("precious"), 0o600))
		_ = os.Remove(filepath.Join(dir, name)) // the next one is not there
		do(t, os.Symlink(target, filepath.Join(dir, name)))
		mustSave(t, dir, storeOf(1))
		mustLoad(t, dir)
		if content, err := os.ReadFile(target); err != nil || string(content) != "precious" {
			t.Errorf("the link's target: %q (%v)", content, err)
		}
	}
}

// SN-08: a tenant whose facts are too many is left out. All others keep their snapshot, though
// their Services come later in the alphabet.
func TestTooLargeToWrite(t *testing.T) {
	store := storeOf(100)
	large := []cluster.SlicePort{{Name: strings.Repeat("x", MaxSize/2)}, {Name: "http"}, {Name: "new"}}
	for i := range 10 {
		name := cluster.Name{Namespace: "flood", Name: fmt.Sprint(i)}
		large[1].Port = uint16(i)
		large[0].Name = strings.Repeat(fmt.Sprint(i), MaxSize/2)
		store.Fold(cluster.Batch{cluster.ServiceSet{Service: &cluster.Service{Name: name}},
			cluster.SliceSet{Slice: &cluster.Slice{Name: name, Service: name, Ports: slices.Clone(large)}}})
	}
	dir := filepath.Join(t.TempDir(), "s")
	saved := mustSave(t, dir, store)
	if !slices.Equal(saved.LeftOut, []string{"flood"}) || saved.Size > MaxSize {
		t.Errorf("left out %v, written %d", saved.LeftOut, saved.Size)
	}
	if n := mustLoad(t, dir).Services(); n != 101 { // one of the flood has room
		t.Errorf("%d Services, want 101", n)
	}
}

// SN-06: Save creates the directory, but no directory above it.
func TestDirectoryIsCreated(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a")
	if _, err := Save(filepath.Join(dir, "b"), origin(), storeOf(1)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the directory above: %v", err)
	}
	mustSave(t, dir, storeOf(1))
	if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|0o700 {
		t.Errorf("the directory: %v (%v)", info, err)
	}
}

// SN-01: facts change while they are written. Each file is whole, and has every Service that stays.
func TestSaveBesideChanges(t *testing.T) {
	t.Parallel()
	const services = 300
	store, dir := storeOf(services), filepath.Join(t.TempDir(), "s")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := cluster.Name{Namespace: "flood", Name: "a"}
			endpoints := cluster.EndpointsOf(make([]cluster.Endpoint, i%5)...)
			of := &cluster.Slice{Name: name, Service: name, Endpoints: endpoints}
			service := &cluster.Service{Name: name, Created: int64(i)}
			store.Fold(cluster.Batch{cluster.ServiceSet{Service: service}, cluster.SliceSet{Slice: of}})
			store.Fold(cluster.ServiceGone{Name: name})
		}
	}()
	for range 20 {
		mustSave(t, dir, store)
		if n := mustLoad(t, dir).Services(); n < services || n > services+1 {
			t.Errorf("%d Services, want %d or one more", n, services)
		}
	}
	close(stop)
	<-stopped
}

// SN-07: the same network namespace in the same boot is one kernel state. Another of either is
// another, and an unknown boot is none.
func TestBoot(t *testing.T) {
	t.Parallel()
	alone(t)
	here := Boot("a")
	if here != Boot("a") || here == Boot("b") || Boot("") != "" {
		t.Errorf("%q, %q, %q, %q", here, Boot("a"), Boot("b"), Boot(""))
	}
	seen := map[string]bool{here: true}
	for range 100 { // the kernel gives the inodes of those that are gone to later ones
		do(t, unix.Unshare(unix.CLONE_NEWNET))
		if is := Boot("a"); seen[is] {
			t.Fatalf("a new network namespace is taken for one of %d before it: %s", len(seen), is)
		}
		seen[Boot("a")] = true
	}
}
