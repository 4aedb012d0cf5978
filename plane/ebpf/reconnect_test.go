//go:build linux

package ebpf

import (
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/test/kerneltest"
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
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		b.change(twoDNS)
		for range 8 {
			fd := b.connected("pod3", unix.SOCK_DGRAM, b.to("VIP:53"), false)
			for range 4 {
				b.asks("while connected", fd, b.to("VIP:53"), "")
			}
		}
	})
}

// TestDisconnected: a UDP socket that disconnected from a frontend sees an endpoint's own
// address, and an endpoint that leaves does not end it (EB-06, EB-13).
func TestDisconnected(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		fd := b.connected("pod3", unix.SOCK_DGRAM, b.to("VIP:53"), false)
		b.disconnect(fd)
		pod := b.to("pod1:8080") // from any other address an IPv6 socket of Linux receives nothing now
		b.asks("after the disconnect", fd, pod, "pod1")
		b.change(strings.Replace(shop, "set shop/dns:dns/udp/cluster\n  pod1:8080 local",
			"set shop/dns:dns/udp/cluster\n  pod2:8080 local", 1))
		if b.plane.unreaped == nil {
			if err := b.plane.kernel.reaper.pass(t.Context()); err != nil {
				b.t.Error(err)
			}
		}
		b.asks("after its former endpoint left", fd, pod, "pod1")
	})
}

// TestNumbersUsedAgain: a new process may give an endpoint the number of one that left before.
// Sockets that remember the number then choose again, and connected ones end (EB-08).
func TestNumbersUsedAgain(t *testing.T) {
	kerneltest.Later(t)
	const table = "node nodeports ALL pods PODS\nVIP:53/udp shop/dns:dns clusterip\n  anywhere "
	at := func(pod string) string {
		return table + "balance shop/dns:dns/udp/cluster\nset shop/dns:dns/udp/cluster\n  " + pod + ":8080 local\n"
	}
	eachFamily(t, func(b *bench) {
		b.planes.with = func(c *Config) { c.Stale = "none" }
		b.table = b.parse("node nodeports ALL pods PODS\n")
		b.restart(b.planes.with)
		b.restart(b.planes.with) // no number is in use
		b.change(at("pod1"))
		fd := b.socket("pod3", unix.SOCK_DGRAM, false)
		connected := b.connected("pod3", unix.SOCK_DGRAM, b.to("VIP:53"), false)
		b.asks("at first", fd, b.to("VIP:53"), "pod1")
		b.change(table + "reject\n")
		b.restart(b.planes.with)
		b.change(at("pod2"))
		b.asks("when the number is another's", fd, b.to("VIP:53"), "pod2")
		b.restart(nil)
		if b.plane.unreaped == nil && !ended(connected) {
			b.t.Error("a socket to the endpoint that left is still connected")
		}
	})
}
