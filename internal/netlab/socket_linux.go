package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Proto is a transport protocol.
type Proto string

// The protocols of responders.
const (
	TCP  Proto = "tcp"
	UDP  Proto = "udp"
	SCTP Proto = "sctp"
)

// The results for a packet. Errors of Dial, Open, Exchange and Ping wrap one of these if they are
// the network's answer, and none if the caller is at fault.
var (
	// ErrRefused: the other side or a host on the path refused: TCP reset, SCTP abort, ICMP port
	// unreachable.
	ErrRefused = errors.New("refused")
	// ErrTimeout: no answer arrived in time, so the packet or its answer was dropped.
	ErrTimeout = errors.New("timeout")
	// ErrUnreachable: an ICMP error other than "port unreachable", or no route.
	ErrUnreachable = errors.New("unreachable")
	// ErrReset: an established connection ended before an answer.
	ErrReset = errors.New("reset")
	// ErrUnsupported: this kernel lacks the protocol.
	ErrUnsupported = errors.New("not supported by this kernel")
)

// classify adds the class of a network error.
func classify(err error) error {
	for _, c := range []struct {
		class error
		of    []error
	}{
		{ErrRefused, []error{unix.ECONNREFUSED}},
		{ErrTimeout, []error{os.ErrDeadlineExceeded, unix.ETIMEDOUT}},
		{ErrUnreachable, []error{unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES, unix.ENOPROTOOPT, unix.EPROTO,
			unix.EHOSTDOWN, unix.ENONET}},
		{ErrReset, []error{unix.ECONNRESET, unix.ECONNABORTED, unix.EPIPE}},
		{ErrUnsupported, []error{unix.EPROTONOSUPPORT, unix.ESOCKTNOSUPPORT, unix.EAFNOSUPPORT}},
	} {
		for _, e := range c.of {
			if errors.Is(err, e) {
				return fmt.Errorf("%w (%w)", c.class, err)
			}
		}
	}
	return err
}

// socket makes a non-blocking socket in the thread's namespace, bound to local, which may be zero.
func socket(proto Proto, six bool, local netip.AddrPort) (fd int, err error) {
	kind, number := unix.SOCK_STREAM, unix.IPPROTO_TCP
	switch proto {
	case TCP:
	case UDP:
		kind, number = unix.SOCK_DGRAM, unix.IPPROTO_UDP
	case SCTP:
		number = unix.IPPROTO_SCTP
	default:
		return -1, fmt.Errorf("unknown protocol %q", proto)
	}
	family := unix.AF_INET
	if six {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, number)
	if err != nil {
		return -1, fmt.Errorf("make socket: %w", classify(err))
	}
	err = setUp(fd, six, local)
	if err == nil && proto == SCTP {
		err = repeatSoon(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func setUp(fd int, six bool, local netip.AddrPort) error {
	options := [][2]int{{unix.SOL_SOCKET, unix.SO_REUSEADDR}}
	if six {
		options = append(options, [2]int{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o[0], o[1], 1); err != nil {
			return fmt.Errorf("set socket option %d/%d: %w", o[0], o[1], err)
		}
	}
	if !local.Addr().IsValid() && local.Port() == 0 {
		return nil
	}
	if !local.Addr().IsValid() {
		local = netip.AddrPortFrom(unspecified(six), local.Port())
	}
	if err := unix.Bind(fd, sockaddr(local)); err != nil {
		return fmt.Errorf("bind to %s: %w", local, err)
	}
	return nil
}

// wantErrors enables or disables reports of every ICMP error. Without it only "port unreachable" is
// reported, and for SCTP not even that.
func wantErrors(fd int, six, want bool) error {
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if six {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	value := 0
	if want {
		value = 1
	}
	if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
		return fmt.Errorf("request ICMP errors: %w", err)
	}
	return nil
}

// repeatSoon makes an SCTP socket repeat unanswered packets after 500 ms instead of
// 3 s, or 1 s once it has measured. In this lab an ICMP error is often there before
// connect returns, and then only the answer to the second packet counts; and a lost
// chunk should not use up a caller's timeout. The answer to an INIT must come sooner:
// a second answer changes the tag that conntrack expects.
func repeatSoon(fd int) error {
	// struct sctp_rtoinfo: association, initial, maximum, minimum; in ms, 0 = leave.
	var info []byte
	for _, v := range []uint32{0, 500, 0, 500} {
		info = binary.NativeEndian.AppendUint32(info, v)
	}
	const sctpRTOInfo = 0
	if err := unix.SetsockoptString(fd, unix.IPPROTO_SCTP, sctpRTOInfo, string(info)); err != nil {
		return fmt.Errorf("set SCTP's timeouts: %w", err)
	}
	return nil
}

// unspecified returns the address that stands for all of the family.
func unspecified(six bool) netip.Addr {
	if six {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is6() {
		return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// AddrPort is a socket address; one of IPv4 in IPv6 is of IPv4.
func AddrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// localAddr is the address that a socket is bound to.
func localAddr(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read the socket's address: %w", err)
	}
	return AddrPort(sa), nil
}

// wait calls step, once at first and then whenever the runtime's poller reports the file writable
// (readable if !write), until it no longer returns EAGAIN.
func wait(f *os.File, write bool, step func(fd int) error) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	poll := rc.Read
	if write {
		poll = rc.Write
	}
	var result error
	err = poll(func(fd uintptr) bool {
		for {
			result = step(int(fd))
			if result != unix.EINTR {
				return result != unix.EAGAIN
			}
		}
	})
	return errors.Join(err, ignoreAgain(result))
}

// ignoreAgain drops the EAGAIN that the last step before a deadline left.
func ignoreAgain(err error) error {
	if err == unix.EAGAIN {
		return nil
	}
	return err
}
