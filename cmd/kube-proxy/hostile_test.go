//go:build linux

package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
)

// neighbour is a Service of another tenant, whose clients must not notice what one tenant does.
type neighbour struct {
	n *nodeLab
	p *labProgram
}

const neighbourIP = "10.96.0.20"

var neighbourAt = netip.MustParseAddrPort(neighbourIP + ":80")

// newNeighbour serves a good Service in mode userspace.
func newNeighbour(t *testing.T, args ...string) *neighbour {
	n := newNodeLab(t)
	good := n.echo("pod5", 8080)
	n.service(labService{name: "good", ip: neighbourIP, endpoints: []netip.AddrPort{good.at()}})
	b := &neighbour{n: n, p: n.serve(args...)}
	b.well("before anything")
	return b
}

// well fails the test if a client of the neighbour cannot connect, talk and end, in TCP and UDP,
// well before a timeout.
func (b *neighbour) well(when string) {
	b.n.t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		began := time.Now()
		if _, err := b.n.converse("pod3", neighbourAt, 20_000, timeout, rnd); err != nil {
			page, _ := b.p.get("/metrics")
			stat, _ := b.n.Command("pod3", "sh", "-c", "nstat -asz TcpExtTCPMemoryPressures TcpExtTCPAbortOnMemory; "+
				"cat /proc/self/net/sockstat").Output()
			nstat, _ := b.n.Command(netlab.Node1, "sh", "-c", "nstat -asz TcpExtTCPMemoryPressures "+
				"TcpExtTCPAbortOnMemory; cat /proc/self/net/sockstat").Output()
			b.n.t.Fatalf("%s: a neighbour's connection: %v\n%s\n%s\npod3: %s\nnode1: %s", when, err, b.p.log(),
				regexp.MustCompile(`(?m)^kubeproxy_userspace_.* [1-9].*$`).FindAllString(page, -1), stat, nstat)
		}
		if took := time.Since(began); took > 10*time.Second {
			b.n.t.Fatalf("%s: a neighbour's connection took %v", when, took)
		}
	}
	if err := b.n.askUDP("pod3", neighbourAt, []byte("are you there?"), 5); err != nil {
		b.n.t.Fatalf("%s: a neighbour's datagrams: %v", when, err)
	}
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
		if _, err = c.Write(what); err != nil {
			continue
		}
		var k int
		if k, err = c.Read(buf); err == nil {
			if !bytes.Equal(buf[:k], what) {
				return errGarbled
			}
			return nil
		}
	}
	return err
}

// open returns an error text if the number of open TCP connections differs from want.
func (b *neighbour) open(want float64) string {
	page, err := b.p.get("/metrics")
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(page) {
		if rest,
			ok := strings.CutPrefix(line, `kubeproxy_userspace_connections{ip_family="IPv4",protocol="tcp"} `); ok {
			if strings.TrimSpace(rest) != fmt.Sprint(want) {
				return "open connections: " + rest
			}
			return ""
		}
	}
	return "no metric of open connections"
}

