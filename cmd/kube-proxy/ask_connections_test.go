//go:build linux

package main

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// For a client with one open and 300 ended connections, the answer has the open one, and the number
// of ended ones, in one line.
func TestAskConnections(t *testing.T) {
	n := newNamespace(t).routed()
	n.command("sh", "-ec", `ip link set lo up; ip addr add 10.0.0.1/32 dev lo; ip addr add 192.0.2.1/32 dev lo; ip `+
		`route add 10.96.0.0/16 dev lo src 192.0.2.1`)
	write(t, n.dir+"/m/good.yaml", good())
	n.serve("nftables")
	// so that they are remembered on a busy machine too
	n.command("sh", "-c", "echo 600 >/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close")
	l := n.listen("10.0.0.1:8080")
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			defer c.Close()
		}
	}()
	dial := func() *net.TCPConn {
		var c net.Conn
		var err error
		n.Do(func() { c, err = net.DialTimeout("tcp", "10.96.0.1:80", timeout) })
		do(t, err)
		return c.(*net.TCPConn)
	}
	for range 300 {
		c := dial()
		do(t, c.SetLinger(0)) // it is reset, and so in the state CLOSE
		do(t, c.Close())
	}
	held := dial()
	defer held.Close()
	until(t, func() string {
		code, out, errOut := n.kubeProxy("trace", "192.0.2.1", "shop/good", "-o", "wide")
		_, reported, _ := strings.Cut(out, "\nconnections\n")
		want := fmt.Sprintf("  tcp ESTABLISHED %s, answered by 10.0.0.1:8080", held.LocalAddr())
		if code != 0 || !strings.HasPrefix(reported, want) ||
			!strings.HasSuffix(reported, "\n  and 300 ended ones\n") || strings.Count(reported, "\n") != 2 {
			return fmt.Sprintf("exit code %d, want %q and 300 ended ones:\n%s%s", code, want, out, errOut)
		}
		return ""
	})
	if _, out, _ := n.kubeProxy("trace", held.LocalAddr().String(), "shop/good", "-o", "json"); !strings.Contains(out,
		`"state": "ESTABLISHED"`) || strings.Contains(out, "conntrackEnded") {
		t.Errorf("of that one alone:\n%s", out)
	}
	do(t, held.SetLinger(0))
	do(t, held.Close())
	until(t, func() string {
		_, out, _ := n.kubeProxy("trace", "192.0.2.1", "shop/good", "-o", "wide")
		if !strings.HasSuffix(out, "\nconnections\n  none is open; 301 ended ones\n") {
			return "after the last one ended:\n" + out
		}
		return ""
	})
}
