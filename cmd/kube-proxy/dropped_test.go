//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// datagrams is a Service that has a port of UDP, and its slice.
func datagrams(name, family, addr, endpoint string) string {
	return fmt.Sprintf(`
kind: Service
metadata: {name: %[1]s, namespace: shop}
spec: {clusterIP: "%[3]s", ports: [{port: 53, protocol: UDP}]}
---
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[2]s
ports: [{port: 5353, protocol: UDP}]
endpoints: [{addresses: ["%[4]s"]}]
---
`, name, family, addr, endpoint)
}

// DP-51: the flows of a Service that was deleted while no proxy ran end when one starts, in every
// mode; those of another Service stay.
func TestFlowsOfADroppedService(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]string{"nftables": "nftables", "iptables-nft": "iptables",
		"iptables-legacy": "iptables"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t)
			if name == "iptables-legacy" { // DP-14
				n.write("hints", []byte(hints))
				n.command("sh", "-c", "iptables-legacy-restore --noflush <"+n.path("hints"))
			}
			n.command("sh", "-ec",
				`ip link add away type veth peer name nowhere; ip link set away up; ip link set nowhere up
				ip addr add 10.0.0.1/32 dev lo; ip addr add fd00::1/128 dev lo nodad
				ip addr add 192.0.2.1/24 dev away; ip addr add 2001:db8::1/64 dev away nodad
				ip route add default dev away; ip -6 route add default dev away`)
			for _, at := range []string{"10.0.0.1:5353", "[fd00::1]:5353"} {
				n.echo(t, at)
			}
			gone := datagrams("gone", "IPv4", "10.96.0.9", "10.0.0.1") + datagrams("gone6", "IPv6", "fd96::9",
				"fd00::1")
			stays := datagrams("stays", "IPv4", "10.96.0.8", "10.0.0.1") + datagrams("stays6", "IPv6", "fd96::8",
				"fd00::1")
			manifest := n.path("m/services.yaml")
			args := usual(mode)

			write(t, manifest, []byte(gone+stays+string(good())))
			p := n.start(args)
			p.await(allWritten)
			var lost, kept []net.Conn
			for _, to := range []string{"10.96.0.9:53", "[fd96::9]:53"} {
				lost = append(lost, n.talk(t, to))
			}
			for _, to := range []string{"10.96.0.8:53", "[fd96::8]:53"} {
				kept = append(kept, n.talk(t, to))
			}
			for _, c := range append(lost, kept...) {
				if !answers(t, c, timeout) {
					t.Fatalf("%s does not answer\n%s", c.RemoteAddr(), p.log())
				}
			}
			p.stop()

			write(t, manifest, []byte(stays+string(good())))
			p = n.start(args)
			p.await(allWritten)
			for _, c := range lost {
				for end := time.Now().Add(timeout / 4); answers(t, c, 2*time.Second); { // no late answer
					if time.Now().After(end) {
						t.Errorf("the flow to %s goes on\n%s", c.RemoteAddr(), p.log())
						break
					}
				}
			}
			for _, c := range kept {
				if !answers(t, c, timeout) {
					t.Errorf("the flow to %s ended\n%s", c.RemoteAddr(), p.log())
				}
			}
			p.stop()
		})
	}
}

// echo answers datagrams in the namespace until the test ends.
func (n *namespace) echo(t *testing.T, at string) {
	t.Helper()
	var conn net.PacketConn
	var err error
	n.Do(func() { conn, err = net.ListenPacket("udp", at) })
	do(t, err)
	t.Cleanup(func() { conn.Close() })
	go func() {
		b := make([]byte, 100)
		for {
			size, peer, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			conn.WriteTo(b[:size], peer)
		}
	}()
}

// talk is a client of UDP that keeps its port.
func (n *namespace) talk(t *testing.T, to string) (c net.Conn) {
	t.Helper()
	var err error
	n.Do(func() { c, err = net.Dial("udp", to) })
	do(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// answers reports whether a datagram gets an answer within the time.
func answers(t *testing.T, c net.Conn, within time.Duration) bool {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); {
		_, err := c.Write([]byte("who?"))
		if err != nil && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EHOSTUNREACH) {
			t.Fatal(err)
		}
		c.SetReadDeadline(time.Now().Add(min(within, 500*time.Millisecond)))
		if _, err := c.Read(make([]byte, 100)); err == nil {
			return true
		}
	}
	return false
}
