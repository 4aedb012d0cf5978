package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// asked returns the messages and bytes sent to IPVS and ipsets.
func (w *whole) asked() (messages, bytes uint64) {
	v, s := w.cfg.IPVS.Counters(), w.cfg.Sets.(*ipset.Conn).Counters()
	return v.Messages + s.Messages, v.Bytes + s.Bytes
}

// cpu returns the CPU time of this process, including the kernel's.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkIPVS writes a table of Services with ten backends each into the kernel, then changes one
// endpoint of one of them. Then it compares connections to the last Service with connections to the
// first.
func BenchmarkIPVS(b *testing.B) {
	if err := loadOnce(); err != nil || !kernel.HasIPVS() {
		b.Skip("this kernel has no IPVS: make bench measures in a VM")
	}
	for _, services := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) { benchmarkServices(b, services) })
	}
}

func benchmarkServices(b *testing.B, services int) {
	lab := netlab.ForTest(b, netlab.Options{NoNode2: true, NoClient: true})
	lab.Serve(netlab.TCP, 8080, "pod1")
	w := planetest.World{Family: lb.IPv4}
	table := w.Table(services, 10)
	table.Node.ServiceCIDRs = nil              // the lab's pods are in that network
	for _, i := range []int{0, services - 1} { // the benchmark connects to these two
		o, fronts := w.ClusterIP(i, 0, 1)
		fronts[0].Routes[0].To.Backends = lb.BackendsOf(lb.Backend{Addr: netip.MustParseAddrPort("10.1.1.11:8080"),
			Local: true})
		table.Replace(o, fronts)
	}
	lab.On("node1", func() {
		p := wholeForTest(b, xtables.NFT, lb.IPv4)
		begin, sync := time.Now(), cpu(b)
		must(b, only(planetest.ResetAll(b.Context(), p, table)))
		sync, took := cpu(b)-sync, time.Since(begin)
		all, allBytes := p.asked()
		before := cpu(b)
		n := 0
		for b.Loop() {
			changes, _ := table.Replace(w.ClusterIP(services/2, services*5+1-n%2, 10))
			if len(changes) != 1 {
				b.Fatalf("%d changes", len(changes))
			}
			must(b, only(p.Apply(b.Context(), changes)))
			n++
		}
		used := cpu(b) - before
		messages, bytes := p.asked()
		b.ReportMetric(float64(messages-all)/float64(n), "messages/op")
		b.ReportMetric(float64(bytes-allBytes)/float64(n), "sent-B/op")
		b.ReportMetric(float64(used.Microseconds())/float64(n), "cpu-µs/op")
		b.ReportMetric(float64(all)/float64(services), "messages/service")
		b.ReportMetric(float64(allBytes)/float64(services), "sent-B/service")
		b.ReportMetric(float64(sync.Milliseconds()), "sync-cpu-ms")
		b.ReportMetric(float64(took.Milliseconds()), "sync-ms")
	})
	first, last := netip.AddrPortFrom(w.Addr(10, 1), 80), netip.AddrPortFrom(w.Addr(10, services), 80)
	var took [2][]float64
	for i := range 400 { // alternately
		to := []netip.AddrPort{first, last}[i%2]
		begin := time.Now()
		must(b, only(lab.Dial("pod3", netlab.TCP, to, netlab.DialOptions{})))
		took[i%2] = append(took[i%2], float64(time.Since(begin).Microseconds()))
	}
	for i := range took {
		slices.Sort(took[i])
	}
	b.ReportMetric(took[0][100], "first-µs")
	b.ReportMetric(took[1][100], "last-µs")
}
