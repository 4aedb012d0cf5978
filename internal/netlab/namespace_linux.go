package netlab

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/thread"
)

// Isolated runs fn on a thread in new namespaces, which end with it: a network namespace, and those
// in more (CLONE_NEWNS and so on). Programs that fn starts are in them, goroutines that it starts
// are not.
func Isolated(more uintptr, fn func() error) error {
	var err error
	thread.Own(func() {
		// Threads share the root and the working directory; with a shared one the kernel gives no
		// mount namespace.
		if err = unix.Unshare(int(more) | unix.CLONE_NEWNET | unix.CLONE_FS); err != nil {
			err = fmt.Errorf("netlab: make namespaces (root is needed): %w", err)
			return
		}
		err = fn()
	})
	return err
}

// In runs fn on a thread that is in the namespace. Sockets that fn opens and programs that it
// starts belong to that for ever; goroutines that it starts do not.
func In(ns netns.NsHandle, fn func() error) error {
	return onThread(func() error {
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("netlab: enter namespace %s: %w", ns.UniqueId(), err)
		}
		return fn()
	})
}

// Namespace is a network namespace with only the link lo, which is down, and a thread in it. The
// thread, and the programs that it starts, have their own mounts.
type Namespace struct {
	calls chan func()
	tid   int
}

// NewNamespace makes a namespace. The caller must Close it. It needs root (CAP_SYS_ADMIN).
func NewNamespace() (*Namespace, error) {
	n := &Namespace{calls: make(chan func())}
	made := make(chan error)
	go func() {
		err := Isolated(unix.CLONE_NEWNS, func() error {
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("netlab: keep mounts to the namespace: %w", err)
			}
			n.tid = unix.Gettid()
			made <- nil
			for call := range n.calls {
				call()
			}
			return nil
		})
		if err != nil {
			made <- err
		}
	}()
	if err := <-made; err != nil {
		return nil, err
	}
	return n, nil
}

// Do runs fn on the namespace's thread, calls from several goroutines one after the other. Sockets
// that fn opens and programs that it starts belong to the namespace for ever; goroutines that it
// starts do not.
func (n *Namespace) Do(fn func()) {
	done := make(chan struct{})
	n.calls <- func() {
		defer close(done)
		fn()
	}
	<-done
}

// TID is the id of the namespace's thread, by which ip names its network namespace.
func (n *Namespace) TID() int { return n.tid }

// Close ends the thread; Do must not be called any more. The namespace ends with the last socket
// and program in it.
func (n *Namespace) Close() { close(n.calls) }

// EnterNew locks the calling goroutine to its thread and takes it into a new network namespace,
// until leave is called from the same goroutine. It needs root (CAP_SYS_ADMIN).
func EnterNew() (leave func() error, err error) {
	home, err := lockThread()
	if err != nil {
		return nil, fmt.Errorf("netlab: %w", err)
	}
	leave = func() error { return returnTo(home) }
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("netlab: make a network namespace (root is needed): %w", errors.Join(err, leave()))
	}
	return leave, nil
}
