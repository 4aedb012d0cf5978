//go:build linux

package ebpf

import (
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// caller is a kind of socket, and how it calls.
type caller struct {
	name        string
	kind, proto int
	unconnected bool
	mapped      bool // an IPv6 socket, with addresses of IPv4
	plain       bool // which are not mapped
	fast        bool // the first data goes with the SYN, by MSG_FASTOPEN
	again       bool // connected before, to the discard port of the same address
}

// callers returns the kinds of sockets of a family.
func callers(f lb.Family) []caller {
	all := []caller{
		{name: "tcp", kind: unix.SOCK_STREAM},
		{name: "mptcp", kind: unix.SOCK_STREAM, proto: unix.IPPROTO_MPTCP},
		{name: "udp", kind: unix.SOCK_DGRAM},
		{name: "udp unconnected", kind: unix.SOCK_DGRAM, unconnected: true},
		{name: "udp again", kind: unix.SOCK_DGRAM, again: true},
		{name: "tcp fast open", kind: unix.SOCK_STREAM, fast: true},
	}
	if f == lb.IPv6 {
		return all
	}
	for _, c := range all {
		c.name, c.mapped = c.name+" mapped", true
		all = append(all, c)
		if c.kind == unix.SOCK_DGRAM {
			c.name, c.plain = c.name+" plain", true
			all = append(all, c)
		}
	}
	return all
}

// The answers of a kernel without a kind of socket, and of a server that takes more than a second.
const (
	notSupported = "not supported"
	silent       = "silence"
)

// call opens a socket in the calling thread's network namespace, and returns who answers: the name
// of a host, or the error.
func (c caller) call(to netip.AddrPort) string {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	} else if c.mapped {
		family = unix.AF_INET6
		if !c.plain {
			to = netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port())
		}
	}
	fd, err := unix.Socket(family, c.kind|unix.SOCK_CLOEXEC, c.proto)
	if err != nil {
		return notSupported
	}
	defer unix.Close(fd)
	wait := unix.Timeval{Sec: 1}
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait))
	if err != nil {
		return err.Error()
	}
	if c.again {
		err = unix.Connect(fd, sockaddr(netip.AddrPortFrom(to.Addr(), 9)))
		if err != nil {
			return err.Error()
		}
	}
	if c.fast {
		err = unix.Sendto(fd, []byte("hello\n"), unix.MSG_FASTOPEN, sockaddr(to))
	} else if c.unconnected {
		err = unix.Sendto(fd, []byte("hello\n"), 0, sockaddr(to))
	} else if err = unix.Connect(fd, sockaddr(to)); err == nil && c.kind == unix.SOCK_DGRAM {
		err = unix.Send(fd, []byte("hello\n"), 0)
	}
	if err == unix.EINPROGRESS || err == unix.EALREADY {
		return silent
	} else if err != nil {
		return err.Error()
	}
	answer := make([]byte, 1500)
	n, from, err := receive(fd, answer)
	if err == unix.EAGAIN {
		return silent
	} else if err != nil {
		return err.Error()
	}
	server, _, _ := strings.Cut(string(answer[:n]), " ")
	if from := addrPort(from); c.kind == unix.SOCK_DGRAM && !to.Addr().Unmap().IsUnspecified() &&
		(from.Addr().Unmap() != to.Addr().Unmap() || from.Port() != to.Port()) {
		return server + " by " + from.String()
	}
	return server
}

// answer returns who answers a call of a host.
func (b *bench) answer(host string, c caller, to netip.AddrPort) (server string) {
	b.t.Helper()
	b.On(host, func() { server = c.call(to) })
	return server
}
