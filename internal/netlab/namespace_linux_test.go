package netlab

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The main thread outlives every goroutine, and /proc/self shows it: nothing may be left in it. Go
// runs a new goroutine there often enough for a hundred tries.
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

func TestNamespace(t *testing.T) {
	n, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	links := func() string {
		names, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			t.Error(err)
		}
		return string(names)
	}
	n.Do(func() {
		if got := links(); strings.Count(got, ":") != 1 || !strings.Contains(got, "lo:") {
			t.Errorf("not lo alone: %s", got)
		}
		if n.TID() != unix.Gettid() {
			t.Errorf("thread %d, want %d", unix.Gettid(), n.TID())
		}
	})
	n.Close()

	before, leave, err := links(), func() error { return nil }, error(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if leave, err = EnterNew(); err != nil {
			t.Error(err)
			return
		}
		if got := links(); strings.Count(got, ":") != 1 {
			t.Errorf("entered, and not lo alone: %s", got)
		}
		if err := leave(); err != nil {
			t.Error(err)
		}
		if got := links(); strings.Count(got, ":") != strings.Count(before, ":") {
			t.Errorf("left, and sees %s, not %s", got, before)
		}
	}()
	<-done
}
