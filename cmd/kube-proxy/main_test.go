//go:build linux

package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The test binary represents the program: with asProgram set it runs main, and no tests. The other
// variables break the process first.
const (
	asProgram   = "KUBE_PROXY_TEST_PROGRAM"
	asUser      = "KUBE_PROXY_TEST_UID"          // give up root for this user
	noNetfilter = "KUBE_PROXY_TEST_NO_NETFILTER" // as on a kernel without netfilter's netlink
	noIPVS      = "KUBE_PROXY_TEST_NO_IPVS"      // like a kernel without generic netlink, which IPVS uses
	noBPF       = "KUBE_PROXY_TEST_NO_BPF"       // as with a runtime's seccomp profile, without CAP_BPF
	asFiles     = "KUBE_PROXY_TEST_FILES"        // how many descriptors it may have
	asSquatter  = "KUBE_PROXY_TEST_SQUAT"        // take the writer lock, as far as possible, and keep it
	asReader    = "KUBE_PROXY_TEST_READER"       // be killed for any call that could change the node
	asChild     = "KUBE_PROXY_TEST_CHILD"        // end with the process that started it
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	if err := spoil(); err != nil {
		fmt.Fprintln(os.Stderr, "spoil the process:", err)
		os.Exit(99)
	}
	main()
}

func spoil() error {
	if os.Getenv(asChild) != "" {
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			return fmt.Errorf("end with the parent: %w", err)
		}
	}
	if uid, err := strconv.Atoi(os.Getenv(asUser)); err == nil {
		if err := syscall.Setuid(uid); err != nil {
			return fmt.Errorf("become user %d: %w", uid, err)
		}
	}
	if n, err := strconv.ParseUint(os.Getenv(asFiles), 10, 64); err == nil {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("limit the process to %d descriptors: %w", n, err)
		}
	}
	if os.Getenv(noNetfilter) != "" {
		if err := refuseNetlink(unix.NETLINK_NETFILTER); err != nil {
			return fmt.Errorf("refuse netfilter sockets: %w", err)
		}
	}
	if os.Getenv(noIPVS) != "" {
		if err := refuseNetlink(unix.NETLINK_GENERIC); err != nil {
			return fmt.Errorf("refuse generic netlink sockets: %w", err)
		}
	}
	if os.Getenv(noBPF) != "" {
		if err := refuseBPF(); err != nil {
			return fmt.Errorf("refuse bpf(): %w", err)
		}
	}
	if os.Getenv(asReader) != "" {
		if err := readOnly(); err != nil {
			return fmt.Errorf("filter system calls: %w", err)
		}
	}
	if os.Getenv(asSquatter) != "" {
		return squat()
	}
	return nil
}

// refuseBPF has the kernel answer bpf() as containerd's default profile does.
func refuseBPF() error {
	return seccomp([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_BPF, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	})
}

// refuseNetlink has the kernel answer socket(AF_NETLINK, …, of) as one that lacks that does.
func refuseNetlink(of uint32) error {
	// offsets in struct seccomp_data; the low words of little-endian arguments
	const number, domain, protocol = 0, 16, 32
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	unlessSkip := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: skip}
	}
	filter := []unix.SockFilter{
		load(number), unlessSkip(unix.SYS_SOCKET, 5),
		load(domain), unlessSkip(unix.AF_NETLINK, 3),
		load(protocol), unlessSkip(of, 1),
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	return seccomp(filter)
}
