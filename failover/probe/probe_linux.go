package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/failover"
)

// begin connects once, and sends what comes of it: Unknown if that is nothing when ctx ends.
func begin(ctx context.Context, p failover.Probe, results chan<- failover.Result) error {
	domain, level, option := unix.AF_INET, unix.SOL_IP, unix.IP_RECVERR
	if p.At.Addr().Is6() {
		domain, level, option = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_RECVERR
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("probe %s: open socket: %w", p.At, err)
	}
	f := os.NewFile(uintptr(fd), "probe")
	// The error queue separates ICMP messages of others from errors of this kernel.
	err = errors.Join(unix.SetsockoptInt(fd, level, option, 1),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	if err != nil {
		f.Close()
		return fmt.Errorf("probe %s: set socket options: %w", p.At, err)
	}
	if err := unix.Connect(fd, sockaddr(p.At)); err != nil && err != unix.EINPROGRESS {
		results <- judge(fd, err.(unix.Errno), p.Here)
		f.Close()
		return nil
	}
	go func() {
		results <- await(ctx, f, p.Here)
		f.Close()
	}()
	return nil
}

// await returns the outcome of a connect.
func await(ctx context.Context, f *os.File, here bool) (result failover.Result) {
	stop := context.AfterFunc(ctx, func() { f.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := f.SyscallConn()
	if err != nil {
		return failover.Unknown
	}
	conn.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			return true
		case code != 0:
			result = judge(int(fd), unix.Errno(code), here)
		default:
			if _, err := unix.Getpeername(int(fd)); err != nil {
				return false // not connected yet
			}
			result = failover.Answers
		}
		return true
	})
	return result
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// judge returns the meaning of an error of connect(2).
func judge(fd int, err unix.Errno, here bool) failover.Result {
	switch err {
	case unix.ECONNREFUSED, unix.ECONNRESET:
		return failover.Refuses
	case unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES, unix.ENONET, unix.EHOSTDOWN, unix.EPERM:
	default: // ETIMEDOUT and others say nothing of the peer
		return failover.Silent
	}
	icmp, ok := readError(fd)
	own := !ok || icmp.offender == icmp.self
	switch {
	case own && here && (err == unix.EHOSTUNREACH || err == unix.ENETUNREACH):
		return failover.NoRoute
	case own:
		return failover.Silent
	case icmp.unreachable():
		return failover.NoRoute
	}
	return failover.Prohibited
}

// icmpError is an entry of a socket's error queue, include/uapi/linux/errqueue.h.
type icmpError struct {
	origin, kind, code byte
	offender, self     netip.Addr
}

// unreachable reports whether the message says host or network unreachable. Other codes come from
// firewalls.
func (e icmpError) unreachable() bool {
	if e.origin == unix.SO_EE_ORIGIN_ICMP6 {
		return e.kind == 1 && (e.code == 0 || e.code == 3) // no route; address unreachable
	}
	return e.kind == 3 && (e.code == 0 || e.code == 1)
}

// readError reads the ICMP message that ended a connection attempt; false without one.
func readError(fd int) (e icmpError, ok bool) {
	oob := make([]byte, 512)
	_, n, _, _, err := unix.Recvmsg(fd, nil, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		return e, false
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return e, false
	}
	for _, m := range messages {
		const fixed = 16 // struct sock_extended_err, before the offender's sockaddr
		d := m.Data
		if len(d) < fixed+8 {
			continue
		}
		e.origin, e.kind, e.code = d[4], d[5], d[6]
		switch binary.NativeEndian.Uint16(d[fixed:]) {
		case unix.AF_INET:
			e.offender = netip.AddrFrom4([4]byte(d[fixed+4:]))
		case unix.AF_INET6:
			if len(d) >= fixed+24 {
				e.offender = netip.AddrFrom16([16]byte(d[fixed+8:]))
			}
		}
		if own, err := unix.Getsockname(fd); err == nil {
			switch a := own.(type) {
			case *unix.SockaddrInet4:
				e.self = netip.AddrFrom4(a.Addr)
			case *unix.SockaddrInet6:
				e.self = netip.AddrFrom16(a.Addr)
			}
		}
		return e, e.origin == unix.SO_EE_ORIGIN_ICMP || e.origin == unix.SO_EE_ORIGIN_ICMP6
	}
	return e, false
}
