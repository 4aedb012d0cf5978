//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/test/planetest"
)

// benchSlice is how long one path is measured before the other has its turn: other load on the
// machine affects both.
const benchSlice = 400 * time.Millisecond

// BenchmarkUserspace compares traffic through the proxy with direct traffic to the pod, by turns,
// in one run. An operation is one turn of each. The client is pod3 on the node of the proxy, the
// backends are pod4 and pod5 on the other node.
func BenchmarkUserspace(b *testing.B) {
	b.Run("stream", func(b *testing.B) { benchRatio(b, "MB", 1e-6, swallow, streamBytes) })
	b.Run("connections", func(b *testing.B) { benchRatio(b, "conn", 1, answerOne, shortConnections) })
	b.Run("udp", func(b *testing.B) { benchRatio(b, "rr", 1, nil, udpExchanges) })
	b.Run("killed", benchKilled)
	b.Run("memory-tcp", benchTCPMemory)
	b.Run("memory-udp", benchUDPMemory)
}

// benchLab has a Service with the backends of these hosts.
func benchLab(b *testing.B, hosts []string, args ...string) (*nodeLab, *labProgram, []*echo) {
	b.Helper()
	n := newNodeLab(b)
	for _, host := range []string{"pod3", netlab.Client} { // the client's own limits are not measured
		n.On(host, func() {
			for file, value := range map[string]string{"ip_local_port_range": "2000 65000", "tcp_tw_reuse": "1"} {
				do(b, os.WriteFile("/proc/sys/net/ipv4/"+file, []byte(value), 0))
			}
		})
	}
	var backends []*echo
	s := labService{name: "web", ip: labIP, nodePort: 30080}
	for _, host := range hosts {
		e := n.echo(host, 8080)
		backends, s.endpoints = append(backends, e), append(s.endpoints, e.at())
	}
	n.service(s)
	return n, n.serve(args...), backends
}

// benchRatio measures the work per second, direct and through the proxy.
func benchRatio(b *testing.B, what string, unit float64, serve func(fd int), work func(n *nodeLab, to netip.AddrPort,
	d time.Duration) (int64, error)) {
	n, _, backends := benchLab(b, []string{"pod4"})
	direct, proxied := backends[0].at(), labTarget
	if serve != nil {
		direct = endpoint("pod4", 8090)
		n.threads(b, "pod4", 8090, serve)
		n.service(labService{name: "bare", ip: "10.96.0.12", endpoints: []netip.AddrPort{direct}})
		proxied = netip.MustParseAddrPort("10.96.0.12:80")
		// Another host than the measured one checks whether the Service is served: conntrack
		// remembers earlier packets without a destination for two minutes, and a connection from
		// the same port would be refused.
		until(b, func() string {
			err := n.Do("pod1", func() error { return shortConnection(proxied) })
			if err != nil {
				return err.Error()
			}
			return ""
		})
	}
	measure := func(to netip.AddrPort) float64 {
		began := time.Now()
		done, err := work(n, to, benchSlice)
		if err != nil {
			b.Fatalf("to %s: %v", to, err)
		}
		return float64(done) * unit / time.Since(began).Seconds()
	}
	measure(direct)
	measure(proxied)
	var directs, proxieds, ratios []float64
	for b.Loop() {
		d, p := measure(direct), measure(proxied)
		directs, proxieds, ratios = append(directs, d), append(proxieds, p), append(ratios, p/d)
	}
	b.ReportMetric(middle(ratios), "ratio")
	b.ReportMetric(middle(directs), what+"/s-direct")
	b.ReportMetric(middle(proxieds), what+"/s-proxied")
}