// A Service whose endpoint is its own address, another Service's, the node's NodePort or a port of
// the proxy leads back to the proxy. One connection must not become an endless number.
func TestUserspaceLoops(t *testing.T) {
	b := newNeighbour(t)
	var port uint16
	for _, at := range b.n.ports() {
		if _, p, err := net.SplitHostPort(strings.Replace(at, "*", "0.0.0.0", 1)); err == nil {
			fmt.Sscan(p, &port)
		}
	}
	self := netip.MustParseAddrPort("10.96.0.30:80")
	b.n.service(labService{name: "nodeport", ip: "10.96.0.33", nodePort: 30099,
		endpoints: []netip.AddrPort{endpoint(netlab.Node1, 30099)}})
	for _, c := range []struct {
		name, ip string
		to       netip.AddrPort
	}{
		{"self", "10.96.0.30", self},
		{"ping", "10.96.0.31", netip.MustParseAddrPort("10.96.0.32:80")},
		{"pong", "10.96.0.32", netip.MustParseAddrPort("10.96.0.31:80")},
		{"listener", "10.96.0.34", endpoint(netlab.Node1, port)},
		{"loopback", "10.96.0.35", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)},
	} {
		b.n.service(labService{name: c.name, ip: c.ip, endpoints: []netip.AddrPort{c.to}})
	}
	b.n.service(labService{name: "last", ip: "10.96.0.39", endpoints: []netip.AddrPort{endpoint("pod5", 8080)}})
	until(t, func() string { // those before are served too then
		if _, err := b.n.converse("pod3", netip.MustParseAddrPort("10.96.0.39:80"), 10, time.Second,
			rand.New(rand.NewPCG(1, 1))); err != nil {
			return err.Error()
		}
		return ""
	})
	accepted := b.p.metric("kubeproxy_userspace_connections_total")
	files := b.p.files()
	var clients sync.WaitGroup
	for _, to := range []string{"10.96.0.30:80", "10.96.0.31:80", "10.96.0.33:80", "10.96.0.34:80", "10.96.0.35:80",
		"172.18.0.2:30099"} {
		for _, host := range []string{"pod3", netlab.Node1, netlab.Client} {
			clients.Go(func() {
				at := netip.MustParseAddrPort(to)
				if c, err := b.n.dial(host, "tcp", at, time.Second); err == nil {
					c.SetDeadline(time.Now().Add(3 * time.Second))
					c.Write([]byte("round and round"))
					c.Read(make([]byte, 100))
					c.Close()
				}
				_ = b.n.askUDP(host, at, []byte("round and round"), 1)
			})
		}
	}
	clients.Wait()
	b.well("beside Services that lead back to the proxy")
	if made := b.p.metric("kubeproxy_userspace_connections_total") - accepted; made > 500 {
		t.Errorf("18 connections became %v", made)
	}
	if now := b.p.files(); now > files+200 {
		t.Errorf("the program has %d descriptors, and had %d", now, files)
	}
	until(t, func() string { return b.open(0) })
}

// A tenant who opens as many connections as possible takes no descriptor that others need: he
// reaches a limit first, and afterwards the state is as before.
func TestUserspaceDescriptors(t *testing.T) {
	n := newNodeLab(t)
	good, hog := n.echo("pod5", 8080), n.echo("pod4", 8080)
	n.service(labService{name: "good", ip: neighbourIP, endpoints: []netip.AddrPort{good.at()}})
	n.service(labService{name: "hog", ip: "10.96.0.27", endpoints: []netip.AddrPort{hog.at()}})
	t.Setenv(asFiles, "1000")
	p := n.serve()
	b := &neighbour{n: n, p: p}
	b.well("before anything")
	var clients []net.Conn
	for range 1200 {
		c, err := n.dial("pod2", "tcp", netip.MustParseAddrPort("10.96.0.27:80"), 300*time.Millisecond)
		if err != nil {
			break
		}
		clients = append(clients, c)
	}
	t.Logf("the tenant has %d connections, the program %d descriptors", len(clients), p.files())
	p.await(regexp.MustCompile(`No file descriptor for another client, .* family="IPv4" `))
	if _, err := p.get("/metrics"); err != nil {
		t.Errorf("the program answers no more: %v", err)
	}
	b.well("while a tenant has all connections that he can get")
	for _, c := range clients {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	until(t, func() string { return b.open(0) })
	b.well("afterwards")
}

// Connections that are over do not use up the node's ports towards an endpoint: the kernel
// remembers each of them for a minute.
func TestUserspacePortsOfTheNode(t *testing.T) {
	n := newNodeLab(t)
	n.On(netlab.Node1, func() {
		do(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40999"), 0))
	})
	good := n.echo("pod5", 8080)
	n.service(labService{name: "good", ip: neighbourIP, endpoints: []netip.AddrPort{good.at()}})
	p := n.serve("--proxy-port-range=20000-20999")
	(&neighbour{n: n, p: p}).well("before anything")
	for round := range 3 {
		began := time.Now()
		for i := range 900 {
			if err := n.Do("pod3", func() error { return shortConnection(neighbourAt) }); err != nil {
				t.Fatalf("connection %d of round %d: %v", i, round, err)
			}
		}
		time.Sleep(2500*time.Millisecond - time.Since(began)) // the kernel reuses a port after one to two seconds
	}
}
