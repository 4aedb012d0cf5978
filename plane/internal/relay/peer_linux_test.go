package relay

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// A peer is another process, as clients and backends are: goroutines of the relay's own process
// would compete with its loops for Go's threads, invisibly to the kernel's scheduler.

// peerRole marks the process of a peer.
const peerRole = "RELAY_TEST_PEER"

// peer is a process on a host that has backends, and is a client on demand.
type peer struct {
	in       io.Writer
	out      *bufio.Scanner
	backends map[string]netip.AddrPort
}

// startPeer starts a peer.
func startPeer(tb testing.TB) *peer {
	tb.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), inside+"=1", peerRole+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	p := &peer{in: in, out: bufio.NewScanner(out), backends: map[string]netip.AddrPort{}}
	for _, what := range []string{"connect", "flood", "mute"} {
		p.backends[what] = netip.AddrPortFrom(loopback.Addr(), netip.MustParseAddrPort(p.line(tb)).Port())
	}
	return p
}

func (p *peer) line(tb testing.TB) string {
	tb.Helper()
	if !p.out.Scan() {
		tb.Fatalf("the peer has ended: %v", p.out.Err())
	}
	return p.out.Text()
}

// do makes the peer open n connections and keep them: "hold" sends a byte through each and awaits
// one, "stall" sends one and reads nothing, "pour" sends as much as it can.
func (p *peer) do(tb testing.TB, what string, at netip.AddrPort, n int) {
	tb.Helper()
	fmt.Fprintln(p.in, what, at, n)
	if said := p.line(tb); said != "done" {
		tb.Fatal(said)
	}
}

// bePeer runs the process of a peer.
func bePeer() int {
	fmt.Println(backendOf(func(c net.Conn) {
		buf := make([]byte, 1)
		if _, err := io.ReadFull(c, buf); err == nil {
			c.Write(buf)
			io.ReadFull(c, buf)
		}
	}))
	fmt.Println(backendOf(pour))
	fmt.Println(backendOf(func(net.Conn) { select {} })) // reads nothing
	var held []net.Conn
	defer func() { runtime.KeepAlive(held) }() // an unreferenced connection would be closed
	for {
		var what, at string
		var n int
		if _, err := fmt.Scanln(&what, &at, &n); err != nil {
			return 0
		}
		for range n {
			c, err := net.Dial("tcp", at)
			if err != nil {
				fmt.Println(err)
				return 1
			}
			held = append(held, c)
			if what == "pour" {
				go pour(c)
				continue
			}
			_, err = c.Write([]byte("x"))
			if err == nil && what == "hold" {
				_, err = io.ReadFull(c, make([]byte, 1))
			}
			if err != nil {
				fmt.Println(err)
				return 1
			}
		}
		fmt.Println("done")
	}
}

// pour sends as much as it can.
func pour(c net.Conn) {
	chunk := make([]byte, 256<<10)
	for {
		if _, err := c.Write(chunk); err != nil {
			return
		}
	}
}

func backendOf(handle func(net.Conn)) net.Addr {
	ln, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		panic(err)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				panic(err)
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	return ln.Addr()
}
