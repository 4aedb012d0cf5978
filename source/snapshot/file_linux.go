package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
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
	d, err := open(dir)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("snapshot %s/%s: %w", dir, current, ErrNone)
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	s, err := load(d)
	if err == nil {
		err = s.check(node, maxAge, now)
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot %s/%s: %w", dir, current, err)
	}
	return s, nil
}

func load(d *os.File) (*Snapshot, error) {
	// Without O_NONBLOCK a named pipe would block here.
	fd, err := unix.Openat(int(d.Fd()), current, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, ErrNone
	case errors.Is(err, unix.ELOOP):
		return nil, errors.New("it is a symbolic link")
	case err != nil:
		return nil, fmt.Errorf("open it: %w", err)
	}
	f := os.NewFile(uintptr(fd), current)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("inspect it: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("it is not a regular file")
	}
	if err := private(&st); err != nil {
		return nil, err
	}
	return decode(f, st.Size)
}

// Save replaces the snapshot in dir by the facts of a store. After a failure, even of power, dir
// has the old snapshot or the new one. A process that writes there at the same time makes it fail.
func Save(dir string, o Origin, store *cluster.Store) (saved Saved, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return saved, fmt.Errorf("snapshot: create the directory: %w", err)
	}
	d, err := open(dir)
	if err != nil {
		return saved, err
	}
	defer d.Close()
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return saved, fmt.Errorf("snapshot %s: another process writes in this directory: %w", dir, err)
	}
	if saved, err = write(d, o, store); err == nil {
		if err = unix.Renameat(int(d.Fd()), next, int(d.Fd()), current); err == nil {
			err = d.Sync()
		}
	}
	if err != nil {
		_ = remove(d) // what stays is removed by the next Save
		return saved, fmt.Errorf("snapshot: write %s/%s: %w", dir, next, err)
	}
	return saved, nil
}

// write writes the next snapshot. Facts that are too large are written a second time, without the
// namespaces with the most of them.
func write(d *os.File, o Origin, store *cluster.Store) (saved Saved, err error) {
	for {
		if err := remove(d); err != nil && !errors.Is(err, unix.ENOENT) {
			return saved, err
		}
		const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
		fd, err := unix.Openat(int(d.Fd()), next, flags, 0o600)
		if err != nil {
			return saved, err
		}
		f := os.NewFile(uintptr(fd), next)
		size, tooLarge, err := encode(f, o, store, saved.LeftOut)
		saved.Size += size
		saved.LeftOut = append(saved.LeftOut, tooLarge...)
		if err == nil && tooLarge == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err != nil || tooLarge == nil {
			slices.Sort(saved.LeftOut)
			return saved, err
		}
	}
}

func remove(d *os.File) error { return unix.Unlinkat(int(d.Fd()), next, 0) }

// open opens a directory that no other user can read or write.
func open(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("snapshot: %s is not a directory; a symbolic link to one will not do", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot: open the directory %s: %w", dir, err)
	}
	d := os.NewFile(uintptr(fd), dir)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = private(&st)
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("snapshot: the directory %s: %w", dir, err)
	}
	return d, nil
}

// private says who besides this user has access.
func private(st *unix.Stat_t) error {
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d, and this process is user %d", st.Uid, os.Geteuid())
	}
	if mode := st.Mode & 0o777; mode&0o077 != 0 {
		return fmt.Errorf("other users have access (mode %04o): run chmod go= on it", mode)
	}
	return nil
}

// Boot identifies the kernel state of this network namespace: the boot with an id, and the
// namespace in it; "" if the id is not known.
func Boot(id string) string {
	if id == "" {
		return ""
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return id
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil { // Linux before 5.14 has only numbers that are used again
		var st unix.Stat_t
		if unix.Stat("/proc/thread-self/ns/net", &st) != nil {
			return id
		}
		cookie = st.Ino
	}
	return fmt.Sprintf("%s/%d", id, cookie)
}
