package redirect

import (
	"errors"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/plane"
)

// TestChoose (DP-40): the best redirector of the host, and the reasons against better ones.
func TestChoose(t *testing.T) {
	for _, w := range worlds() {
		t.Run(w.Family.String(), func(t *testing.T) {
			netlab.EnterForTest(t)
			c, passed, err := Choose(Config{Family: w.Family})
			if err != nil || c.Name() != "nftables" || len(passed) != 0 {
				t.Fatalf("%v, %v, %v", c, passed, err)
			}
			c.Close()
			if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("to choose wrote something: %s, %v", out, err)
			}
		})
	}
}

// TestChooseWithoutRights: without the privilege to write rules no redirector works. The error says
// so for each, with the remedy.
func TestChooseWithoutRights(t *testing.T) {
	for _, w := range worlds() {
		err, failed := make(chan error), make(chan error)
		go func() { // its thread ends with it, because it cannot regain privileges
			runtime.LockOSThread()
			e := unix.Unshare(unix.CLONE_NEWNET)
			for _, right := range []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW} {
				e = errors.Join(e, unix.Prctl(unix.PR_CAPBSET_DROP, right, 0, 0, 0))
			}
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var none [2]unix.CapUserData
			failed <- errors.Join(e, unix.Capset(&head, &none[0]))
			c, _, e := Choose(Config{Family: w.Family})
			if e == nil {
				e = errors.New("chosen: " + c.Name())
			}
			err <- e
		}()
		if e := <-failed; e != nil {
			t.Fatal(e)
		}
		e := <-err
		if !errors.Is(e, plane.ErrUnsupported) {
			t.Errorf("%s: %v", w.Family, e)
		}
		for _, want := range []string{"redirect by nftables", "redirect by iptables", "nftables or iptables is needed",
			"CAP_NET_ADMIN"} {
			if !strings.Contains(e.Error(), want) {
				t.Errorf("the error does not have %q: %v", want, e)
			}
		}
	}
}
