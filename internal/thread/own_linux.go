package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Own runs fn on a thread that ends with it, so fn may leave the thread in other namespaces.
// It never uses the main thread, which Go parks instead of ending: that thread would keep the
// namespaces for the life of the process, and /proc/self would show them.
func Own(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			Own(fn) // on another thread, as this one is locked
			runtime.UnlockOSThread()
			return
		}
		fn()
	}()
	<-done
}
