//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
)

// SV-15, SV-16, SV-61: a packet to a load-balancer address with that address as its source is
// accepted if the node is within the source ranges, wherever it comes from, and dropped otherwise.
// trace reports its path, why the allowed sources, and neither calls the address a source range.
func TestSourceIsTheAddressItself(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			n := newNodeLab(t)
			n.mode = mode
			arrived := n.spoofed(endpoint("pod1", 5353))
			within := func(ranges string) string {
				return "kind: Service\nmetadata: {name: dns, namespace: lab}\n" +
					"spec: {type: LoadBalancer, clusterIP: 10.96.0.53, externalTrafficPolicy: Local, " +
					"loadBalancerSourceRanges: [" + ranges + "], ports: [{name: udp, port: 53, protocol: UDP}]}\n" +
					"status: {loadBalancer: {ingress: [{ip: 192.0.2.53}]}}\n---\n" +
					"kind: EndpointSlice\nmetadata: {name: dns-1, namespace: lab, labels: " +
					"{kubernetes.io/service-name: dns}}\naddressType: IPv4\n" +
					"ports: [{name: udp, port: 5353, protocol: UDP}]\n" +
					"endpoints: [{addresses: [10.1.1.11], nodeName: node1}]\n"
			}
			n.apply("dns", within("172.18.0.2/32"))
			p := n.serve()
			for _, c := range []struct {
				ranges, from, verdict string
				trace, why            []string
			}{
				{"172.18.0.2/32", "192.0.2.53", "balance",
					[]string{"loadBalancerSourceRanges allows only 172.18.0.2/32, and the " +
						"address itself: 192.0.2.53 is that address."},
					[]string{"Only clients in 172.18.0.2/32 may use the load balancer's addresses",
						"This node is in these ranges, so packets whose source is one of these addresses are " +
							"allowed too"}},
				{"172.18.0.2/32", "192.0.2.54", "drop",
					[]string{"loadBalancerSourceRanges allows only 172.18.0.2/32, and the " +
						"address itself: 192.0.2.54 is neither."}, nil},
				{"203.0.113.0/24", "192.0.2.53", "drop",
					[]string{"loadBalancerSourceRanges allows only 203.0.113.0/24, and 192.0.2.53 is " +
						"in none of them."},
					[]string{"Only clients in 203.0.113.0/24 may use the load balancer's addresses"}},
				{"203.0.113.0/24", "203.0.113.9", "balance",
					[]string{"loadBalancerSourceRanges allows only 203.0.113.0/24, and 203.0.113.9 is " +
						"among them."}, nil},
			} {
				n.apply("dns", within(c.ranges))
				ask := func(line ...string) string {
					q := n.program(append(line, "--admin-socket="+filepath.Join(n.dir, "admin.sock"))...)
					<-q.done
					return q.log()
				}
				var out string
				until(t, func() string { // it may be read, and written, a second later
					if out = ask("trace", c.from, "192.0.2.53:53/udp"); !strings.Contains(out, c.ranges) ||
						!strings.Contains(out, "as the table says") {
						return "the kernel does something else:\n" + out
					}
					return ""
				})
				for _, says := range append(c.trace, c.verdict+"  lab/dns:udp") {
					if !strings.Contains(out, says) {
						t.Errorf("from %s with %s: trace does not say %q:\n%s", c.from, c.ranges, says, out)
					}
				}
				if strings.Contains(out, ", 192.0.2.53/32 only") {
					t.Errorf("from %s with %s: the address is called a range:\n%s", c.from, c.ranges, out)
				}
				why := ask("why", "lab/dns")
				for _, says := range c.why {
					if !strings.Contains(why, says) {
						t.Errorf("with %s: why does not say %q:\n%s", c.ranges, says, why)
					}
				}
				if c.verdict != "balance" && strings.Contains(c.ranges, "203") && strings.Contains(why, "from itself") {
					t.Errorf("with %s: the node is not within them:\n%s", c.ranges, why)
				}
				if got, want := arrived(c.from, c.verdict == "balance"), c.verdict == "balance"; got != want {
					t.Errorf("from %s with %s: a backend saw the packet: %t, want %t", c.from, c.ranges, got, want)
				}
			}
			p.end(unix.SIGTERM)
		})
	}
}

// spoofed listens on a pod, and returns a function that sends a datagram with this source from the
// client to 192.0.2.53:53, and reports whether it arrived. A later datagram to the pod's own
// address proves that a missing one was lost.
func (n *nodeLab) spoofed(pod netip.AddrPort) func(source string, want bool) bool {
	n.t.Helper()
	var conn *net.UDPConn
	n.On(netlab.Owner(pod.Addr()), func() {
		var err error
		if conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: int(pod.Port())}); err != nil {
			n.t.Fatal(err)
		}
	})
	n.t.Cleanup(func() { conn.Close() })
	number := 0
	send := func(source, text string, to netip.AddrPort) {
		n.On(netlab.Client, func() {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			do(n.t, err)
			defer unix.Close(fd)
			do(n.t, unix.Sendto(fd, datagram(netip.MustParseAddr(source), to, uint16(40000+number), text), 0,
				&unix.SockaddrInet4{Addr: to.Addr().As4()}))
		})
	}
	return func(source string, want bool) bool {
		number++
		text := fmt.Sprintf("%s %d", source, number)
		send(source, text, netip.MustParseAddrPort("192.0.2.53:53"))
		send("172.18.0.100", "behind it "+text, pod)
		buf := make([]byte, 100)
		_ = conn.SetReadDeadline(time.Now().Add(timeout))
		for {
			k, from, err := conn.ReadFromUDPAddrPort(buf)
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				return false
			case err != nil:
				n.t.Fatal(err)
			case string(buf[:k]) == text:
				if from.Addr().String() != source {
					n.t.Errorf("from %s: the backend sees %s", source, from)
				}
				return true
			case string(buf[:k]) == "behind it "+text && !want:
				// another CPU may be about to deliver it
				_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			}
		}
	}
}

// datagram is an IPv4 UDP datagram without a checksum.
func datagram(from netip.Addr, to netip.AddrPort, fromPort uint16, text string) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	b = append(append(b, from.AsSlice()...), to.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, fromPort)
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(text)))
	b = append(append(b, 0, 0), text...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}
