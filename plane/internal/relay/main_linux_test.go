package relay

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inside marks the process that is in a network namespace of its own.
const inside = "RELAY_TEST_INSIDE"

// TestMain runs all tests, with every goroutine that they start, in a network namespace of their
// own, and lets them open as many files as the kernel allows.
func TestMain(m *testing.M) {
	if os.Getenv(inside) == "" {
		os.Exit(runInside())
	}
	if os.Getenv(peerRole) != "" {
		os.Exit(bePeer())
	}
	if err := up("lo"); err != nil {
		fmt.Fprintln(os.Stderr, "relay: bring lo up:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func runInside() int {
	// Without the right to raise the limit it stays; a test that needs more says so.
	unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 65536, Max: 65536})
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "relay: run the tests in a network namespace (root is needed):", err)
		return 1
	}
	return 0
}

func up(link string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(link)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}
