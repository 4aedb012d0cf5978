//go:build !windows

package balance

import "syscall"

// answers are the errors of connecting that come from the network.
var answers = []syscall.Errno{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ETIMEDOUT, syscall.EHOSTUNREACH,
	syscall.ENETUNREACH, syscall.EHOSTDOWN}
