package relay

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is the network namespace of the relay's sockets, whatever thread creates them.
type namespace struct {
	fd  int
	ino uint64
}

const threadNamespace = "/proc/thread-self/ns/net"

// currentNamespace returns the network namespace of the calling thread.
func currentNamespace() (namespace, error) {
	fd, err := unix.Open(threadNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return namespace{}, fmt.Errorf("open %s: %w", threadNamespace, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return namespace{}, fmt.Errorf("stat %s: %w", threadNamespace, err)
	}
	return namespace{fd, st.Ino}, nil
}

func (n namespace) close() { unix.Close(n.fd) }

// run calls fn on this thread in the namespace, and then returns to the previous one. A process
// that never leaves its namespace needs no privilege for it.
func (n namespace) run(fn func() error) error {
	runtime.LockOSThread()
	home, err := currentNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.close()
	if home.ino == n.ino {
		defer runtime.UnlockOSThread()
		return fn()
	}
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace of the relay (CAP_SYS_ADMIN is needed): %w", err)
	}
	err = fn()
	if back := unix.Setns(home.fd, unix.CLONE_NEWNET); back != nil {
		// A thread that stays locked ends with its goroutine, and never serves another.
		return errors.Join(err, fmt.Errorf("return to the network namespace of the caller: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}
