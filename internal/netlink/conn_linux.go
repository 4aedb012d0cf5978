package netlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
	"unsafe"

	mdlayher "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Timeout is the timeout for the next part of an answer. The kernel writes each part while it
// handles a system call, so a later part has been lost.
const Timeout = 5 * time.Second

// bufferSize is more than the maximum part of an answer, which is 32 KiB.
const bufferSize = 64 << 10

// ErrNoAnswer is wrapped by errors of requests whose outcome is unknown: sent, without a reply.
var ErrNoAnswer = errors.New("no answer from the kernel")

// ErrInterrupted is the error of a dump during which the dumped objects changed: some may be
// missing or repeated.
var ErrInterrupted = errors.New("the listed objects changed meanwhile")

// Config configures a socket.
type Config struct {
	// Protocol is unix.NETLINK_NETFILTER or another.
	Protocol int
	// ReceiveBuffer is the size for unread messages in bytes, beyond the system's limit if this
	// process may; 0 is the system's default.
	ReceiveBuffer int
	// Groups are joined at once, as by [Conn.Join], also by a replacement socket.
	Groups []uint32
	// Keep prevents replacement of the socket, for one that is a lock. It must not dump.
	Keep bool
}

// Asker sends a request: a [Conn], or a test's substitute.
type Asker interface {
	Do(ctx context.Context, request []byte, f func(Message) error) error
}

// Transport sends messages and returns answers, as a [Conn] does. Package ipvsfake has another.
type Transport interface {
	Asker
	Each(ctx context.Context, messages []byte, outcome func(i int, err error)) error
	Close() error
}

// Conn is a netlink socket of one network namespace. Only one goroutine may use it at a time; but
// beside [Conn.Listen] others may Join, Leave and Close.
type Conn struct {
	// Timeout is the timeout for the next part of an answer; tests change it.
	Timeout time.Duration

	cfg       Config
	namespace uint64 // the namespace's number
	sock      *mdlayher.Conn
	raw       syscall.RawConn
	room      int  // for one message to the kernel, in bytes
	broken    bool // the last answer was not read to its end
	closed    bool

	seq    uint32
	slots  []datagram
	held   []datagram // of slots, received and not looked at
	unread []byte     // of a slot

	answered []bool // by Each

	// The state of a system call. The functions are created once, because a closure for each call
	// would be garbage.
	receiving func(fd uintptr) bool
	sending   func(fd uintptr)
	wait      bool                 // for a message
	to        unix.SockaddrNetlink // the kernel; each system call writes to it
	out       [][]byte
	err       error
}

// Open opens a socket in the calling thread's network namespace. The error wraps
// unix.EPROTONOSUPPORT if the kernel does not have the protocol.
func Open(cfg Config) (*Conn, error) {
	c := &Conn{Timeout: Timeout, cfg: cfg, namespace: threadNamespace(),
		to: unix.SockaddrNetlink{Family: unix.AF_NETLINK}}
	c.receiving, c.sending = c.receiveOnce, c.sendOnce
	c.ReadAtOnce(1)
	if err := c.open(0); err != nil {
		return nil, err
	}
	return c, nil
}

// open opens the socket in the network namespace of an open file, or with 0 in the calling
// thread's.
func (c *Conn) open(namespace int) error {
	sock, err := mdlayher.Dial(c.cfg.Protocol, &mdlayher.Config{NetNS: namespace})
	if err != nil {
		return fmt.Errorf("open a %s netlink socket: %w", c.name(), err)
	}
	// Answers omit the request, which may be 100 MB; extended acks explain errors.
	err = errors.Join(sock.SetOption(mdlayher.CapAcknowledge, true), sock.SetOption(mdlayher.ExtendedAcknowledge, true))
	if err == nil && c.cfg.ReceiveBuffer > 0 {
		err = sock.SetReadBuffer(c.cfg.ReceiveBuffer)
	}
	for _, g := range c.cfg.Groups {
		if err == nil {
			err = sock.JoinGroup(g)
		}
	}
	var raw syscall.RawConn
	if err == nil {
		raw, err = sock.SyscallConn()
	}
	if err != nil {
		sock.Close()
		return fmt.Errorf("set up a %s netlink socket: %w", c.name(), err)
	}
	if c.sock != nil {
		c.sock.Close()
	}
	c.sock, c.raw, c.room, c.held, c.unread, c.broken = sock, raw, 0, nil, nil, false
	return nil
}

func (c *Conn) name() string {
	switch c.cfg.Protocol {
	case unix.NETLINK_NETFILTER:
		return "netfilter"
	case unix.NETLINK_ROUTE:
		return "route"
	case unix.NETLINK_SOCK_DIAG:
		return "sock_diag"
	case unix.NETLINK_GENERIC:
		return "generic"
	}
	return fmt.Sprintf("protocol %d", c.cfg.Protocol)
}

