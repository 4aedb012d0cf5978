package netlab

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultTimeout is how long an answer may take without Timeout in the options.
//
// It leaves time for a lost SYN to be repeated.
const DefaultTimeout = 3 * time.Second

// DialOptions refine Dial and Open. The zero value is usable.
type DialOptions struct {
	// Timeout bounds the wait for the answer, and each Exchange's later; 0 means
	// DefaultTimeout.
	Timeout time.Duration
	// Local is the source address and port; either part may be left zero. A stream
	// with a chosen port is closed with a reset, so that the port is free at once.
	Local netip.AddrPort
}

// Reply is a responder's answer.
type Reply struct {
	// Server is the responder's name.
	Server string
	// Seen is the source address that the responder saw.
	Seen netip.AddrPort
	// At is the responder's own address, the final destination of the packet.
	At netip.AddrPort
}

// Conn is an open connection, or a UDP socket that keeps its port.
type Conn struct {
	lab     *Lab
	file    *os.File
	lines   *bufio.Reader
	what    string // for errors: "tcp node1 → 10.96.0.1:80"
	proto   Proto
	timeout time.Duration
	local   netip.AddrPort
	first   Reply
	count   int
}

// Dial connects to the responder at an address. It returns the responder's answer, or an error that
// wraps ErrRefused, ErrTimeout, ErrUnreachable, ErrReset or ErrUnsupported.
func (l *Lab) Dial(host string, proto Proto, to netip.AddrPort, opts DialOptions) (Reply, error) {
	c, err := l.Open(host, proto, to, opts)
	if err != nil {
		return Reply{}, err
	}
	return c.first, c.Close()
}

// Open is Dial that leaves the connection open. With UDP it sends one datagram.
func (l *Lab) Open(host string, proto Proto, to netip.AddrPort, opts DialOptions) (*Conn, error) {
	c := &Conn{lab: l, what: fmt.Sprintf("%s %s → %s", proto, host, to), proto: proto, timeout: opts.Timeout}
	c.timeout = cmp.Or(c.timeout, DefaultTimeout)
	local := opts.Local
	if h, ok := HostByName(host); ok && proto == SCTP && !local.Addr().IsValid() && !to.Addr().IsLoopback() {
		// An SCTP client that is bound to no address offers the server all it has.
		local = netip.AddrPortFrom(h.Addr(to.Addr().Is6()), local.Port())
	}
	err := l.Do(host, func() error {
		fd, err := socket(proto, to.Addr().Is6(), local)
		if err != nil {
			return err
		}
		c.file = os.NewFile(uintptr(fd), c.what)
		return wantErrors(fd, to.Addr().Is6(), true)
	})
	if err != nil {
		if c.file != nil {
			c.file.Close()
		}
		return nil, fmt.Errorf("netlab: %s: %w", c.what, err)
	}
	c.lines = bufio.NewReader(c.file)
	if err := l.adopt(c); err != nil {
		return nil, errors.Join(err, c.file.Close())
	}
	if err := c.open(to, opts.Local.Port() != 0); err != nil {
		return nil, errors.Join(fmt.Errorf("netlab: %s: %w", c.what, classify(err)), c.Close())
	}
	return c, nil
}

// open connects and gets the first answer.
func (c *Conn) open(to netip.AddrPort, reset bool) error {
	if err := c.file.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return err
	}
	if err := c.connect(to, reset); err != nil {
		return err
	}
	var err error
	if c.proto == UDP {
		c.first, err = c.ask()
		return err
	}
	c.first, err = c.readReply()
	return err
}

func (c *Conn) connect(to netip.AddrPort, reset bool) error {
	started := false
	return wait(c.file, true, func(fd int) (err error) {
		if !started {
			started = true
			if reset && c.proto != UDP {
				if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER,
					&unix.Linger{Onoff: 1}); err != nil {
					return err
				}
			}
			err = unix.Connect(fd, sockaddr(to))
		} else {
			err = connected(fd)
		}
		if err == unix.EINPROGRESS || err == unix.EAGAIN {
			if c.proto == TCP {
				return queuedError(fd)
			}
			return unix.EAGAIN
		}
		if err == nil && c.proto == TCP {
			// From now on an ICMP error has its usual effect: it does not end an established
			// connection.
			err = wantErrors(fd, to.Addr().Is6(), false)
		}
		if err == nil {
			c.local, err = localAddr(fd)
		}
		return err
	})
}

