//go:build unix

package relay

import (
	"errors"
	"syscall"
)

// OpenFiles is how many descriptors the process may have open.
func OpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // Linux' default; no kernel refuses the question
	}
	return int(min(limit.Cur, 1<<20))
}

// listenError has the error of a port in use wrap the same one on every host. Here it does.
func listenError(err error) error { return err }

// tooLong reports that a datagram is too long for any destination.
func tooLong(err error) bool { return errors.Is(err, syscall.EMSGSIZE) }
