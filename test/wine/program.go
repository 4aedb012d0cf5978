package wine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

// Of winsock's vendor requests (mswsock.h), as the instruction that sets the register by which Go gives them to WSAIoctl.
var (
	connReset = []byte{0xbb, 0x0c, 0x00, 0x00, 0x98} // SIO_UDP_CONNRESET
	netReset  = []byte{0xbb, 0x0f, 0x00, 0x00, 0x98} // SIO_UDP_NETRESET
)

// Adapt changes a program of Go so that Wine 8 gives it sockets of UDP: Go sets two options on each, and fails where a system does not
// know them. Wine knows the first alone, so the program sets that twice; it has answers of routers fail no socket, which Wine does not
// have them do. Nothing else of the program is changed.
func Adapt(exe string) error {
	program, err := os.ReadFile(exe)
	if err != nil {
		return err
	}
	if n, m := bytes.Count(program, netReset), bytes.Count(program, connReset); n != 1 || m != 1 {
		return fmt.Errorf("adapt %s to Wine: %w: it has the options of sockets %d and %d times", exe, errors.ErrUnsupported, m, n)
	}
	return os.WriteFile(exe, bytes.Replace(program, netReset, connReset, 1), 0o755)
}
