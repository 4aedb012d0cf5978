package relay

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// compare has a pod be a client of another straight and through a relay of their node, in turns, and reports how much of what it
// gets done straight it gets done so.
func compare(b *testing.B, what string, n int) {
	lab := netlab.ForTest(b, netlab.Options{NoNode2: true, NoClient: true})
	on := func(name string) *peer {
		host, _ := netlab.HostByName(name)
		return startPeer(b, host.V4, func(fn func()) { lab.On(name, fn) })
	}
	client, backend := on("pod1"), on("pod2").backends[what]
	node, _ := netlab.HostByName(netlab.Node1)
	var l *Listener
	lab.On(netlab.Node1, func() {
		r := newRelay(b, Config{})
		var err error
		if l, err = r.Listen(Listening{lb.TCP, netip.AddrPortFrom(node.V4, 0)}, to(backend), nil); err != nil {
			b.Fatal(err)
		}
	})
	var direct, relayed time.Duration
	before := ownTime(b)
	for b.Loop() {
		direct += client.do(b, what, backend, n)
		relayed += client.do(b, what, l.Addr(), n)
	}
	b.ReportMetric(float64(direct)/float64(relayed), "of-direct")
	b.ReportMetric(float64(n*b.N)/direct.Seconds(), "direct/s")
	b.ReportMetric(float64(n*b.N)/relayed.Seconds(), "relayed/s")
	b.ReportMetric(float64((ownTime(b)-before).Microseconds())/float64(n*b.N), "cpu-us")
	b.ReportMetric(0, "ns/op")
}

// ownTime is the processor's time that this process has taken.
func ownTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTCPStream sends MB.
func BenchmarkTCPStream(b *testing.B) { compare(b, "stream", 512) }

// BenchmarkTCPConnect connects, sends a byte, gets one and closes.
func BenchmarkTCPConnect(b *testing.B) { compare(b, "connect", 2000) }
