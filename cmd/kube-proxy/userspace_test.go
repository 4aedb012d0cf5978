//go:build linux

package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
)

const labIP = "10.96.0.10"

var labTarget = netip.MustParseAddrPort(labIP + ":80")

// callers make short connections all the time, and count those that fail. A failure is reported
// with its start time.
type callers struct {
	n    *nodeLab
	stop chan struct{}
	all  sync.WaitGroup
	made atomic.Int64

	mu     sync.Mutex
	failed []failure
}

// failure is a connection that went wrong.
type failure struct {
	began, ended time.Time
	err          error
}

func (n *nodeLab) call(hosts []string, to ...netip.AddrPort) *callers {
	c := &callers{n: n, stop: make(chan struct{})}
	for i, host := range hosts {
		for _, at := range to {
			c.all.Go(func() { c.run(host, at, rand.New(rand.NewPCG(uint64(i), uint64(at.Port())))) })
		}
	}
	return c
}

func (c *callers) run(host string, to netip.AddrPort, rnd *rand.Rand) {
	for {
		select {
		case <-c.stop:
			return
		default:
		}
		began := time.Now()
		if _, err := c.n.converse(host, to, 1+rnd.IntN(2000), timeout, rnd); err != nil {
			c.mu.Lock()
			c.failed = append(c.failed, failure{began, time.Now(), fmt.Errorf("%s → %s: %w", host, to, err)})
			c.mu.Unlock()
			time.Sleep(time.Millisecond) // refused at once
			continue
		}
		c.made.Add(1)
	}
}

// progress waits until the callers have made so many more connections.
func (c *callers) progress(more int64) {
	c.n.t.Helper()
	want := c.made.Load() + more
	until(c.n.t, func() string {
		if c.made.Load() < want {
			return fmt.Sprintf("only %d of %d connections succeed: %v", more-(want-c.made.Load()), more, c.end())
		}
		return ""
	})
}

// end returns the failures so far.
func (c *callers) end() []failure {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.failed)
}

func (c *callers) wait() []failure {
	close(c.stop)
	c.all.Wait()
	return c.end()
}

// SIGTERM under traffic, and the next process: it takes over ports and rules. Open connections
// finish, and only those started between the end of one process and the start of the other can fail
// (PR-07, DP-40). Listeners have ports of the range (CF-44). A second signal, or the drain timeout,
// closes open connections.
func TestUserspaceRestart(t *testing.T) {
	n := newNodeLab(t)
	one, two := n.echo("pod1", 8080), n.echo("pod4", 8080)
	n.service(labService{name: "web", ip: labIP, nodePort: 30080, endpoints: []netip.AddrPort{one.at(), two.at()}})
	const inRange = "--proxy-port-range=31000-31009"
	p := n.serve("--userspace-drain-timeout=1h", inRange)
	ports := n.ports()
	if !slices.ContainsFunc(ports, regexp.MustCompile(`^0\.0\.0\.0:3100\d$`).MatchString) {
		t.Errorf("listeners at %q", ports)
	}
	nodePort := endpoint(netlab.Node1, 30080)
	traffic := n.call([]string{"pod3", netlab.Client}, labTarget, nodePort)
	traffic.progress(200)

	// A connection that is open at SIGTERM is served to its end.
	under, err := n.dial("pod3", "tcp", labTarget, timeout)
	do(t, err)
	defer under.Close()
	under.SetDeadline(time.Now().Add(timeout))
	hello := make([]byte, 16)
	if _, err := under.Read(hello); err != nil {
		t.Fatal(err)
	}
	if failed := traffic.end(); len(failed) > 0 {
		t.Fatalf("before SIGTERM: %v", failed)
	}
	signalled := time.Now()
	drains := func(p *labProgram) {
		t.Helper()
		p.signal(syscall.SIGTERM)
		p.await(regexp.MustCompile(`"Draining connections; a second signal closes them at once" within=`))
	}
	drains(p)
	// The next process serves while the first waits for the connection: it has the ports of the
	// servers and the writer lock.
	next := n.serve("--userspace-drain-timeout=1h", inRange)
	if _, err := next.get("/metrics"); err != nil {
		t.Error(err)
	}
	took := time.Since(signalled)
	serving := time.Now()
	traffic.progress(200)
	if _, err := under.Write([]byte("still there?")); err != nil {
		t.Errorf("a connection that was open at SIGTERM: %v", err)
	}
	echoed := make([]byte, 12)
	if k, err := under.Read(echoed); err != nil || string(echoed[:k]) != "still there?" {
		t.Errorf("a connection that was open at SIGTERM: %q, %v", echoed[:k], err)
	}
	under.(*net.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(under); len(rest) > 0 || err != nil {
		t.Errorf("a connection that was open at SIGTERM ends with %q, %v", rest, err)
	}
	if code := p.end(0); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.log())
	}
	if !strings.Contains(p.log(), "cut=0") {
		t.Errorf("it does not say that it has cut nothing:\n%s", p.log())
	}
	if again := n.ports(); !slices.Equal(ports, again) {
		t.Errorf("the ports were %q and are %q", ports, again)
	}
	failed := traffic.wait()
	for _, f := range failed {
		if f.ended.Before(signalled) || f.began.After(serving) {
			t.Errorf("a connection that began %v after SIGTERM failed: %v", f.began.Sub(signalled), f.err)
		}
	}
	t.Logf("%d connections, %d of them failed in the %v from SIGTERM until the next process served",
		traffic.made.Load()+int64(len(failed)), len(failed), took.Round(time.Millisecond))
	connect := func() {
		t.Helper()
		c, err := n.dial("pod3", "tcp", labTarget, timeout)
		do(t, err)
		t.Cleanup(func() { c.Close() })
		_, err = c.Read(hello)
		do(t, err)
	}
	connect()
	drains(next)
	next.end(syscall.SIGTERM)
	if status := next.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() {
		t.Errorf("a second SIGTERM: %v\n%s", next.cmd.ProcessState, next.log())
	}
	last := n.serve("--userspace-drain-timeout=50ms", inRange)
	connect()
	last.stop()
	if !strings.Contains(last.log(), "cut=1") {
		t.Errorf("it does not say that it has cut a connection:\n%s", last.log())
	}
}

// Connections that are over do not use up the node's ports towards an endpoint: the kernel
// remembers each of them for a minute, and reuses a port after one to two seconds. Another Service
// finds no port of the range; the plane's notice says so.
func TestUserspacePortsOfTheNode(t *testing.T) {
	t.Parallel()
	n := newNodeLab(t)
	n.On(netlab.Node1, func() {
		do(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40999"), 0))
	})
	n.service(labService{name: "web", ip: labIP, endpoints: []netip.AddrPort{n.echo("pod5", 8080).at()}})
	p := n.serve("--proxy-port-range=20000-20000")
	n.service(labService{name: "late", ip: "10.96.0.20", endpoints: []netip.AddrPort{endpoint("pod5", 8080)}})
	p.await(regexp.MustCompile(`"No port or listener is left; Services that need one are not served" family="IPv4"`))
	for round := range 2 {
		time.Sleep(time.Duration(round) * 2500 * time.Millisecond)
		for i := range 900 {
			if err := n.Do("pod3", func() error { return shortConnection(labTarget) }); err != nil {
				t.Fatalf("connection %d of round %d: %v", i, round, err)
			}
		}
	}
}
