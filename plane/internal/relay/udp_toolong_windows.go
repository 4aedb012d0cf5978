package relay

import (
	"errors"

	"golang.org/x/sys/windows"
)

// tooLong reports that a datagram is longer than any way takes, whoever it is for.
func tooLong(err error) bool { return errors.Is(err, windows.WSAEMSGSIZE) }
