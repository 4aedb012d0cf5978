//go:build linux

package iptables

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
)

// Packets that conntrack finds invalid are dropped and counted (DP-09, MT-16), unless conntrack is
// liberal. Connections to NodePorts on 127.0.0.1 are counted (MT-17), others are not.
func TestInvalidAndLocalhostAreCounted(t *testing.T) {
	kerneltest.Later(t)
	eachBackend(t, countPackets)
}

func countPackets(t *testing.T, b xtables.Backend) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	var p *Plane
	setLiberal := func(liberal string) {
		if _, err := kernel.SetSysctl("net.netfilter.nf_conntrack_tcp_be_liberal", liberal); err != nil {
			t.Fatal(err)
		}
	}
	lab.On("node1", func() {
		setLiberal("1")
		p = newPlane(t, Config{Family: lb.IPv4, Backend: b})
		reset(t, p, shopTable())
	})
	counters := func() xtables.Counters {
		t.Helper()
		c, ok, err := p.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			t.Skip("this kernel or this iptables has no match nfacct")
		}
		return c
	}
	if c := counters(); c != (xtables.Counters{}) {
		t.Fatalf("before any packet: %+v", c)
	}
	const times = 3
	for range times {
		if _, err := lab.Dial("node1", netlab.TCP, netip.MustParseAddrPort("127.0.0.1:30080"),
			netlab.DialOptions{}); err != nil {
			t.Error(err)
		}
		if _, err := lab.Dial("client", netlab.TCP, netip.MustParseAddrPort("172.18.0.2:30080"),
			netlab.DialOptions{}); err != nil {
			t.Error(err)
		}
	}
	if c := counters(); c.LocalhostNodePorts != times || c.InvalidDropped != 0 {
		t.Errorf("after %d connections to 127.0.0.1 and as many to another address: %+v", times, c)
	}

	// conntrack finds a segment with SYN and FIN invalid. It goes to a pod through the node.
	to := netip.MustParseAddrPort("10.1.1.11:8080")
	dropped := func() bool {
		before := counters().InvalidDropped
		arrived := listenRaw(t, lab, "pod1")
		lab.On("client", func() {
			if err := sendSYNFIN(to); err != nil {
				t.Fatal(err)
			}
		})
		if arrived() {
			return false
		}
		if got := counters().InvalidDropped; got == before {
			t.Error("the segment did not arrive, and was not counted")
		}
		return true
	}
	if dropped() {
		t.Error("liberal when the plane was made: a segment that conntrack cannot place is dropped")
	}
	// conntrack.tcpBeLiberal of a changed configuration file takes effect at the next audit.
	for _, liberal := range []string{"0", "1"} {
		lab.On("node1", func() {
			setLiberal(liberal)
			if repaired, err := p.Audit(t.Context(), true); repaired != 0 || err != nil {
				t.Errorf("a changed setting: repaired %d, %v", repaired, err)
			}
		})
		if got := dropped(); got != (liberal == "0") {
			t.Errorf("liberal %s: a segment that conntrack cannot place is dropped: %t", liberal, got)
		}
	}

	lab.On("node1", func() {
		removes(t, xtables.RemoveConfig{Family: p.Family, Backend: p.Backend})
		nf, err := kernel.OpenNetfilter()
		if err != nil {
			t.Fatal(err)
		}
		defer nf.Close()
		if _, err := xtables.Packets(nf, xtables.InvalidDropped); err == nil {
			t.Error("the counter is still there after Remove")
		}
	})
}

// sendSYNFIN sends a TCP segment with SYN and FIN, from port 40000 and without a checksum.
func sendSYNFIN(to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	seg := []byte{0x9c, 0x40, byte(to.Port() >> 8), byte(to.Port()), 0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, 0x03, 4, 0, 0, 0,
		0, 0}
	return unix.Sendto(fd, seg, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()})
}

// listenRaw listens for TCP segments from port 40000. The returned function waits, and reports
// whether one arrived.
func listenRaw(t *testing.T, lab *netlab.TestLab, who string) func() bool {
	t.Helper()
	fd := -1
	lab.On(who, func() {
		var err error
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			t.Fatal(err)
		}
		limit := unix.NsecToTimeval(int64(500 * time.Millisecond))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
			t.Fatal(err)
		}
	})
	return func() bool {
		defer unix.Close(fd)
		b := make([]byte, 2000)
		for {
			n, _, err := unix.Recvfrom(fd, b, 0)
			if err == unix.EINTR { // by a signal of Go's scheduler
				continue
			}
			if err != nil {
				return false
			}
			if head := int(b[0]&15) * 4; n >= head+20 && b[head] == 0x9c && b[head+1] == 0x40 {
				return true
			}
		}
	}
}

// Without the match nfacct, everything else works as usual.
func TestWithoutAccounting(t *testing.T) {
	if strings.Contains(strings.Join((&renderer{family: lb.IPv4}).forward("0x4000/0x4000"), "\n"), "nfacct") {
		t.Error("a renderer counts without being configured to")
	}
	p := newPlane(t, Config{Family: lb.IPv4, Backend: xtables.NFT, Runner: &blackHole{}})
	reset(t, p, shopTable())
	if _, ok, err := p.Counters(); ok || err != nil {
		t.Errorf("counters of a plane that counts nothing: %t, %v", ok, err)
	}
}
