package config

import (
	"errors"

	"os"

	"golang.org/x/sys/unix"
)

// openForWriting reports whether a process has the file open for writing: then the kernel refuses a
// read lease with EAGAIN (fcntl(2), F_SETLEASE). It is false where leases are not available: on
// file systems without them, and for files of other users without CAP_LEASE.
func openForWriting(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil { // the lease ends with the descriptor; without it no signal arrives
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return errors.Is(err, unix.EAGAIN)
}