// connected returns the result of a connect, EAGAIN while it is in progress: the poller may report
// a socket that is not connected yet.
func connected(fd int) error {
	if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil {
		return err
	} else if code != 0 {
		return unix.Errno(code)
	}
	if _, err := unix.Getpeername(fd); err == unix.ENOTCONN {
		return unix.EAGAIN
	} else if err != nil {
		return err
	}
	return nil
}

// queuedError returns the ICMP error that waits at a connecting TCP socket, EAGAIN
// without one. (SCTP has no error queue: it would hand out data instead.) In this
// lab the answer to a SYN often arrives before connect returns; the kernel then
// reports it in the error queue alone, and
// would refuse the connection only when the repeated SYN is answered again.
func queuedError(fd int) error {
	oob := make([]byte, 256)
	_, n, _, _, err := unix.Recvmsg(fd, nil, oob, unix.MSG_ERRQUEUE)
	if err != nil {
		return unix.EAGAIN
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return fmt.Errorf("parse the queued error: %w", err)
	}
	for _, m := range messages {
		isError := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR ||
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if isError && len(m.Data) >= 4 {
			return unix.Errno(binary.NativeEndian.Uint32(m.Data)) // ee_errno
		}
	}
	return unix.EAGAIN
}

// First is the answer that Open got.
func (c *Conn) First() Reply { return c.first }

// Local is the client's own address of the connection.
func (c *Conn) Local() netip.AddrPort { return c.local }

// Proto is the connection's protocol.
func (c *Conn) Proto() Proto { return c.proto }

// SetTimeout bounds how long each later [Conn.Exchange] waits for its answer.
func (c *Conn) SetTimeout(d time.Duration) { c.timeout = d }

// Exchange proves that the connection still works: over a stream it sends a line
// and waits for its echo, and returns the first answer again; with UDP it sends
// another datagram and returns its answer. Errors are classified as Dial's.
func (c *Conn) Exchange() (Reply, error) {
	err := c.file.SetDeadline(time.Now().Add(c.timeout))
	if err == nil && c.proto == UDP {
		c.first, err = c.ask()
	} else if err == nil {
		err = c.echo()
	}
	if err != nil {
		return Reply{}, fmt.Errorf("netlab: %s: exchange: %w", c.what, classify(err))
	}
	return c.first, nil
}

// Await sends nothing, and returns how the peer ends the connection: an error that wraps ErrReset,
// ErrTimeout if it does not, or another.
func (c *Conn) Await() error {
	err := c.file.SetDeadline(time.Now().Add(c.timeout))
	if err == nil {
		_, err = c.readLine()
	}
	if err == nil {
		err = errors.New("got a line that was not asked for")
	}
	return fmt.Errorf("netlab: %s: await the end: %w", c.what, classify(err))
}

func (c *Conn) echo() error {
	c.count++
	line := fmt.Sprintf("line %d\n", c.count)
	if _, err := io.WriteString(c.file, line); err != nil {
		return err
	}
	got, err := c.readLine()
	if err == nil && got != line {
		err = fmt.Errorf("sent %q, echo is %q", line, got)
	}
	return err
}

// ask sends a datagram and reads the answer.
func (c *Conn) ask() (Reply, error) {
	if _, err := io.WriteString(c.file, "who\n"); err != nil && !errors.Is(err, unix.EPERM) {
		return Reply{}, err
	}
	// EPERM: the sender's own rules dropped or rejected the packet. After a rejection, the ICMP
	// error is on its way to this socket; after a drop, nothing will arrive.
	return c.readReply()
}

func (c *Conn) readReply() (Reply, error) {
	line, err := c.readLine()
	if err != nil {
		return Reply{}, err
	}
	return parseReply(line)
}

func (c *Conn) readLine() (string, error) {
	line, err := c.lines.ReadString('\n')
	if errors.Is(err, io.EOF) {
		return "", fmt.Errorf("%w (closed before the answer)", ErrReset)
	}
	return line, err
}

func parseReply(line string) (Reply, error) {
	words := strings.Fields(line)
	if len(words) != 3 {
		return Reply{}, fmt.Errorf("answer %q is not a responder's", line)
	}
	seen, err := netip.ParseAddrPort(words[1])
	if err != nil {
		return Reply{}, fmt.Errorf("answer %q: %w", line, err)
	}
	at, err := netip.ParseAddrPort(words[2])
	if err != nil {
		return Reply{}, fmt.Errorf("answer %q: %w", line, err)
	}
	return Reply{Server: words[0], Seen: seen, At: at}, nil
}

// Close closes the connection; Lab.Close does it too. A second call does nothing.
func (c *Conn) Close() error {
	c.lab.forget(c)
	if err := c.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("netlab: %s: close: %w", c.what, err)
	}
	return nil
}
