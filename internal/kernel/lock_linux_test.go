package kernel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/nlconntest"
)

const someGroup = 4711

func openLock(t *testing.T, group uint16) *Lock {
	t.Helper()
	l, err := OpenLock(group)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A lock belongs to one process, or rather to one socket, until that closes; other namespaces and
// groups have their own. A process without permission to write rules cannot take it.
func TestLock(t *testing.T) {
	kerneltest.Every(t)
	n := netlab.NamespaceForTest(t)
	n.Do(func() {
		first, second, other := openLock(t, someGroup), openLock(t, someGroup), openLock(t, someGroup+1)
		defer second.Close()
		defer other.Close()
		if h := first.Holder(); h != (Holder{}) {
			t.Errorf("the holder before anybody is: %v", h)
		}
		for _, c := range []struct {
			what string
			of   *Lock
			want error
		}{{"the first", first, nil}, {"the first again", first, nil}, {"the second", second, ErrHeld},
			{"another group", other, nil}} {
			if err := c.of.Take(); err != c.want {
				t.Errorf("%s: %v, want %v", c.what, err, c.want)
			}
		}
		self, _ := os.Executable()
		h := second.Holder()
		if want := filepath.Base(self); h.PID != os.Getpid() || !strings.HasPrefix(want, h.Program) ||
			h.Program == "" || h.State == "" {
			t.Errorf("the holder is %v, want process %d (%s)", h, os.Getpid(), want)
		}
		elsewhere := netlab.NamespaceForTest(t)
		elsewhere.Do(func() {
			there := openLock(t, someGroup)
			defer there.Close()
			if err := there.Take(); err != nil {
				t.Errorf("in another network namespace: %v", err)
			}
		})
		first.Close()
		if err := second.Take(); err != nil {
			t.Errorf("the second after the first has closed: %v", err)
		}
	})
}

// A kernel that does not answer blocks no caller forever, and a taken lock stays.
func TestLockWithoutAnswer(t *testing.T) {
	kerneltest.Every(t)
	netlab.NamespaceForTest(t).Do(func() {
		held, other := openLock(t, someGroup), openLock(t, someGroup)
		defer held.Close()
		defer other.Close()
		if err := held.Take(); err != nil {
			t.Error(err)
		}
		held.conn.Timeout = 20 * time.Millisecond
		nlconntest.Silence(t, held.conn)
		if err := held.Take(); !errors.Is(err, netlink.ErrNoAnswer) {
			t.Errorf("without an answer: %v", err)
		}
		if err := other.Take(); err != ErrHeld {
			t.Errorf("the other: %v, want %v", err, ErrHeld)
		}
	})
}

func TestLockWithoutCapability(t *testing.T) {
	kerneltest.Every(t)
	err := netlab.Isolated(0, func() error {
		held := openLock(t, someGroup)
		defer held.Close()
		if err := held.Take(); err != nil {
			return err
		}
		var none [2]unix.CapUserData // of this thread, which ends with the function
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			return err
		}
		for _, group := range []uint16{someGroup, someGroup + 1} {
			l := openLock(t, group)
			defer l.Close()
			if err := l.Take(); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
				t.Errorf("group %d: %v", group, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
