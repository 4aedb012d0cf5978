//go:build linux

package snapshot

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// saveIn names the directory in which this program writes a snapshot, instead of testing.
const saveIn = "SNAPSHOT_TEST_SAVE"

// oldServices and newServices are how many the snapshots before and after have. The new one takes
// several writes.
const oldServices, newServices = 3, 700

func TestMain(m *testing.M) {
	if dir := os.Getenv(saveIn); dir != "" {
		if _, err := Save(dir, origin(), storeOf(newServices)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// SN-04: a process that is killed before or after any system call of a write leaves the old
// snapshot or the new one, and the next write succeeds. The calls are those of the real process:
// each run stops it with ptrace one call later.
//
// A loss of power also loses what the kernel has not been asked to keep. So the order of the calls
// must be: all writes, fsync of the file, rename, fsync of the directory.
func TestKilledAtEachSystemCall(t *testing.T) {
	renamed := false
	for stop := 1; ; stop++ {
		dir := filepath.Join(t.TempDir(), "s")
		mustSave(t, dir, storeOf(oldServices))
		calls, ended := tracedSave(t, dir, stop)
		s, err := Load(dir, "n1", time.Hour, now)
		if err != nil {
			t.Fatalf("killed after %v: %v", calls, err)
		}
		want := oldServices
		if last := calls[len(calls)-1]; renamed || last.name == "renameat" && last.done {
			renamed, want = true, newServices
		}
		if s.Services() != want {
			t.Fatalf("killed after %v: %d Services, want %d", calls, s.Services(), want)
		}
		if _, err := Save(dir, origin(), storeOf(oldServices+1)); err != nil {
			t.Fatalf("killed after %v: the next write: %v", calls, err)
		}
		if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) != 1 {
			t.Fatalf("killed after %v: the next write leaves %v (%v)", calls, left, err)
		}
		if ended {
			checkOrder(t, calls)
			return
		}
	}
}

// checkOrder compares the calls of a whole write with what survives a loss of power.
func checkOrder(t *testing.T, calls []call) {
	t.Helper()
	var order strings.Builder
	file, dir := uint64(0), uint64(0)
	for _, c := range calls {
		switch {
		case c.done:
		case c.name == "write":
			file = c.args[0]
			order.WriteString("write ")
		case c.name == "fsync" && c.args[0] == file:
			order.WriteString("fsync-file ")
		case c.name == "renameat":
			dir = c.args[0]
			order.WriteString("rename ")
		case c.name == "fsync" && c.args[0] == dir:
			order.WriteString("fsync-dir ")
		}
	}
	if !regexp.MustCompile(`^(write ){3,}fsync-file rename fsync-dir $`).MatchString(order.String()) {
		t.Errorf("order of calls: %s", order.String())
	}
}

// call is a system call that begins or, if done, has ended.
type call struct {
	name string
	done bool
	args [6]uint64
}

func (c call) String() string {
	if c.done {
		return c.name + "-done"
	}
	return c.name
}

// traced are the calls by which a write touches files.
var traced = map[uint64]string{
	unix.SYS_MKDIRAT: "mkdirat", unix.SYS_OPENAT: "openat", unix.SYS_FSTAT: "fstat", unix.SYS_FLOCK: "flock",
	unix.SYS_UNLINKAT: "unlinkat", unix.SYS_WRITE: "write", unix.SYS_LSEEK: "lseek", unix.SYS_FSYNC: "fsync",
	unix.SYS_CLOSE: "close", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat", unix.SYS_EXIT_GROUP: "exit",
}

// tracedSave has a process write a snapshot, and kills it where it begins or ends one of the traced
// calls for the stop-th time. The calls count from the first that touches the directory. ended is
// true if the process ended by itself.
func tracedSave(t *testing.T, dir string, stop int) (calls []call, ended bool) {
	t.Helper()
	runtime.LockOSThread() // the thread is the tracer
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	do(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), saveIn+"="+dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	do(t, cmd.Start())
	leader := cmd.Process.Pid
	wait := func() (int, unix.WaitStatus) {
		for {
			var ws unix.WaitStatus
			pid, err := unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil)
			if !errors.Is(err, unix.EINTR) {
				do(t, err)
				return pid, ws
			}
		}
	}
	if pid, ws := wait(); pid != leader || !ws.Stopped() {
		t.Fatalf("the process does not stop at its start: %v", ws)
	}
	do(t, unix.PtraceSetOptions(leader, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL))
	do(t, unix.PtraceSyscall(leader, 0))
	inCall := map[int]string{} // by thread
	for {
		pid, ws := wait()
		if ws.Exited() || ws.Signaled() {
			if pid == leader {
				if ws.Exited() && ws.ExitStatus() != 0 {
					t.Fatalf("the process ends with %d", ws.ExitStatus())
				}
				return calls, ws.Exited()
			}
			continue
		}
		signal := 0
		switch s := ws.StopSignal(); {
		case s == unix.SIGTRAP|0x80:
			name, args, entry := systemCall(t, pid)
			if entry {
				inCall[pid] = name
			} else {
				name = inCall[pid]
			}
			if name == "" || len(calls) == 0 && name != "mkdirat" {
				break
			}
			calls = append(calls, call{name, !entry, args})
			if len(calls) == stop {
				do(t, unix.Kill(leader, unix.SIGKILL))
				continue
			}
		case s != unix.SIGTRAP && s != unix.SIGSTOP: // these are of new threads
			signal = int(s)
		}
		if err := unix.PtraceSyscall(pid, signal); err != nil && !errors.Is(err, unix.ESRCH) { // it was killed
			t.Fatal(err)
		}
	}
}

// systemCall returns the call at which a thread has stopped, "" if it is none of those traced.
func systemCall(t *testing.T, pid int) (name string, args [6]uint64, entry bool) {
	t.Helper()
	var info struct { // of linux/ptrace.h: ptrace_syscall_info
		op     uint8
		_      [3]uint8
		arch   uint32
		ip, sp uint64
		nr     uint64
		args   [6]uint64
		_      [2]uint64
	}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(pid), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 && errno != unix.ESRCH {
		t.Fatal(errno)
	}
	return traced[info.nr], info.args, info.op == unix.PTRACE_SYSCALL_INFO_ENTRY
}
