package relay

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/windows"
)

// OpenFiles is how many sockets the process may have open. Windows has no such limit; this one bounds memory.
func OpenFiles() int { return 1 << 16 }

// listenError has the error of a port in use wrap the same one on every host: that of Windows has another number. A port that
// another process has for itself is refused as one without permission.
func listenError(err error) error {
	if errors.Is(err, windows.WSAEADDRINUSE) || errors.Is(err, windows.WSAEACCES) {
		return fmt.Errorf("%w (%w)", syscall.EADDRINUSE, err)
	}
	return err
}

// tooLong reports that a datagram is longer than any way takes, whoever it is for.
func tooLong(err error) bool { return errors.Is(err, windows.WSAEMSGSIZE) }
