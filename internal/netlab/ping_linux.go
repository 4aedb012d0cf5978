package netlab

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Ping sends one ICMP echo request and waits for its reply; timeout 0 means
// DefaultTimeout. Errors are classified as Dial's: an address whose packets are
// rejected with "port unreachable" is ErrRefused.
func (l *Lab) Ping(host string, to netip.Addr, timeout time.Duration) error {
	timeout = cmp.Or(timeout, DefaultTimeout)
	var fd int
	err := l.Do(host, func() (err error) {
		fd, err = pingSocket(to.Is6())
		return err
	})
	if err != nil {
		return fmt.Errorf("netlab: ping %s → %s: %w", host, to, classify(err))
	}
	file := os.NewFile(uintptr(fd), "ping")
	defer file.Close()
	if err := ping(file, to, timeout); err != nil {
		return fmt.Errorf("netlab: ping %s → %s: %w", host, to, classify(err))
	}
	return nil
}

// pingSocket makes a socket on which the kernel matches replies to requests.
func pingSocket(six bool) (int, error) {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	if six {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return -1, fmt.Errorf("make socket: %w", err)
	}
	if err := wantErrors(fd, six, true); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func ping(file *os.File, to netip.Addr, timeout time.Duration) error {
	if err := file.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	request := []byte{8, 0, 0, 0, 0, 0, 0, 1} // type, code, checksum and id (the kernel's), sequence
	if to.Is6() {
		request[0] = 128
	}
	err := wait(file, true, func(fd int) error {
		if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(to, 0))); err != nil {
			return err
		}
		if err := unix.Send(fd, request, 0); err != unix.EPERM {
			return err
		}
		return nil // the sender's own rules dropped it; a rejection is reported next
	})
	if err != nil {
		return err
	}
	_, err = file.Read(make([]byte, 64))
	return err
}
