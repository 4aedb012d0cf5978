package balance

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// answers are the errors of connecting that come from the network.
var answers = []syscall.Errno{windows.WSAECONNREFUSED, windows.WSAECONNRESET, windows.WSAETIMEDOUT,
	windows.WSAEHOSTUNREACH, windows.WSAENETUNREACH, windows.WSAEHOSTDOWN}
