//go:build linux

package ebpf_test

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/plane/ebpf"
)

// twoDNS is the table shop with a second endpoint of the Service dns.
var twoDNS = strings.Replace(shop, "set shop/dns:dns/udp/cluster\n",
	"set shop/dns:dns/udp/cluster\n  pod2:8080 local\n", 1)

// disconnect is connect() to AF_UNSPEC.
func (b *bench) disconnect(fd int) {
	b.t.Helper()
	var unspec unix.RawSockaddr // its family is AF_UNSPEC
	_, _, err := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec))
	if err != 0 {
		b.t.Fatalf("disconnect: %v", err)
	}
}

// TestSendToWhileConnected: a datagram that a connected socket sends to the address it is
// connected to, by sendto(), goes to its endpoint, because the socket receives from no other
// (EB-06).
func TestSendToWhileConnected(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.change(twoDNS)
		for range 8 {
			fd := b.connected("pod3", unix.SOCK_DGRAM, b.to("VIP:53"), false)
			for range 4 {
				if from, _, err := asks(fd, b.to("VIP:53")); err != nil || from != b.to("VIP:53") {
					b.t.Fatalf("reply from %s, error %v", from, err)
				}
			}
		}
	})
}

// TestDisconnected: a UDP socket that disconnected from a frontend sees an endpoint's own
// address, and an endpoint that leaves does not end it (EB-06, EB-13).
func TestDisconnected(t *testing.T) {
	eachFamily(t, func(b *bench) {
		fd := b.connected("pod3", unix.SOCK_DGRAM, b.to("VIP:53"), false)
		b.disconnect(fd)
		pod := b.to("pod1:8080") // from any other address an IPv6 socket of Linux receives nothing now
		if from, _, err := asks(fd, pod); err != nil || from != pod {
			b.t.Errorf("sent to %s after the disconnect: reply from %s, error %v", pod, from, err)
		}
		b.change(strings.Replace(shop, "set shop/dns:dns/udp/cluster\n  pod1:8080 local",
			"set shop/dns:dns/udp/cluster\n  pod2:8080 local", 1))
		if b.plane.Unreaped() == nil {
			if err := b.plane.Reap(t.Context()); err != nil {
				b.t.Error(err)
			}
		}
		if from, _, err := asks(fd, pod); err != nil || from != pod {
			b.t.Errorf("after its former endpoint left: reply from %s, error %v", from, err)
		}
	})
}

// TestNumbersUsedAgain: a new process may give an endpoint the number of one that left before.
// Sockets that remember the number then choose again, and connected ones end (EB-08).
func TestNumbersUsedAgain(t *testing.T) {
	const table = "node nodeports ALL pods PODS\nVIP:53/udp shop/dns:dns clusterip\n  anywhere "
	at := func(pod string) string {
		return table + "balance shop/dns:dns/udp/cluster\nset shop/dns:dns/udp/cluster\n  " + pod + ":8080 local\n"
	}
	eachFamily(t, func(b *bench) {
		b.planes.with = func(c *ebpf.Config) { c.Stale = "none" }
		b.table = b.parse("node nodeports ALL pods PODS\n")
		b.restart(b.planes.with)
		b.restart(b.planes.with) // no number is in use
		b.change(at("pod1"))
		fd := b.socket("pod3", unix.SOCK_DGRAM, false)
		connected := b.connected("pod3", unix.SOCK_DGRAM, b.to("VIP:53"), false)
		if _, reply, err := asks(fd, b.to("VIP:53")); err != nil || !strings.Contains(reply, "pod1") {
			b.t.Fatalf("reply %q, error %v", reply, err)
		}
		b.change(table + "reject\n")
		b.restart(b.planes.with)
		b.change(at("pod2"))
		from, reply, err := asks(fd, b.to("VIP:53"))
		if err != nil || from != b.to("VIP:53") || !strings.Contains(reply, "pod2") {
			b.t.Errorf("reply %q from %s, error %v", reply, from, err)
		}
		b.restart(nil)
		if b.plane.Unreaped() == nil && !ended(connected) {
			b.t.Error("a socket to the endpoint that left is still connected")
		}
	})
}

// TestFastOpen: a TCP socket that connects by sending its first data meets an endpoint (EB-05).
func TestFastOpen(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.noRules()
		fd := b.socket("pod3", unix.SOCK_STREAM, false)
		b.must(unix.Sendto(fd, []byte("hello\n"), unix.MSG_FASTOPEN, sockaddr(b.to("VIP:80"))))
		if _, _, err := receive(fd, make([]byte, 1500)); err != nil {
			b.t.Error(err)
		}
		if got := peer(b.t, fd); got != b.to("VIP:80") {
			b.t.Errorf("peer %s", got)
		}
	})
}

// TestPassedSocket: a socket counts as one of the namespace that opened it, whichever thread
// uses it (EB-05).
func TestPassedSocket(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.noRules()
		pods, nodes := b.socket("pod3", unix.SOCK_STREAM, false), b.socket(netlab.Node1, unix.SOCK_STREAM, false)
		var errPod, errNode error
		b.On(netlab.Node1, func() { errPod = unix.Connect(pods, sockaddr(b.to("LOCAL:30080"))) })
		b.On("pod3", func() { errNode = unix.Connect(nodes, sockaddr(b.to("LOCAL:30080"))) })
		if !errors.Is(errPod, unix.ECONNREFUSED) || errNode != nil {
			b.t.Errorf("a pod's socket to its own loopback address: %v; the node's: %v", errPod, errNode)
		}
	})
}
