//go:build !windows

package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a unix socket that this process listens at.
type socket struct {
	*net.UnixListener
	path  string
	inode fs.FileInfo
	broke atomic.Bool
}

// dialWait is how long a process that may still listen is given to take a connection.
const dialWait = time.Second

// openSocket listens at path, for root alone. It makes the folder if it does not exist. A socket
// without a listener is replaced, one of a process that lives is not.
func openSocket(path string) (*socket, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := clear(path); err != nil {
		return nil, err
	}
	l, err := listenUnix(path)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by then it may be another's
	s := &socket{UnixListener: l, path: path}
	if s.inode, err = os.Lstat(path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// listenUnix creates the socket so that no other user can ever connect: bind(2) uses the
// permissions of the descriptor. Changing them by path, after bind, leaves a moment in which others
// may connect, and changes those of another file if another program puts a link there.
func listenUnix(path string) (*net.UnixListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// dial connects to the process that listens at path.
func dial(ctx context.Context, path string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

// clear removes a socket without a listener.
func clear(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: remove it, or choose another path", path)
	}
	c, err := net.DialTimeout("unix", path, dialWait)
	switch {
	case err == nil:
		defer c.Close()
		return fmt.Errorf("%s is in use by %s", path, peer(c))
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("cannot check whether %s is in use: %w", path, err)
	}
	return os.Remove(path)
}

// lockDir has processes that take and remove the socket do so one after the other.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(dialWait); ; time.Sleep(10 * time.Millisecond) {
		err = unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = d.Close() }, nil // which unlocks
		}
		if time.Now().After(end) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
		}
	}
}

// ours reports whether the path still names this socket.
func (s *socket) ours() bool {
	info, err := os.Lstat(s.path)
	return err == nil && os.SameFile(info, s.inode) && !s.broke.Load()
}

// remove removes the path, if it still names this socket.
func (s *socket) remove() {
	unlock, err := lockDir(filepath.Dir(s.path))
	if err != nil {
		return // it stays, and the next process replaces it
	}
	defer unlock()
	if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.inode) {
		_ = os.Remove(s.path) // as above
	}
}

func (s *socket) close() {
	s.remove()
	_ = s.Close() // it is gone in any case
}
