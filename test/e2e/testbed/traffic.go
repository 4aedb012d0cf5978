package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Responder answers every TCP connection with its host's name, the address that it sees the client at and a newline, and then
// echoes.
type Responder struct {
	listener net.Listener
	group    sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// Respond starts a Responder in a host, on all its addresses.
func (b *Bed) Respond(host string, port uint16) (*Responder, error) {
	r := &Responder{conns: map[net.Conn]struct{}{}}
	err := b.Lab.Do(host, func() (err error) {
		r.listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("respond in %s: %w", host, err)
	}
	r.group.Go(func() { r.accept(host) })
	return r, nil
}

func (r *Responder) accept(host string) {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.mu.Lock()
		r.conns[conn] = struct{}{}
		r.mu.Unlock()
		r.group.Go(func() {
			fmt.Fprintf(conn, "%s %s\n", host, conn.RemoteAddr())
			io.Copy(conn, conn) // until either side ends
			conn.Close()
			r.mu.Lock()
			delete(r.conns, conn)
			r.mu.Unlock()
		})
	}
}

// Close ends the responder and its connections.
func (r *Responder) Close() error {
	err := r.listener.Close()
	r.mu.Lock()
	for conn := range r.conns {
		conn.Close()
	}
	r.mu.Unlock()
	r.group.Wait()
	return err
}

// Conn is an open connection to a Responder.
type Conn struct {
	net.Conn
	Answered string         // the name of the host that accepted
	Source   netip.AddrPort // from where the connection came, as that host sees it

	reader *bufio.Reader
}

// ErrLost says that a connection was made, but that the kernel had to send the first packet more than once: it met a hole.
var ErrLost = errors.New("the first packet was lost")

// Connect connects from a host to an address and reads who answers. It gives up after 3 s; the kernel repeats a lost first
// packet after one.
func (b *Bed) Connect(ctx context.Context, host string, to netip.AddrPort) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	raw, err := b.Dial(ctx, host, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	c := &Conn{Conn: raw, reader: bufio.NewReader(raw)}
	if err := c.handshake(ctx); err != nil {
		raw.Close()
		return nil, fmt.Errorf("%s to %s: %w", host, to, err)
	}
	return c, nil
}

// Dial connects from a host. The address must be an IP address and a port.
func (b *Bed) Dial(ctx context.Context, host, network, address string) (conn net.Conn, err error) {
	err = b.Lab.Do(host, func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

func (c *Conn) handshake(ctx context.Context) error {
	lost, err := retransmits(c.Conn.(*net.TCPConn))
	if err != nil {
		return err
	}
	if lost > 0 {
		return ErrLost
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetReadDeadline(deadline); err != nil {
			return err
		}
	}
	name, err := c.reader.ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	var source string
	c.Answered, source, _ = strings.Cut(strings.TrimSuffix(name, "\n"), " ")
	if c.Source, err = netip.ParseAddrPort(source); err != nil {
		return fmt.Errorf("read where %s sees us: %w", c.Answered, err)
	}
	c.Source = netip.AddrPortFrom(c.Source.Addr().Unmap(), c.Source.Port())
	return nil
}

// retransmits is how many packets of the connection the kernel has sent again.
func retransmits(conn *net.TCPConn) (n uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	var infoErr error
	err = raw.Control(func(fd uintptr) { info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err := errors.Join(err, infoErr); err != nil {
		return 0, fmt.Errorf("read TCP_INFO: %w", err)
	}
	return info.Total_retrans, nil
}

// Echo sends a line and waits up to 3 s for it to come back.
func (c *Conn) Echo(line string) error {
	if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "%s\n", line); err != nil {
		return err
	}
	back, err := c.reader.ReadString('\n')
	if err != nil {
		return err
	}
	if back != line+"\n" {
		return fmt.Errorf("sent %q, got back %q", line, back)
	}
	return nil
}

// Ask connects, and returns who answered.
func (b *Bed) Ask(ctx context.Context, host string, to netip.AddrPort) (string, error) {
	c, err := b.Connect(ctx, host, to)
	if err != nil {
		return "", err
	}
	return c.Answered, c.Close()
}

// Await asks until who answers is one of want, and returns how long that took, to a few milliseconds while that is short.
func (b *Bed) Await(ctx context.Context, host string, to netip.AddrPort, limit time.Duration, want ...string) (time.Duration, error) {
	start := time.Now()
	for {
		// Nobody may answer at all at first. So each question is a short one, but the longer it takes the more likely it is that
		// the machine is slow.
		waited := time.Since(start)
		name, err := b.AskWithin(ctx, host, to, min(5*time.Millisecond+waited/4, 500*time.Millisecond))
		if err == nil {
			if slices.Contains(want, name) {
				return time.Since(start), nil
			}
			err = fmt.Errorf("%s answered", name)
		}
		if waited > limit || ctx.Err() != nil {
			return 0, fmt.Errorf("%s to %s is not answered by %v within %v: %w", host, to, want, limit, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// AskWithin is Ask with the patience of someone who asks again: a first packet that met a hole is not waited for.
func (b *Bed) AskWithin(ctx context.Context, host string, to netip.AddrPort, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return b.Ask(ctx, host, to)
}

// Traffic is a loop of short connections and one long one, from one host to one address.
type Traffic struct {
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu       sync.Mutex
	short    int            // connections made
	answered map[string]int // by host
	echoes   int            // on the long connection
	failures []error
}

// StartTraffic starts Traffic; the long connection is open when it returns.
func (b *Bed) StartTraffic(ctx context.Context, host string, to netip.AddrPort) (*Traffic, error) {
	long, err := b.Connect(ctx, host, to)
	if err != nil {
		return nil, fmt.Errorf("open the long connection: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	t := &Traffic{cancel: cancel, answered: map[string]int{}}
	t.group.Go(func() {
		defer long.Close()
		for i := 0; ctx.Err() == nil; i++ {
			if err := long.Echo(fmt.Sprint("echo ", i)); err != nil {
				t.fail(fmt.Errorf("long connection, answered by %s: %w", long.Answered, err))
				return
			}
			t.mu.Lock()
			t.echoes++
			t.mu.Unlock()
			time.Sleep(5 * time.Millisecond)
		}
	})
	t.group.Go(func() {
		for ctx.Err() == nil {
			// Not ctx: a connection that Stop interrupts is not a failure of the proxy.
			name, err := b.Ask(context.WithoutCancel(ctx), host, to)
			t.mu.Lock()
			t.short++
			t.answered[name]++
			t.mu.Unlock()
			if err != nil {
				t.fail(err)
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	return t, nil
}

func (t *Traffic) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, fmt.Errorf("%s: %w", time.Now().Format("15:04:05.000"), err))
}

// Stop ends the traffic, prints its numbers and returns what failed.
func (t *Traffic) Stop(logf func(format string, args ...any)) error {
	t.cancel()
	t.group.Wait()
	logf("traffic: %d connections, answered by %v, %d failures; the long connection echoed %d times", t.short, t.answered, len(t.failures), t.echoes)
	if t.short < 10 || t.echoes < 10 {
		t.failures = append(t.failures, fmt.Errorf("too little traffic to prove anything: %d connections, %d echoes", t.short, t.echoes))
	}
	if len(t.failures) > 5 {
		t.failures = append(t.failures[:5], fmt.Errorf("and %d more", len(t.failures)-5))
	}
	return errors.Join(t.failures...)
}
