//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// echo is a TCP and UDP backend that returns its input; on TCP after a line with its name, until
// the client closes its half, then it closes the other.
type echo struct {
	n    *nodeLab
	host string
	port uint16

	mu    sync.Mutex
	tcp   net.Listener
	udp   *net.UDPConn
	conns map[net.Conn]bool
	died  atomic.Int64 // how often
}

func (n *nodeLab) echo(host string, port uint16) *echo {
	n.t.Helper()
	e := &echo{n: n, host: host, port: port, conns: map[net.Conn]bool{}}
	do(n.t, e.live())
	n.t.Cleanup(e.die)
	return e
}

func (e *echo) at() netip.AddrPort { return endpoint(e.host, e.port) }

// live begins to serve.
func (e *echo) live() error {
	tcp, err := e.n.listen(e.host, e.port)
	if err != nil {
		return err
	}
	udp, err := e.n.listenUDP(e.host, e.port)
	if err != nil {
		tcp.Close()
		return err
	}
	e.mu.Lock()
	e.tcp, e.udp = tcp, udp
	e.mu.Unlock()
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go e.serve(c.(*net.TCPConn))
		}
	}()
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := udp.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	return nil
}

// die ends all, connections by a reset, as a process does that is killed.
func (e *echo) die() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.died.Add(1)
	if e.tcp != nil {
		e.tcp.Close()
		e.udp.Close()
	}
	for c := range e.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	clear(e.conns)
}

func (e *echo) serve(c *net.TCPConn) {
	e.mu.Lock()
	e.conns[c] = true
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.conns, c)
		e.mu.Unlock()
		c.Close()
	}()
	if _, err := fmt.Fprintf(c, "%s:%d\n", e.host, e.port); err != nil {
		return
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := c.Read(buf)
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				_ = c.CloseWrite()
			}
			return
		}
	}
}

// errGarbled: the returned data differs from the sent data.
var errGarbled = errors.New("what came back is not what was sent")

// converse opens a connection, sends size bytes in parts, closes its half, and compares the
// returned data. It returns the name of the backend; "" if it was not received.
func (n *nodeLab) converse(host string, to netip.AddrPort, size int, within time.Duration,
	rnd *rand.Rand) (server string, err error) {
	conn, err := n.dial(host, "tcp", to, within)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	c := conn.(*net.TCPConn)
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	sent := make([]byte, size)
	seed := [32]byte{}
	binary.LittleEndian.PutUint64(seed[:], rnd.Uint64())
	rand.NewChaCha8(seed).Read(sent)
	go func() {
		for rest := sent; len(rest) > 0; {
			k := min(len(rest), 1+int(sent[0])*int(sent[len(sent)-1]))
			if _, err := c.Write(rest[:k]); err != nil {
				return
			}
			rest = rest[k:]
		}
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	name, back, ok := bytes.Cut(got, []byte("\n"))
	if !ok {
		return "", fmt.Errorf("no answer: %w", or(err, io.ErrUnexpectedEOF))
	}
	switch {
	case !bytes.HasPrefix(sent, back):
		return string(name), errGarbled
	case err != nil:
		return string(name), err
	case len(back) != len(sent):
		return string(name), fmt.Errorf("%d of %d bytes came back: %w", len(back), len(sent), io.ErrUnexpectedEOF)
	}
	return string(name), nil
}

// askUDP sends a datagram until it is returned, tries times at most.
func (n *nodeLab) askUDP(host string, to netip.AddrPort, what []byte, tries int) error {
	c, err := n.dial(host, "udp", to, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, 64<<10)
	for range tries {
		c.SetDeadline(time.Now().Add(2 * time.Second))
		_, err = c.Write(what)
		if err != nil {
			continue
		}
		var k int
		k, err = c.Read(buf)
		if err == nil {
			if !bytes.Equal(buf[:k], what) {
				return errGarbled
			}
			return nil
		}
	}
	return err
}

func or(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}