// threads has threads of a host serve connections, without the runtime between them and the kernel:
// the less a backend costs, the more of the time is the proxy's.
func (n *nodeLab) threads(b *testing.B, host string, port uint16, serve func(fd int)) {
	var l int
	n.On(host, func() {
		var err error
		l, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(l, &unix.SockaddrInet4{Port: int(port)})
			if err == nil {
				err = unix.Listen(l, 4096)
			}
		}
		do(b, err)
	})
	b.Cleanup(func() { unix.Shutdown(l, unix.SHUT_RDWR); unix.Close(l) })
	for range benchThreads {
		go func() {
			for {
				fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
				if err == unix.EINTR || err == unix.ECONNABORTED {
					continue
				}
				if err != nil {
					return
				}
				serve(fd)
				unix.Close(fd)
			}
		}()
	}
}

// answerOne reads a byte and gives it back.
func answerOne(fd int) {
	buf := make([]byte, 64)
	if k, err := unix.Read(fd, buf); err == nil && k > 0 {
		_, _ = unix.Write(fd, buf[:k])
	}
	_, _ = unix.Read(fd, buf) // the client ends first
}

// swallow reads to the end, and then sends the number of bytes.
func swallow(fd int) {
	buf := make([]byte, 256<<10)
	var sum uint64
	for {
		k, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || k == 0 {
			break
		}
		sum += uint64(k)
		if k == 1 && sum == 1 && buf[0] == 'x' { // a client that only checks for a listener
			_, _ = unix.Write(fd, buf[:1])
		}
	}
	_, _ = unix.Write(fd, binary.BigEndian.AppendUint64(nil, sum))
}

func middle(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// streamBytes counts the bytes received on one connection whose sender never pauses.
func streamBytes(n *nodeLab, to netip.AddrPort, d time.Duration) (int64, error) {
	conn, err := n.dial("pod3", "tcp", to, timeout)
	if err != nil {
		return 0, err
	}
	c := conn.(*net.TCPConn)
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	chunk := make([]byte, 1<<20)
	for end := time.Now().Add(d); time.Now().Before(end); {
		if _, err := c.Write(chunk); err != nil {
			return 0, err
		}
	}
	if err := c.CloseWrite(); err != nil {
		return 0, err
	}
	var sum [8]byte
	_, err = io.ReadFull(c, sum[:])
	return int64(binary.BigEndian.Uint64(sum[:])), err
}

// benchThreads is how many clients there are at a time.
const benchThreads = 8

// shortConnections counts connections: connect, one byte each way, close.
func shortConnections(n *nodeLab, to netip.AddrPort, d time.Duration) (int64, error) {
	var done atomic.Int64
	errs := make(chan error, benchThreads)
	end := time.Now().Add(d)
	for range benchThreads {
		go func() {
			errs <- n.Do("pod3", func() error {
				for time.Now().Before(end) {
					if err := shortConnection(to); err != nil {
						return err
					}
					done.Add(1)
				}
				return nil
			})
		}()
	}
	var err error
	for range benchThreads {
		err = errors.Join(err, <-errs)
	}
	return done.Load(), err
}

// shortConnection is one, from the namespace of the calling thread, without the runtime between it
// and the kernel.
func shortConnection(to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}); err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	buf := make([]byte, 64)
	if _, err := unix.Write(fd, []byte{'x'}); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	for got := 0; ; { // the line with the name, and the echo
		k, err := unix.Read(fd, buf[got:])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("read: %w", err)
		case k == 0:
			return fmt.Errorf("read: %w", io.ErrUnexpectedEOF)
		}
		got += k
		if buf[got-1] == 'x' {
			return nil
		}
	}
}

