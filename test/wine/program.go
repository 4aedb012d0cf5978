package wine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

// Vendor requests of winsock (mswsock.h), as the instruction that sets the register with which Go
// passes them to WSAIoctl.
var (
	connReset = []byte{0xbb, 0x0c, 0x00, 0x00, 0x98} // SIO_UDP_CONNRESET
	netReset  = []byte{0xbb, 0x0f, 0x00, 0x00, 0x98} // SIO_UDP_NETRESET
)

// Adapt changes a Go program so that Wine 8 gives it UDP sockets. Go sets two options on each
// socket, and fails on a system without them. Wine has only the first, so the changed program sets
// that one twice. Both prevent that ICMP errors fail a socket, which Wine does not do anyway.
// Nothing else of the program is changed.
func Adapt(exe string) error {
	program, err := os.ReadFile(exe)
	if err != nil {
		return err
	}
	if n, m := bytes.Count(program, netReset), bytes.Count(program, connReset); n != 1 || m != 1 {
		return fmt.Errorf("adapt %s to Wine: %w: it has the options of sockets %d and %d times", exe,
			errors.ErrUnsupported, m, n)
	}
	return os.WriteFile(exe, bytes.Replace(program, netReset, connReset, 1), 0o755)
}
