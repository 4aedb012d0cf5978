package api

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peer returns the process at the other end.
func peer(c net.Conn) string {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return "another process"
	}
	pid := int32(0)
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = cred.Pid
		}
	})
	if pid == 0 { // of another namespace of processes
		return "another process"
	}
	return fmt.Sprintf("process %d", pid)
}
