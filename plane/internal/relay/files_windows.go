package relay

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/windows"
)

// OpenFiles returns the number of sockets that the process may have open. Windows has no such
// limit; this one limits memory.
func OpenFiles() int { return 1 << 16 }

// listenError makes the error of a port in use wrap the same one on every host. Windows has another
// number for it, and reports a port that another process uses exclusively as a lack of permission.
func listenError(err error) error {
	if errors.Is(err, windows.WSAEADDRINUSE) || errors.Is(err, windows.WSAEACCES) {
		return fmt.Errorf("%w (%w)", syscall.EADDRINUSE, err)
	}
	return err
}

// tooLong reports that a datagram is too long for any destination.
func tooLong(err error) bool { return errors.Is(err, windows.WSAEMSGSIZE) }
