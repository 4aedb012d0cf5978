package relay

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// A peer is another process, as clients and backends are: goroutines of the relay's own process would compete with its loops for
// the threads of Go, which the kernel's scheduler knows nothing of.

// peerRole marks the process that is one.
const peerRole = "RELAY_TEST_PEER"

// peer is a process on a host that has backends, and is a client on demand.
type peer struct {
	in       io.Writer
	out      *bufio.Scanner
	backends map[string]netip.AddrPort
}

func startPeer(tb testing.TB, lab *netlab.TestLab, name string) *peer {
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
	lab.On(name, func() { err = cmd.Start() })
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	p := &peer{in: in, out: bufio.NewScanner(out), backends: map[string]netip.AddrPort{}}
	host, _ := netlab.HostByName(name)
	for _, what := range []string{"stream", "connect"} {
		p.backends[what] = netip.AddrPortFrom(host.V4, netip.MustParseAddrPort(p.line(tb)).Port())
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

// do has the peer be a client n times, and returns how long that took it.
func (p *peer) do(tb testing.TB, what string, at netip.AddrPort, n int) time.Duration {
	tb.Helper()
	fmt.Fprintln(p.in, what, at, n)
	took, err := time.ParseDuration(p.line(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return took
}

// bePeer is what such a process does.
func bePeer() int {
	fmt.Println(backendOf(func(c net.Conn) {
		io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
	}))
	fmt.Println(backendOf(func(c net.Conn) {
		buf := make([]byte, 1)
		if _, err := io.ReadFull(c, buf); err == nil {
			c.Write(buf)
			io.ReadFull(c, buf)
		}
	}))
	for {
		var what, at string
		var n int
		if _, err := fmt.Scanln(&what, &at, &n); err != nil {
			return 0
		}
		begun := time.Now()
		var err error
		switch what {
		case "stream":
			err = streamTo(at, n)
		case "connect":
			err = connectTo(at, n)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println(time.Since(begun))
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

// streamTo sends n MB, and waits until they have been read.
func streamTo(at string, n int) error {
	c, err := net.Dial("tcp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	chunk := make([]byte, 256<<10)
	for range n * 4 {
		if _, err := c.Write(chunk); err != nil {
			return err
		}
	}
	c.(*net.TCPConn).CloseWrite()
	_, err = io.Copy(io.Discard, c)
	return err
}

// connectTo connects, sends a byte, gets one and closes, n times, from a few goroutines.
func connectTo(at string, n int) error {
	const clients = 4
	errs := make(chan error, clients)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range n / clients {
				if err := connectOnce(at); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}

func connectOnce(at string) error {
	c, err := net.Dial("tcp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

// compare has a pod be a client of another straight and through a relay of their node, in turns, and reports how much of what it
// gets done straight it gets done so.
func compare(b *testing.B, what string, n int) {
	lab := netlab.ForTest(b, netlab.Options{NoNode2: true, NoClient: true})
	client, backend := startPeer(b, lab, "pod1"), startPeer(b, lab, "pod2").backends[what]
	node, _ := netlab.HostByName(netlab.Node1)
	var l *Listener
	lab.On(netlab.Node1, func() {
		r := newRelay(b, Config{})
		var err error
		if l, err = r.Listen(Listening{lb.TCP, netip.AddrPortFrom(node.V4, 0)}, to(backend)); err != nil {
			b.Fatal(err)
		}
	})
	var direct, relayed time.Duration
	before := ownTime(b)
	for b.Loop() {
		direct += client.do(b, what, backend, n)
		relayed += client.do(b, what, l.Addr(), n)
	}
	b.ReportMetric(float64(direct)/float64(relayed), "of-direct")
	b.ReportMetric(float64(n*b.N)/direct.Seconds(), "direct/s")
	b.ReportMetric(float64(n*b.N)/relayed.Seconds(), "relayed/s")
	b.ReportMetric(float64((ownTime(b)-before).Microseconds())/float64(n*b.N), "cpu-us")
	b.ReportMetric(0, "ns/op")
}

// ownTime is the processor's time that this process has taken.
func ownTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTCPStream sends MB.
func BenchmarkTCPStream(b *testing.B) { compare(b, "stream", 512) }

// BenchmarkTCPConnect connects, sends a byte, gets one and closes.
func BenchmarkTCPConnect(b *testing.B) { compare(b, "connect", 2000) }
