//go:build linux

package xtables

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// xtablesLock is the lock file of all programs of the legacy back end (DP-14).
func xtablesLock() string { return cmp.Or(os.Getenv("XTABLES_LOCKFILE"), "/run/xtables.lock") }

// lockWait is how long to wait for the lock, as long as the programs themselves do.
const lockWait = 5 * time.Second

// lockXtables takes the lock that programs before 1.6.2 do not wait for (DP-14).
func lockXtables(ctx context.Context) (unlock func(), err error) {
	path := xtablesLock()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("take the lock of iptables: %w", err)
	}
	for deadline := time.Now().Add(lockWait); ; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if time.Now().After(deadline) {
			f.Close()
			who := cmp.Or(holders(path), "another process")
			return nil, fmt.Errorf("take the lock %s: %s has held it for %v: %w", path, who, lockWait, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("take the lock %s: %w", path, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// holders names the processes that hold a lock on a file, "" if they are unknown.
func holders(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	var who []string
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line) // 1: FLOCK  ADVISORY  WRITE 1234 00:19:1079 0 EOF
		if len(f) < 6 || f[1] == "->" || f[5] != file {
			continue
		}
		name := "process " + f[4]
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
				name += " (" + strings.TrimSpace(string(comm)) + ")"
			}
		}
		who = append(who, name)
	}
	return strings.Join(who, ", ")
}
