//go:build linux

package main

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// A Service is added, and its clients send at once: the answers reach them, although the kernel's
// flows from before are deleted at that moment. Each answer is sent several times, so that a packet
// dropped by a loaded machine does not count (DP-50).
func TestUserspaceFlowsOfANewService(t *testing.T) {
	const clients = 400
	n := newNodeLab(t)
	backend, err := n.listenUDP("pod2", 8080)
	do(t, err)
	defer backend.Close()
	var mu sync.Mutex
	asked := map[uint64]bool{}
	go func() {
		buf := make([]byte, 8)
		for {
			_, from, err := backend.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			answer := [8]byte(buf)
			mu.Lock()
			asked[binary.BigEndian.Uint64(buf)] = true
			mu.Unlock()
			for _, after := range []time.Duration{150, 300, 600, 1200, 2400} {
				time.AfterFunc(after*time.Millisecond, func() { _, _ = backend.WriteToUDPAddrPort(answer[:], from) })
			}
		}
	}()
	n.serve("--udp-timeout=10s")
	n.service(labService{name: "web", ip: labIP, endpoints: []netip.AddrPort{endpoint("pod2", 8080)}})
	reached := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(asked)
	}
	// New clients send from before the Service is served until well after.
	var sockets []net.Conn
	for k := 0; k < clients; k = reached() {
		c, err := n.dial("pod3", "udp", labTarget, timeout)
		do(t, err)
		defer c.Close()
		if len(sockets) > 20*clients {
			t.Fatalf("%d of %d datagrams reach the endpoint", k, len(sockets))
		}
		_, _ = c.Write(binary.BigEndian.AppendUint64(nil, uint64(len(sockets))))
		sockets = append(sockets, c)
		time.Sleep(time.Millisecond)
	}
	mu.Lock()
	defer mu.Unlock()
	lost := 0
	for id := range asked {
		buf := make([]byte, 16)
		sockets[id].SetReadDeadline(time.Now().Add(timeout / 3))
		for {
			k, err := sockets[id].Read(buf)
			if err != nil {
				if ne, ok := err.(net.Error); ok && ne.Timeout() {
					lost++
					break
				}
				continue // the datagram was lost before the Service was served
			}
			if k != 8 || binary.BigEndian.Uint64(buf) != id {
				t.Fatalf("client %d got %x", id, buf[:k])
			}
			break
		}
		if lost > 3 {
			break
		}
	}
	if lost > 0 {
		t.Errorf("%d and perhaps more of %d clients whose datagram reached the endpoint got no answer", lost,
			len(asked))
	}
}