// udpExchanges counts requests that are answered, of some clients that each wait for their answer.
func udpExchanges(n *nodeLab, to netip.AddrPort, d time.Duration) (int64, error) {
	var done atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(d)
	var failed atomic.Pointer[error]
	for range 2 * benchThreads {
		c, err := n.dial("pod3", "udp", to, time.Second)
		if err != nil {
			return 0, err
		}
		all.Go(func() {
			defer c.Close()
			buf := make([]byte, 64)
			for time.Now().Before(end) {
				c.SetReadDeadline(time.Now().Add(time.Second))
				_, err := c.Write(buf)
				if err == nil {
					_, err = c.Read(buf)
				}
				if err != nil {
					failed.Store(&err)
					continue
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil && done.Load() == 0 {
		return 0, *err
	}
	return done.Load(), nil
}

// benchKilled kills one of two backends under 200 connections a second, by a reset and by silence,
// and counts the clients that see it.
func benchKilled(b *testing.B) {
	n, _, backends := benchLab(b, []string{"pod4", "pod5"})
	var failed, made atomic.Int64
	var mu sync.Mutex
	var took []float64
	for b.Loop() {
		var all sync.WaitGroup
		every := time.NewTicker(5 * time.Millisecond)
		for i := range 600 {
			<-every.C
			if i == 200 {
				backends[1].stopListening()
			}
			all.Go(func() {
				began := time.Now()
				err := n.Do("pod3", func() error { return shortConnection(labTarget) })
				made.Add(1)
				mu.Lock()
				defer mu.Unlock()
				took = append(took, float64(time.Since(began).Microseconds())/1000)
				if err != nil {
					failed.Add(1)
					b.Logf("connection %d: %v", i, err)
				}
			})
		}
		every.Stop()
		all.Wait()
		do(b, backends[1].live())
	}
	slices.Sort(took)
	b.ReportMetric(float64(failed.Load()), "failed")
	b.ReportMetric(float64(made.Load()), "connections")
	b.ReportMetric(took[len(took)*99/100], "p99-ms")
}

// descriptors is how many the program may have open. It inherits the limit.
func descriptors(b *testing.B) int {
	var limit unix.Rlimit
	do(b, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	limit.Cur = limit.Max
	do(b, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	return int(limit.Max)
}

// benchTCPMemory measures the additional memory of the program while many connections are open that
// have all been used.
func benchTCPMemory(b *testing.B) {
	most := min(10_000, descriptors(b)/6) // two each; a family has half, one listener four fifths of that
	n, p, _ := benchLab(b, []string{"pod4", "pod5"})
	open := func(count int) (conns []net.Conn) {
		err := n.Do("pod3", func() error {
			for range count {
				c, err := net.DialTimeout("tcp", labTarget.String(), timeout)
				if err != nil {
					return fmt.Errorf("connection %d: %w", len(conns)+1, err)
				}
				conns = append(conns, c)
				c.SetReadDeadline(time.Now().Add(timeout))
				if _, err := c.Read(make([]byte, 32)); err != nil {
					return fmt.Errorf("connection %d: %w", len(conns), err)
				}
			}
			return nil
		})
		do(b, err)
		return conns
	}
	shut := func(conns []net.Conn) {
		for _, c := range conns {
			c.Close()
		}
	}
	shut(open(100))
	for b.Loop() {
		files, before := p.files(), p.resident()
		conns := open(most)
		kib := float64(p.resident()-before) / 1024
		b.ReportMetric(kib/float64(most), "KiB/conn")
		b.ReportMetric(float64(p.resident())/(1<<20), "MiB")
		b.ReportMetric(float64(p.files()-files)/float64(most), "files/conn")
		b.ReportMetric(float64(most), "connections")
		shut(conns)
	}
}

// benchUDPMemory measures the additional memory of the program while many UDP sessions are open.
// Their clients are unassigned addresses.
func benchUDPMemory(b *testing.B) {
	const backends = 100
	sessions := min(5_000, descriptors(b)/10) // a namespace has four fifths of an eighth
	n, p, _ := benchLab(b, []string{"pod4"}, "--udp-timeout=10m")
	many := labService{name: "many", ip: "10.96.0.13"}
	for i := range uint16(backends) {
		c, err := n.listenUDP("pod5", 10_000+i) // it never answers
		do(b, err)
		defer c.Close()
		many.endpoints = append(many.endpoints, endpoint("pod5", 10_000+i))
	}
	n.service(many)
	to := netip.MustParseAddrPort("10.96.0.13:80")
	until(b, func() string {
		do(b, n.strangers(to, 0, 100))
		if open := p.metric("kubeproxy_userspace_udp_sessions"); open < 99 {
			return fmt.Sprintf("%v sessions are open", open)
		}
		return ""
	})
	for b.Loop() {
		files, before := p.files(), p.resident()
		var open float64
		until(b, func() string { // lost datagrams are sent again
			do(b, n.strangers(to, 100, sessions-100))
			open = p.metric("kubeproxy_userspace_udp_sessions")
			if open < 0.98*float64(sessions) {
				return fmt.Sprintf("%v sessions are open", open)
			}
			return ""
		})
		b.ReportMetric(open, "sessions")
		b.ReportMetric(float64(p.resident()-before)/open, "B/session")
		b.ReportMetric(float64(p.resident())/(1<<20), "MiB")
		b.ReportMetric(float64(p.files()-files), "files")
	}
}

// strangers sends a datagram from each of count unassigned addresses, starting at number first, by
// way of the client.
func (n *nodeLab) strangers(to netip.AddrPort, first, count int) error {
	return n.Do(netlab.Client, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return fmt.Errorf("raw socket: %w", err)
		}
		defer unix.Close(fd)
		dst := to.Addr().As4()
		at := &unix.SockaddrInet4{Addr: dst}
		for i := first; i < first+count; i++ {
			packet := make([]byte, 28+8)
			packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_UDP
			copy(packet[12:], []byte{100, 64 + byte(i>>16), byte(i >> 8), byte(i)})
			copy(packet[16:], dst[:])
			packet[20], packet[21] = 0x80, byte(i) // ports
			packet[22], packet[23] = byte(to.Port()>>8), byte(to.Port())
			packet[25] = 8 + 8 // length; no checksum
			if err := unix.Sendto(fd, packet, 0, at); err != nil && err != unix.ENOBUFS {
				return fmt.Errorf("send: %w", err)
			}
			if i%200 == 0 {
				time.Sleep(time.Millisecond) // or the receiver's buffer overflows, which is not measured
			}
		}
		return nil
	})
}

// metric returns the sum of a metric over its labels; 0 without any.
func (p *labProgram) metric(name string) (sum float64) {
	p.n.t.Helper()
	page, err := p.get("/metrics")
	if err != nil {
		p.n.t.Fatalf("/metrics: %v", err)
	}
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(strings.TrimSpace(rest), ' ')+1:], &v); err == nil {
			sum += v
		}
	}
	return sum
}

// stopListening refuses new clients; existing ones continue.
func (e *echo) stopListening() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tcp.Close()
	e.udp.Close()
}

// BenchmarkUserspaceChange is one endpoint that changes, of one Service among many, as the engine
// hands it to the plane.
func BenchmarkUserspaceChange(b *testing.B) {
	m, _ := all.Modes().Find("userspace")
	w := planetest.World{Family: lb.IPv4}
	for _, services := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			netlab.EnterForTest(b)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			descriptors(b)
			p, err := m.New(mode.Settings{Family: lb.IPv4, MasqueradeBit: 14})
			do(b, err)
			defer p.Close()
			table := lb.Table{Family: lb.IPv4, Node: w.Node()}
			for i := range services {
				table.Replace(w.ClusterIP(i, i*10, 10))
			}
			if _, err := planetest.ResetAll(b.Context(), p, &table); err != nil {
				b.Fatal(err)
			}
			for i := 0; b.Loop(); i++ {
				changes, _ := table.Replace(w.ClusterIP(services/2, services*5+1-i%2, 10))
				if len(changes) != 1 {
					b.Fatalf("%d changes", len(changes))
				}
				if _, err := p.Apply(b.Context(), changes); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
