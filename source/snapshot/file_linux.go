package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/cluster"
)

// Supported: this system has snapshots.
const Supported = true

// The files in the directory: the snapshot, and the next one while it is written.
const (
	current = "facts"
	next    = "facts.new"
)

// Load returns the snapshot in dir for a node. The error wraps [ErrNone] if dir has none, or does
// not exist, and else says why it is rejected. Load changes nothing.
func Load(dir, node string, maxAge time.Duration, now time.Time) (*Snapshot, error) {
	s, err := load(dir)
	if err == nil {
		err = s.check(node, maxAge, now)
	}
	if errors.Is(err, unix.ENOENT) {
		err = ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot %s/%s: %w", dir, current, err)
	}
	return s, nil
}

func load(dir string) (*Snapshot, error) {
	d, _, err := open(unix.AT_FDCWD, dir, unix.S_IFDIR)
	if err != nil {
		return nil, fmt.Errorf("the directory: %w", err)
	}
	defer d.Close()
	f, size, err := open(int(d.Fd()), current, unix.S_IFREG)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return decode(f, size)
}

// open opens a directory or a file to which no other user has access. It follows no symbolic link,
// and a named pipe does not block it.
func open(at int, name string, kind uint32) (f *os.File, size int64, err error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, 0, errors.New("it is a symbolic link")
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open it: %w", err)
	}
	f = os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	switch mode := st.Mode & 0o777; {
	case err != nil:
	case st.Mode&unix.S_IFMT != kind && kind == unix.S_IFDIR:
		err = errors.New("it is not a directory")
	case st.Mode&unix.S_IFMT != kind:
		err = errors.New("it is not a regular file")
	case int(st.Uid) != os.Geteuid():
		err = fmt.Errorf("it belongs to user %d, and this process is user %d", st.Uid, os.Geteuid())
	case mode&0o077 != 0:
		err = fmt.Errorf("other users have access (mode %04o): run chmod go= on it", mode)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, st.Size, nil
}

// Save replaces the snapshot in dir by the facts of a store. After a failure, even of power, dir
// has the old snapshot or the new one. A process that writes there at the same time makes it fail.
func Save(dir string, o Origin, store *cluster.Store) (saved Saved, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return saved, fmt.Errorf("snapshot: create the directory: %w", err)
	}
	d, _, err := open(unix.AT_FDCWD, dir, unix.S_IFDIR)
	if err != nil {
		return saved, fmt.Errorf("snapshot: the directory %s: %w", dir, err)
	}
	defer d.Close()
	at := int(d.Fd())
	if err := unix.Flock(at, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return saved, fmt.Errorf("snapshot %s: another process writes in this directory: %w", dir, err)
	}
	saved, err = write(at, o, store)
	if err == nil {
		err = unix.Renameat(at, next, at, current)
	}
	if err == nil {
		err = d.Sync()
	}
	if err != nil {
		_ = unix.Unlinkat(at, next, 0) // what stays is removed by the next Save
		return saved, fmt.Errorf("snapshot: write %s/%s: %w", dir, next, err)
	}
	return saved, nil
}

// write writes the next snapshot to the disk.
func write(at int, o Origin, store *cluster.Store) (saved Saved, err error) {
	if err := unix.Unlinkat(at, next, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return saved, err
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(at, next, flags, 0o600)
	if err != nil {
		return saved, err
	}
	f := os.NewFile(uintptr(fd), next)
	saved, err = encode(f, o, store)
	if err == nil {
		err = f.Sync()
	}
	return saved, errors.Join(err, f.Close())
}

// Boot identifies the kernel state of this network namespace: the boot with an id, and the
// namespace's cookie, which no other of this boot ever has. Kernels before 5.14 have no cookies;
// the inode stands in, which a later namespace may have again. Such a one finds a snapshot of its
// node "not needed" and waits for the API server, as it would without a snapshot.
func Boot(id string) string {
	if id == "" {
		return ""
	}
	if fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
		defer unix.Close(fd)
		if n, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil {
			return fmt.Sprintf("%s/cookie-%d", id, n)
		}
	}
	var st unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &st) != nil {
		return id
	}
	return fmt.Sprintf("%s/%d", id, st.Ino)
}
