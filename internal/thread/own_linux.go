package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Own runs fn on a thread that ends with it, so fn may leave the thread in other namespaces.
// It is never the main thread: Go parks that one instead of ending it, so that it would keep its
// namespaces as long as the process lives, and /proc/self would show them.
func Own(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			Own(fn) // cannot be this one, which is taken
			runtime.UnlockOSThread()
			return
		}
		fn()
	}()
	<-done
}
