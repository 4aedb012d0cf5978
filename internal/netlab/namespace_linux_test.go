package netlab

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The main thread outlives every goroutine, and /proc/self shows it: no namespace may stay in it.
// Go runs a new goroutine there often enough for a hundred tries.
func TestMainThreadStaysHome(t *testing.T) {
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, Options{NoNode2: true, NoClient: true})
	for range 100 {
		err := Isolated(unix.CLONE_NEWNS, func() error {
			if unix.Gettid() == unix.Getpid() {
				t.Error("on the main thread")
			}
			if ns, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || ns == home {
				t.Errorf("in namespace %s (%v), as the process", ns, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Command("pod1", "true").Run(); err != nil {
			t.Fatal(err)
		}
		if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != home {
			t.Fatalf("the main thread is in namespace %s (%v), was in %s", now, err, home)
		}
	}
}
