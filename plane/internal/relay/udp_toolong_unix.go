//go:build unix

package relay

import (
	"errors"
	"syscall"
)

// tooLong reports that a datagram is longer than any way takes, whoever it is for.
func tooLong(err error) bool { return errors.Is(err, syscall.EMSGSIZE) }
