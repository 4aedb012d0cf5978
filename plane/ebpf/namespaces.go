//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/thread"
)

// namespaceFiles are where network namespaces have files: those that CNI plugins name, then those
// of processes, then those of their threads. In a container the latter are the node's if it has
// hostPID.
var namespaceFiles = []string{"/proc/self/ns/net", "/run/netns/*", "/proc/[0-9]*/ns/net",
	"/proc/[0-9]*/task/[0-9]*/ns/net"}

// inNamespaces calls f for each network namespace that is wanted by its name, in a thread of that.
// It returns how many have no file.
func inNamespaces[K comparable, T any](all map[K]T, nameOf func(file string, inode uint32) (K, error),
	f func(T) error) (left int, err error) {
	left = len(all)
	done := map[uint32]bool{}
	var errs []error
	for _, pattern := range namespaceFiles {
		if left == 0 {
			break
		}
		files, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, file := range files {
			inode, ok := namespaceOf(file)
			if !ok || done[inode] {
				continue
			}
			done[inode] = true
			name, err := nameOf(file, inode)
			errs = append(errs, err)
			if what, wanted := all[name]; wanted {
				left--
				errs = append(errs, inNamespace(file, func() error { return f(what) }))
			}
		}
	}
	return left, errors.Join(errs...)
}

// inodeOf and cookieOf name network namespaces.
func inodeOf(_ string, inode uint32) (uint32, error) { return inode, nil }

func cookieOf(file string, _ uint32) (cookie uint64, err error) {
	err = inNamespace(file, func() (err error) { cookie, err = netnsCookie(); return err })
	return cookie, err
}

// namespaceOf returns the inode of the network namespace of a file. Files of processes that have
// ended are none.
func namespaceOf(file string) (inode uint32, ok bool) {
	var st unix.Stat_t
	err := unix.Stat(file, &st)
	return uint32(st.Ino), err == nil
}

// inNamespace calls f in a thread of its own, which ends with it.
func inNamespace(file string, f func() error) (err error) {
	thread.Own(func() { err = enter(file, f) })
	return err
}

func enter(file string, f func() error) error {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // its process has ended
	}
	if err != nil {
		return fmt.Errorf("open the network namespace %s: %w", file, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace %s: %w", file, explainIDs(err))
	}
	return f()
}
