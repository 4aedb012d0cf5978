//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/wiring"
)

// itWaits matches the log of a proxy that waits for another.
var itWaits = regexp.MustCompile(`W.*\] "Another kube-proxy serves this network namespace; waiting for it to exit" ` +
	`holder="process \d+ \(`)

// Two kube-proxies in one network namespace: the second reports that and waits. When the first
// ends, however it ends, the second takes over its objects; while it waits it can be stopped, and
// does not touch the rules.
func TestTwoProxies(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	young := n.with(t)
	young.write("m/other.yaml", service("other", "10.96.0.2", 80, "10.0.0.2"))
	first := n.serve("nftables")

	stopped := young.start(usual("nftables"))
	stopped.await(itWaits)
	stopped.stop()

	second := young.start(usual("nftables", "--bind-address-hard-fail"))
	second.await(itWaits)
	second.await(regexp.MustCompile(`"Read manifests"`))
	second.await(regexp.MustCompile(`I.*\] "Health server cannot listen yet"`)) // the first has the address
	// The answer of the first: a probe does not show that another waits, so DaemonSets use no surge
	// (docs/operate.md).
	n.code(healthURL+"/readyz", 200)
	n.wantGood("while the second waits")
	first.end(syscall.SIGKILL)
	second.await(regexp.MustCompile(`The other kube-proxy exited; taking over its rules`))
	second.await(allWritten)
	if got, want := n.serves(), "frontend 10.96.0.2 . tcp . 80\nbackend 10.0.0.2 . 8080\n"; got != want {
		t.Errorf("when the second has taken over the kernel has\n%swant:\n%s", got, want)
	}
	n.code(healthURL+"/readyz", 200)
	second.stop()
	if strings.Contains(first.log()+second.log()+stopped.log(), "others had changed") {
		t.Errorf("they undid each other's work:\n%s\n%s", first.log(), second.log())
	}
	if errorLine.MatchString(second.log()) {
		t.Errorf("a wait is no error:\n%s", second.log())
	}
}

// A stopped (SIGSTOP) proxy keeps the lock: it would continue to write when it is continued. The
// waiting process reports that, in the log and on its health port.
func TestFrozenProxy(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	frozen := n.serve("nftables")
	do(t, frozen.cmd.Process.Signal(syscall.SIGSTOP))
	second := n.start(usual("nftables", "--healthz-bind-address=127.0.0.1:10300"))
	second.await(itWaits)
	const url = "http://127.0.0.1:10300"
	n.code(url+"/livez", 200)
	a := n.code(url+"/readyz", 503)
	has(t, "/readyz", a.body, `"ready":false`, `"waiting":"another kube-proxy writes the rules of this network `+
		`namespace: process `, "T (stopped)")
	has(t, "the log", second.log(), "T (stopped)")
	do(t, frozen.cmd.Process.Signal(syscall.SIGCONT))
	frozen.stop()
	if a := n.code(url+"/readyz", 200); strings.Contains(a.body, "waiting") {
		t.Errorf("/readyz: %s", a.body)
	}
	second.stop()
}

// squat is an attempt of another program in the node's network namespace to block kube-proxy: it
// takes the lock, as far as it can.
func squat() error {
	lock, err := kernel.OpenLock(wiring.WriterGroup)
	if err != nil {
		return err
	}
	err = lock.Take()
	fmt.Println("squatting:", err)
	if !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("take the lock: %w", err)
	}
	time.Sleep(time.Hour)
	return nil
}

// A program without permission to write rules cannot block the proxy: neither another user, nor
// root without capabilities, nor the root of a user namespace, whatever pid namespace hides it.
func TestSquatters(t *testing.T) {
	t.Parallel()
	root := []syscall.SysProcIDMap{{HostID: 0, Size: 1}}
	for name, as := range map[string]func(*exec.Cmd){
		"another user": env(asUser + "=65534"),
		"root without capabilities": func(c *exec.Cmd) {
			c.Args = []string{"setpriv", "--inh-caps=-all", "--bounding-set=-all", c.Path}
			c.Path, c.Err = exec.LookPath("setpriv")
		},
		"root of a user namespace": func(c *exec.Cmd) {
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: root, GidMappings: root}
		},
		"hidden by a pid namespace": func(c *exec.Cmd) {
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID, UidMappings: root,
				GidMappings: root}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			squatter := n.start(nil, func(c *exec.Cmd) { as(c); c.Env = append(c.Env, asSquatter+"=1") })
			squatter.await(regexp.MustCompile("squatting: .*CAP_NET_ADMIN"))
			p := n.serve("nftables")
			n.code(healthURL+"/readyz", 200)
			n.wantGood("beside a squatter")
			if strings.Contains(p.log(), "nother kube-proxy") {
				t.Errorf("the squatter was heeded:\n%s", p.log())
			}
		})
	}
}

// A long wait is logged again, and a released lock is passed on.
func TestTurnReminds(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	var first, second *writerLock
	r, w := io.Pipe()
	n.Do(func() {
		first, second = newWriterLock(slog.New(slog.DiscardHandler)),
			newWriterLock(slog.New(slog.NewTextHandler(w, nil)))
	})
	second.remind = time.Millisecond
	do(t, first.wait(t.Context()))
	done := make(chan error)
	go func() { done <- second.wait(t.Context()); w.Close() }()
	buf := make([]byte, 4096)
	for range 3 {
		k, err := r.Read(buf)
		if err != nil || !strings.Contains(string(buf[:k]), "waiting for it to exit") {
			t.Fatalf("%s, %v", buf[:k], err)
		}
	}
	if since, on := second.waiting(); since.IsZero() || !strings.HasPrefix(on, "another kube-proxy writes") {
		t.Errorf("waiting since %v on %q", since, on)
	}
	go io.Copy(io.Discard, r)
	first.close()
	do(t, <-done)
	if since, on := second.waiting(); !since.IsZero() || on != "" {
		t.Errorf("after the wait: since %v on %q", since, on)
	}
	second.close()
}
