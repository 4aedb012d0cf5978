package netlab

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Responder answers every datagram, and every connection as soon as it accepts, with one line: its
// host's name, the source that it saw, and the address and port at which it was reached ("pod1
// 10.1.1.12:41234 10.1.1.11:8080"). Later data on a connection is echoed until the client closes.
type Responder struct {
	lab   *Lab
	host  string
	proto Proto
	port  uint16

	mu     sync.Mutex
	closed bool
	files  map[*os.File]struct{} // listening sockets and open connections
	done   sync.WaitGroup
}

// Listen starts a responder on a port of the host, on all of its addresses (SCTP: on its IPv4 and
// its IPv6 address, because an SCTP server on all addresses announces each of them). If the kernel
// lacks the protocol, the error is ErrUnsupported.
func (l *Lab) Listen(host string, proto Proto, port uint16) (*Responder, error) {
	return l.respond(host, proto, port, false)
}

// ListenTransparent is Listen with IP_TRANSPARENT on the sockets.
func (l *Lab) ListenTransparent(host string, proto Proto, port uint16) (*Responder, error) {
	return l.respond(host, proto, port, true)
}

func (l *Lab) respond(host string, proto Proto, port uint16, transparent bool) (*Responder, error) {
	r := &Responder{lab: l, host: host, proto: proto, port: port, files: map[*os.File]struct{}{}}
	addrs := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	if h, ok := HostByName(host); ok && proto == SCTP {
		addrs = []netip.Addr{h.V4, h.V6}
	}
	for _, addr := range addrs {
		if err := r.listen(addr, transparent); err != nil {
			return nil, errors.Join(fmt.Errorf("netlab: listen on %s %s %d: %w", host, proto, port, err), r.Close())
		}
	}
	if err := l.adopt(r); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close stops listening, closes the responder's connections and waits for its
// goroutines.
func (r *Responder) Close() error {
	r.mu.Lock()
	r.closed = true
	files := r.files
	r.files = nil
	r.mu.Unlock()
	var errs []error
	for f := range files {
		errs = append(errs, f.Close())
	}
	r.done.Wait()
	r.lab.forget(r)
	return errors.Join(errs...)
}

// keep notes an open socket for Close; after Close it closes the socket at once.
func (r *Responder) keep(f *os.File) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		f.Close()
		return false
	}
	r.files[f] = struct{}{}
	r.done.Add(1)
	return true
}

// drop closes a socket unless Close did.
func (r *Responder) drop(f *os.File) {
	r.mu.Lock()
	_, open := r.files[f]
	delete(r.files, f)
	r.mu.Unlock()
	if open {
		f.Close()
	}
	r.done.Done()
}

// listen opens one socket in the host and serves it.
func (r *Responder) listen(addr netip.Addr, transparent bool) error {
	var fd int
	err := r.lab.Do(r.host, func() (err error) {
		fd, err = socket(r.proto, addr.Is6(), netip.AddrPortFrom(addr, r.port))
		return err
	})
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "responder")
	if transparent {
		err = setTransparent(fd, addr.Is6())
	}
	if err == nil && r.proto == UDP {
		err = askDestination(fd, addr.Is6())
	} else if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(fd, 128))
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if !r.keep(file) {
		return os.ErrClosed
	}
	go func() {
		defer r.drop(file)
		if r.proto == UDP {
			r.datagrams(file)
		} else {
			r.accept(file)
		}
	}()
	return nil
}

// accept serves connections until the listening socket is closed.
func (r *Responder) accept(file *os.File) {
	for {
		var conn *os.File
		var seen netip.AddrPort
		err := wait(file, false, func(fd int) error {
			nfd, sa, err := unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			if err != nil {
				return err
			}
			conn, seen = os.NewFile(uintptr(nfd), "connection"), AddrPort(sa)
			return nil
		})
		if errors.Is(err, unix.ECONNABORTED) {
			continue // the client gave up before it was accepted
		}
		if err != nil {
			return
		}
		if r.keep(conn) {
			go r.connection(conn, seen)
		}
	}
}

// connection greets and echoes; a broken connection is the client's business.
func (r *Responder) connection(conn *os.File, seen netip.AddrPort) {
	defer r.drop(conn)
	var at netip.AddrPort
	err := wait(conn, false, func(fd int) (err error) {
		at, err = localAddr(fd)
		return err
	})
	if err != nil {
		return
	}
	if _, err := fmt.Fprintf(conn, "%s %s %s\n", r.host, seen, at); err != nil {
		return
	}
	// Plain reads and writes: os.File's splicing does not support SCTP.
	_, _ = io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn})
}

func setTransparent(fd int, six bool) error {
	if six {
		return os.NewSyscallError("IPV6_TRANSPARENT", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT,
			1))
	}
	return os.NewSyscallError("IP_TRANSPARENT", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1))
}

// askDestination makes a UDP socket report each datagram's destination address.
func askDestination(fd int, six bool) error {
	level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
	if six {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return fmt.Errorf("request destination addresses: %w", err)
	}
	return nil
}

// datagrams answers each datagram from the address that it was sent to.
func (r *Responder) datagrams(file *os.File) {
	buf, oob := make([]byte, 64<<10), make([]byte, 512)
	for {
		err := wait(file, false, func(fd int) error {
			_, oobn, _, from, err := unix.Recvmsg(fd, buf, oob, 0)
			if err != nil {
				return err
			}
			seen := AddrPort(from)
			at, control := destination(oob[:oobn])
			reply := fmt.Sprintf("%s %s %s\n", r.host, seen, netip.AddrPortFrom(at, r.port))
			// A reply that cannot be sent is a lost packet to the client.
			_ = unix.Sendmsg(fd, []byte(reply), control, from, 0)
			return nil
		})
		if err != nil {
			return
		}
	}
}

// destination reads a datagram's destination address from its control messages
// and makes the control message that sends the reply from there.
func destination(oob []byte) (netip.Addr, []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}, nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO &&
			len(m.Data) >= unix.SizeofInet4Pktinfo:
			info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&m.Data[0]))
			return netip.AddrFrom4(info.Addr), unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: info.Addr})
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO &&
			len(m.Data) >= unix.SizeofInet6Pktinfo:
			info := (*unix.Inet6Pktinfo)(unsafe.Pointer(&m.Data[0]))
			return netip.AddrFrom16(info.Addr), unix.PktInfo6(&unix.Inet6Pktinfo{Addr: info.Addr})
		}
	}
	return netip.Addr{}, nil
}
