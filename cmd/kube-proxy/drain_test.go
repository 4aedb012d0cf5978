//go:build linux

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
)

// SIGTERM where connections end at the proxy: it accepts no more, lets open ones finish, and exits
// with 0. Meanwhile the next process may serve (PR-07).
func TestDrain(t *testing.T) {
	t.Parallel()
	n, memories := newNode(t), t.TempDir()
	open, closed := filepath.Join(memories, "open"), filepath.Join(memories, "closed")
	serve := func(args ...string) *process {
		t.Helper()
		args = append(usual("memory"), args...)
		p := n.start(args, env(withMemory+"="+memories))
		p.await(allWritten)
		return p
	}
	term := func(p *process) {
		t.Helper()
		do(t, p.cmd.Process.Signal(syscall.SIGTERM))
		p.await(regexp.MustCompile(`"Draining connections; a second signal closes them at once" within=`))
		if _, err := os.Stat(closed); err != nil {
			t.Error(err)
		}
	}
	write(t, open, nil)

	// Another serves while the first still waits. It has the ports, and the right to write.
	first := serve("--memory-drain-timeout=1h")
	n.code(healthURL+"/healthz", 200)
	term(first)
	second := serve("--memory-drain-timeout=1h")
	n.code(healthURL+"/healthz", 200)
	select {
	case <-first.done:
		t.Fatalf("it has ended though a connection is open:\n%s", first.log())
	default:
	}

	// It ends when the last connection has; a second signal ends it at once.
	do(t, os.Remove(open))
	if code := first.end(0); code != 0 {
		t.Errorf("exit code %d:\n%s", code, first.log())
	}
	has(t, "log", first.log(), `"Drained connections"`, "cut=0")
	write(t, open, nil)
	term(second)
	second.end(syscall.SIGTERM)
	if status := second.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() {
		t.Errorf("a second SIGTERM: %v\n%s", second.cmd.ProcessState, second.log())
	}

	// Connections open after the timeout are closed, and reported.
	third := serve("--memory-drain-timeout=50ms")
	term(third)
	if code := third.end(0); code != 0 {
		t.Errorf("exit code %d:\n%s", code, third.log())
	}
	has(t, "log", third.log(), "cut=1")
}
