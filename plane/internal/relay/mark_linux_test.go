package relay

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// Packets to backends carry the mark, so that the rules do not redirect the proxy's own packets.
func TestMark(t *testing.T) {
	const mark = 1 << 14
	r, err := New(Config{Mark: mark})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	// An accepted socket takes the mark of the handshake, if a sysctl of the node says so; over lo
	// packets keep the mark of the sender.
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(loopback))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_fwmark_accept", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile("/proc/sys/net/ipv4/tcp_fwmark_accept", []byte("0"), 0) })
	l, err := r.Listen(Listening{lb.TCP, loopback}, to(ln.Addr().(*net.TCPAddr).AddrPort()), nil)
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, l.Addr())
	defer client.Close()
	c, err := ln.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	if err := raw.Control(func(fd uintptr) {
		got, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK)
	}); err != nil {
		t.Fatal(err)
	}
	if got != mark || err != nil {
		t.Errorf("the handshake came with mark %#x, error %v; want %#x", got, err, mark)
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
