package relay

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// What goes to backends carries the mark: by it the rules that lead packets to the proxy leave alone what it sends itself.
func TestMark(t *testing.T) {
	const mark = 1 << 14
	r, err := New(Config{Mark: mark})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	// An accepted socket takes the mark of the handshake, where the node says so; over lo it still has that of the sender.
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
	if err := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK) }); err != nil {
		t.Fatal(err)
	}
	if got != mark || err != nil {
		t.Errorf("the handshake came with mark %#x, error %v; want %#x", got, err, mark)
	}
}

// A listener may be there before its address is: nobody is refused in between.
func TestListenBeforeTheAddressIsThere(t *testing.T) {
	r, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	for _, a := range []string{"192.0.2.9:80", "[2001:db8::9]:80"} {
		for _, p := range []lb.Proto{lb.TCP, lb.UDP} {
			if _, err := r.Listen(Listening{p, netip.MustParseAddrPort(a)}, to(), nil); err != nil {
				t.Error(err)
			}
		}
	}
}

// So do datagrams.
func TestMarkOfDatagrams(t *testing.T) {
	const mark = 1 << 14
	r, err := New(Config{Mark: mark})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	backend, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(loopback))
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	raw, err := backend.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	const rcvmark = 75 // SO_RCVMARK, since Linux 5.19
	if err := errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, rcvmark, 1) }), err); err != nil {
		t.Skip("this kernel does not tell the mark of a datagram; scenario address-of-a-pod needs it: ", err)
	}
	l, err := r.Listen(Listening{lb.UDP, loopback}, to(backend.LocalAddr().(*net.UDPAddr).AddrPort()), nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	var data, oob [100]byte
	_, n, _, _, err := backend.ReadMsgUDP(data[:], oob[:])
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 || binary.NativeEndian.Uint32(messages[0].Data) != mark {
		t.Errorf("the datagram came with %v, error %v; want mark %#x", messages, err, mark)
	}
}
