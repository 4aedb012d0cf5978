package thread_test

import (
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/thread"
)

// TestOwn: functions run on threads of their own, none of them the main thread, though they
// occupy more threads than were idle.
func TestOwn(t *testing.T) {
	var mu sync.Mutex
	var all sync.WaitGroup
	seen := map[int]bool{}
	for range 64 {
		all.Go(func() {
			thread.Own(func() {
				mu.Lock()
				if id := unix.Gettid(); id == unix.Getpid() || seen[id] {
					t.Errorf("ran on thread %d of process %d, used before: %v", id, unix.Getpid(), seen[id])
				}
				seen[unix.Gettid()] = true
				mu.Unlock()
				wait := unix.NsecToTimespec(int64(50 * time.Millisecond))
				if err := unix.Nanosleep(&wait, nil); err != nil {
					t.Error(err)
				}
			})
		})
	}
	all.Wait()
	if len(seen) != 64 {
		t.Errorf("%d functions ran of 64", len(seen))
	}
}
