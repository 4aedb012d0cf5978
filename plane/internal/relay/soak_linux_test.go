package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mortal is a backend that can be killed, and returns at the same address. Connections that it has accepted it serves to their end.
type mortal struct {
	at netip.AddrPort
	ln *net.TCPListener
}

func (m *mortal) live(t *testing.T) {
	t.Helper()
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(m.at))
	if err != nil {
		t.Fatal(err)
	}
	m.ln, m.at = ln, ln.Addr().(*net.TCPAddr).AddrPort()
	go func() {
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				echo(c)
			}()
		}
	}()
}

// die closes the port. Those whom the kernel has accepted for it are served: it resets them with the socket, and nobody can know
// whether that had read what they sent. So first others are refused: the socket is that of an interface which is not there.
func (m *mortal) die() {
	raw, err := m.ln.SyscallConn()
	if err != nil {
		panic(err)
	}
	raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, 1<<20); err != nil {
			panic(err)
		}
		time.Sleep(time.Millisecond) // a handshake may be under way
		for {
			c, _, err := syscall.Accept4(int(fd), syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
			if err != nil {
				break
			}
			f := os.NewFile(uintptr(c), "accepted")
			conn, err := net.FileConn(f)
			f.Close()
			if err == nil {
				go func() {
					defer conn.Close()
					echo(conn.(*net.TCPConn))
				}()
			}
		}
	})
	m.ln.Close()
}

// soakTime is how long the soak lasts; RELAY_SOAK sets another.
func soakTime(t *testing.T) time.Duration {
	if text := os.Getenv("RELAY_SOAK"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	return 2 * time.Second
}

// While backends die and return at random, 200 clients a second get every byte back that they send, and none fails. Others reset,
// half-close, or are reset because their backend leaves. In the end nothing is left of all that.
func TestTCPSoak(t *testing.T) {
	files, goroutines := openFDs(t), runtime.NumGoroutine()
	r, other := newRelay(t, Config{}), newRelay(t, Config{})
	backends := []*mortal{{at: loopback}, {at: loopback}, {at: loopback}}
	var at []netip.AddrPort
	for _, m := range backends {
		m.live(t)
		at = append(at, m.at)
	}
	l, rude := listen(t, r, to(at...)), listen(t, other, to(at...))

	ctx, cancel := context.WithTimeout(context.Background(), soakTime(t))
	defer cancel()
	var all sync.WaitGroup
	var served, failed atomic.Int64
	each := func(every time.Duration, fn func(i int)) {
		all.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-tick.C:
					all.Go(func() { fn(i) })
				case <-ctx.Done():
					return
				}
			}
		})
	}
	each(5*time.Millisecond, func(i int) {
		if err := exchange(l.Addr(), i); err != nil {
			failed.Add(1)
			t.Errorf("client %d: %v", i, err)
		}
		served.Add(1)
	})
	each(7*time.Millisecond, func(i int) { beRude(rude.Addr(), i) })
	each(50*time.Millisecond, func(i int) {
		rude.Leave(at[i%3:i%3+1], time.Duration(i%3)*10*time.Millisecond)
	})
	for i := 0; ctx.Err() == nil; i++ {
		m := backends[i%3]
		m.die()
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
		m.live(t)
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
	}
	all.Wait()
	s := r.Stats().TCP
	t.Logf("%d clients were served, %d failed; %+v", served.Load(), failed.Load(), s)
	if s.DialsFailed == 0 {
		t.Error("no dial has failed: nothing was proven")
	}

	for _, r := range []*Relay{r, other} {
		eventually(t, "no connection is open", func() bool { return r.Stats().TCP.Open == 0 })
		wantEmpty(t, r)
		r.Close()
	}
	for _, m := range backends {
		m.die()
	}
	eventually(t, "all descriptors and goroutines are given back", func() bool {
		now := openFDs(t)
		return now["socket"] <= files["socket"] && now["pipe"] <= files["pipe"] && runtime.NumGoroutine() <= goroutines
	})
}

// wantEmpty fails the test if loops remember something of connections that have ended.
func wantEmpty(t *testing.T, r *Relay) {
	t.Helper()
	left := make(chan string)
	e := r.conns.(*conns)
	e.each(func(l *loop) {
		conns := 0
		for _, c := range l.conns {
			if c != nil {
				conns++
			}
		}
		var text string
		if conns+len(l.joined)+len(l.ready)+l.pipes.made-len(l.pipes.free) != 0 || l.idle.pending != nil || len(l.pipes.free) > sparePipes {
			text = fmt.Sprintf("%d connections, %d listeners, idle timer %t, %d ready, %d pipes of which %d are free",
				conns, len(l.joined), l.idle.pending != nil, len(l.ready), l.pipes.made, len(l.pipes.free))
		}
		left <- text
	})
	for range e.loops {
		if text := <-left; text != "" {
			t.Errorf("a loop still has %s", text)
		}
	}
	if used := e.fds.used.Load(); used != 0 {
		t.Errorf("%d descriptors are counted with no connection open", used)
	}
}

// exchange sends bytes, in pieces, and compares what comes back.
func exchange(at netip.AddrPort, seed int) error {
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	random := rand.New(rand.NewPCG(3, uint64(seed)))
	sent := make([]byte, 1+random.IntN(1<<(1+random.IntN(18))))
	for i := range sent {
		sent[i] = byte(random.Uint32())
	}
	wrote := make(chan error, 1)
	go func() {
		for rest := sent; len(rest) > 0; {
			n := min(1+len(rest)/3, len(rest))
			if _, err := c.Write(rest[:n]); err != nil {
				wrote <- err
				return
			}
			rest = rest[n:]
		}
		wrote <- c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if !bytes.Equal(got, sent) {
		err = errors.Join(err, fmt.Errorf("%d bytes came back of %d, or others", len(got), len(sent)))
	}
	return errors.Join(err, <-wrote)
}

// beRude is a client that ends in the middle of something.
func beRude(at netip.AddrPort, i int) {
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	if err != nil {
		return
	}
	defer c.Close()
	if i%2 == 0 {
		c.SetLinger(0)
	}
	c.SetDeadline(time.Now().Add(time.Duration(i%20) * time.Millisecond))
	switch i % 5 {
	case 0:
	case 1:
		c.Write(make([]byte, 1<<20))
	case 2:
		c.CloseWrite()
		c.Read(make([]byte, 1))
	case 3:
		c.Write([]byte("x"))
		c.Read(make([]byte, 1))
	case 4:
		c.Write(make([]byte, 1000))
		c.CloseWrite()
	}
}