// ready replaces the socket if the last answer was not read to its end.
func (c *Conn) ready() error {
	if c.closed {
		return os.ErrClosed
	}
	if !c.broken || c.cfg.Keep {
		return nil
	}
	namespace := 0
	if c.namespace != threadNamespace() {
		var err error
		failed := c.raw.Control(func(fd uintptr) { namespace, err = unix.IoctlRetInt(int(fd), unix.SIOCGSKNS) })
		err = errors.Join(failed, err)
		if err != nil {
			return fmt.Errorf("find the network namespace of a %s netlink socket, to open another there: %w", c.name(),
				err)
		}
		defer unix.Close(namespace)
	}
	return c.open(namespace)
}

// threadNamespace returns the number of the calling thread's network namespace, or 0 without /proc.
func threadNamespace() uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &st) != nil {
		return 0
	}
	return st.Ino
}

// Close closes the socket. Requests fail from then on.
func (c *Conn) Close() error {
	c.closed = true
	return c.sock.Close()
}

// ReadAtOnce makes one system call read up to n datagrams, with a buffer of 64 KiB for each. The
// kernel answers some requests with a datagram for each object. Call it between requests.
func (c *Conn) ReadAtOnce(n int) {
	c.slots = make([]datagram, n)
	for i := range c.slots {
		d := &c.slots[i]
		d.Iov = &unix.Iovec{Base: &make([]byte, bufferSize)[0]}
		d.Iov.SetLen(bufferSize)
		d.SetIovlen(1)
	}
}

// Port returns the socket's number, which changes when the socket is replaced. Port replaces it if
// the next request would.
func (c *Conn) Port() (uint32, error) {
	if err := c.ready(); err != nil {
		return 0, err
	}
	return c.sock.PID(), nil
}

// Join subscribes to a group.
func (c *Conn) Join(group uint32) error { return c.sock.JoinGroup(group) }

// Leave ends a subscription.
func (c *Conn) Leave(group uint32) error { return c.sock.LeaveGroup(group) }

// SetReceiveBuffer changes Config.ReceiveBuffer, until the socket is replaced.
func (c *Conn) SetReceiveBuffer(n int) error { return c.sock.SetReadBuffer(n) }

// Dropped returns the number of messages that the kernel dropped because the buffer was full, since
// the socket was opened.
func (c *Conn) Dropped() (uint32, error) {
	var info [9]uint32 // SK_MEMINFO_*, of linux/sock_diag.h
	var errno unix.Errno
	size := uint32(unsafe.Sizeof(info))
	failed := c.raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	})
	switch {
	case failed != nil:
		return 0, failed
	case errno != 0:
		return 0, os.NewSyscallError("getsockopt SO_MEMINFO", errno)
	}
	return info[8], nil // SK_MEMINFO_DROPS
}

// Filter drops messages for which a classic BPF program returns 0. A replacement socket has no
// filter.
func (c *Conn) Filter(program []unix.SockFilter) error {
	var err error
	failed := c.raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	})
	return errors.Join(failed, err)
}

// Request returns a request made of the parts of its body, with the flags and unix.NLM_F_REQUEST.
func Request(typ, flags uint16, body ...[]byte) []byte {
	var e Encoder
	at := e.Begin(typ, flags, 0) // Do writes the sequence number
	e.B = append(e.B, slices.Concat(body...)...)
	e.EndMessage(at)
	return e.B
}

// Next returns a new sequence number.
func (c *Conn) Next() uint32 {
	c.seq++
	return c.seq
}

// transmit sends in one system call, after it replaced a broken socket, and with discard dropped
// old answers. The kernel handles the messages before the system call returns.
func (c *Conn) transmit(ctx context.Context, discard bool, bufs ...[]byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.ready(); err != nil {
		return err
	}
	if discard {
		for err := error(nil); err == nil || err == unix.ENOBUFS; {
			err = c.receive(false)
		}
		c.unread = nil
	}
	if err := c.makeRoom(bufs); err != nil {
		return err
	}
	c.out = append(c.out[:0], bufs...)
	err := c.raw.Control(c.sending)
	clear(c.out)
	if err != nil {
		return err
	}
	return os.NewSyscallError("sendmsg", c.err)
}

func (c *Conn) sendOnce(fd uintptr) {
	for {
		if len(c.out) == 1 { // this case allocates no garbage
			c.err = unix.Sendto(int(fd), c.out[0], 0, &c.to)
		} else {
			_, c.err = unix.SendmsgBuffers(int(fd), c.out, nil, &c.to, 0)
		}
		if c.err != unix.EINTR {
			return
		}
	}
}

// makeRoom enlarges the send buffer. In another user namespace, the system's limit applies to root,
// which suffices for small clusters.
func (c *Conn) makeRoom(bufs [][]byte) error {
	need := 1 << 16
	for _, b := range bufs {
		need += len(b)
	}
	if need <= c.room {
		return nil
	}
	err := c.sock.SetWriteBuffer(need)
	if err == nil {
		c.room, err = c.sock.WriteBuffer()
	}
	if err == nil && c.room < need {
		err = fmt.Errorf("the system allows %d: run with CAP_NET_ADMIN in the first user namespace, or raise "+
			"net.core.wmem_max: %w", c.room, unix.EPERM)
	}
	if err != nil {
		return fmt.Errorf("set the netlink send buffer to %d bytes: %w", need, err)
	}
	return nil
}
