//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
)

// named lets a host answer every TCP and UDP client of a port with a name.
func (n *nodeLab) named(host string, port uint16, name string) (end func()) {
	n.t.Helper()
	tcp, err := n.listen(host, port)
	do(n.t, err)
	udp, err := n.listenUDP(host, port)
	do(n.t, err)
	end = func() { tcp.Close(); udp.Close() }
	n.t.Cleanup(end)
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			c.Close()
		}
	}()
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := udp.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteToUDPAddrPort([]byte(name), from)
		}
	}()
	return end
}

// who returns the name of the server at an address; "" without an answer.
func (n *nodeLab) who(host, network string, to netip.AddrPort) string {
	n.t.Helper()
	c, err := n.dial(host, network, to, time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	if network == "udp" {
		_, _ = io.WriteString(c, "who")
	}
	buf := make([]byte, 64)
	k, _ := c.Read(buf)
	return string(buf[:k])
}

// answers waits until all hosts get the answer of name at an address, by TCP and UDP.
func (n *nodeLab) answers(name string, to netip.AddrPort) {
	n.t.Helper()
	for _, host := range []string{netlab.Client, "pod3", netlab.Node1} {
		for _, network := range []string{"tcp", "udp"} {
			until(n.t, func() string {
				if got := n.who(host, network, to); got != name {
					return fmt.Sprintf("%s asks %s/%s, and %q answers instead of %q", host, to, network, got, name)
				}
				return ""
			})
		}
	}
}

// NodePorts may be ports at which the proxy listens, for the same Service or for another, whichever
// was first: each leads to its own Service, and a service address does too (CF-44, SV-65).
func TestUserspaceNodePortOfAListener(t *testing.T) {
	n := newNodeLab(t)
	n.named("pod1", 8080, "a")
	n.named("pod4", 8080, "b")
	a := labService{name: "a", ip: "10.96.0.10", endpoints: []netip.AddrPort{endpoint("pod1", 8080)}}
	b := labService{name: "b", ip: "10.96.0.11", endpoints: []netip.AddrPort{endpoint("pod4", 8080)}}
	apply := func(portOfA, portOfB int) {
		t.Helper()
		a.nodePort, b.nodePort = portOfA, portOfB
		n.service(a)
		n.service(b)
	}
	check := func() {
		t.Helper()
		for _, s := range []labService{a, b} {
			n.answers(s.name, netip.AddrPortFrom(netip.MustParseAddr(s.ip), 80))
			if s.nodePort != 0 {
				n.answers(s.name, endpoint(netlab.Node1, uint16(s.nodePort)))
			}
		}
	}
	const ports = "0.0.0.0:31000 0.0.0.0:31001"
	for _, nodePortsFirst := range []bool{false, true} {
		if nodePortsFirst {
			apply(31000, 31001)
		} else {
			apply(0, 0)
		}
		p := n.serve("--proxy-port-range=31000-31001")
		check() // all ports of the range have listeners now
		if got := strings.Join(n.ports(), " "); !strings.Contains(got, ports) {
			t.Fatalf("listeners at %s, want some at %s", got, ports)
		}
		apply(31000, 31001)
		check()
		// Either before or after this each listener is at the NodePort of the other Service.
		apply(31002, 31003)
		check()
		apply(31001, 31000)
		check()
		p.stop()
		n.remove("a")
		n.remove("b")
	}
}

// Other programs have ports of the range, at all addresses or at one, and keep them. They are
// reached as before, Services get the remaining ports, and a Service without one is reported, and
// served when a program releases its port (CF-44).
func TestUserspaceRangeWithPortsOfOthers(t *testing.T) {
	n := newNodeLab(t)
	n.named("pod1", 8080, "a")
	n.named("pod4", 8080, "b")
	end := n.named(netlab.Node1, 31001, "program")
	var local net.Listener
	if err := n.Do(netlab.Node1, func() (err error) {
		local, err = net.Listen("tcp4", "127.0.0.1:31003")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	n.service(labService{name: "a", ip: "10.96.0.10", endpoints: []netip.AddrPort{endpoint("pod1", 8080)}})
	p := n.serve("--proxy-port-range=31000-31001")
	n.answers("a", netip.MustParseAddrPort("10.96.0.10:80"))
	n.answers("program", endpoint(netlab.Node1, 31001))
	n.service(labService{name: "b", ip: "10.96.0.11", endpoints: []netip.AddrPort{endpoint("pod4", 8080)}})
	p.await(regexp.MustCompile(`lab/b:\S+: .*of the 2 ports 31000-31001 \(--proxy-port-range\) this proxy uses 1 for ` +
		`\S+, other programs have 1,`))
	n.answers("a", netip.MustParseAddrPort("10.96.0.10:80"))
	n.answers("program", endpoint(netlab.Node1, 31001))
	end()
	n.answers("b", netip.MustParseAddrPort("10.96.0.11:80"))
	n.answers("a", netip.MustParseAddrPort("10.96.0.10:80"))
	p.stop()
	n.serve("--proxy-port-range=31002-31004")
	n.answers("a", netip.MustParseAddrPort("10.96.0.10:80"))
	n.answers("b", netip.MustParseAddrPort("10.96.0.11:80"))
	if got := n.ports(); !strings.Contains(strings.Join(got, " "), "0.0.0.0:31002 0.0.0.0:31004") {
		t.Errorf("listeners at %s", got)
	}
}
