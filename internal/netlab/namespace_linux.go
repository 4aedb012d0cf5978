package netlab

import (
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
		err = unix.Unshare(int(more) | unix.CLONE_NEWNET | unix.CLONE_FS)
		if err != nil {
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
	TID   int // of the thread, by which ip names the namespace
	calls chan func()
}

// NamespaceForTest makes a namespace. Its thread ends with the test, and it ends with the last
// socket and program in it. It needs root (CAP_SYS_ADMIN).
func NamespaceForTest(t TB) *Namespace {
	t.Helper()
	n := &Namespace{calls: make(chan func())}
	made := make(chan error)
	go func() {
		err := Isolated(unix.CLONE_NEWNS, func() error {
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("netlab: keep mounts to the namespace: %w", err)
			}
			n.TID = unix.Gettid()
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
		t.Fatal(err)
	}
	t.Cleanup(func() { close(n.calls) })
	return n
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

// EnterForTest locks the test's goroutine to its thread and takes it into a new network namespace
// until the test ends. It needs root (CAP_SYS_ADMIN).
func EnterForTest(t TB) {
	t.Helper()
	home, err := lockThread()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := returnTo(home); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(fmt.Errorf("make a network namespace (root is needed): %w", err))
	}
}
