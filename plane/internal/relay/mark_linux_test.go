package relay

import (
	"fmt"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Packets to backends carry the mark, so that the rules do not redirect the proxy's own packets.
func TestMark(t *testing.T) {
	const mark = 1 << 14
	// An accepted socket takes the mark of the handshake, if a sysctl of the node says so; over lo
	// packets keep the mark of the sender.
	const sysctl = "/proc/sys/net/ipv4/tcp_fwmark_accept"
	if err := os.WriteFile(sysctl, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile(sysctl, []byte("0"), 0) })
	met := make(chan string)
	backend := serve(t, func(c *net.TCPConn) {
		raw, err := c.SyscallConn()
		if err != nil {
			met <- err.Error()
			return
		}
		raw.Control(func(fd uintptr) {
			got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK)
			met <- fmt.Sprint(got, err)
		})
	})
	dial(t, listen(t, newRelay(t, Config{Mark: mark}), to(backend)).Addr())
	if got, want := <-met, fmt.Sprint(mark, error(nil)); got != want {
		t.Errorf("the handshake came with mark and error %s, want %s", got, want)
	}
}

// The socket of a UDP session has the mark too.
func TestMarkOfDatagrams(t *testing.T) {
	const mark = 1 << 14
	r := startUDP(t, Config{Mark: mark}, 0)
	l := listenUDP(t, r, loopback, to(boundAt(udpEcho(t, loopback, nil))))
	if !ask(t, dialUDP(t, l.Addr()), "open", timeout) {
		t.Fatal("no answer")
	}
	sessions := 0
	for _, table := range r.udp.tables {
		table.mu.Lock()
		table.each(func(s *udpSession) {
			sessions++
			_ = s.socket.(*udpSocket).do(func(fd int) error {
				if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK); got != mark || err != nil {
					t.Errorf("a session's socket has mark %#x, error %v; want %#x", got, err, mark)
				}
				return nil
			})
		})
		table.mu.Unlock()
	}
	if sessions != 1 {
		t.Errorf("%d sessions", sessions)
	}
}
