//go:build linux

package nftables

import (
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// BenchmarkCounting measures the cost of counting for the first packet of a connection; later
// packets cost nothing. It takes the CPU time to send one, from a process on the node through
// translation and masquerading to an interface. Two namespaces, with and without counting, take
// turns in one run, each with new flows.
func BenchmarkCounting(b *testing.B) {
	const turns, packets = 15, 1_500
	send := map[bool]func(turn int) float64{false: newFlows(b, false), true: newFlows(b, true)}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for b.Loop() {
		took := map[bool][]float64{}
		for turn := range turns {
			for _, counts := range []bool{turn%2 == 0, turn%2 != 0} {
				took[counts] = append(took[counts], send[counts](turn*packets)/packets)
			}
		}
		slices.Sort(took[false])
		slices.Sort(took[true])
		b.ReportMetric(took[false][turns/2], "ns-plain")
		b.ReportMetric(took[true][turns/2], "ns-counted")
		b.ReportMetric(took[true][turns/2]/took[false][turns/2], "ratio")
	}
}

// newFlows returns a function that sends 1,500 packets, each of a new flow, from the given port on.
// They go to one Service among 1,000 in a separate namespace. The function returns the CPU time in
// nanoseconds.
func newFlows(b *testing.B, counts bool) func(from int) float64 {
	b.Helper()
	ready, release := make(chan int), make(chan struct{})
	w := planetest.World{Family: lb.IPv4}
	_, f := w.ClusterIP(1, 100, 3)
	f[0].Key.Proto, f[0].Set(lb.Cluster).ID.Proto = lb.UDP, lb.UDP
	done := make(chan struct{})
	go func() {
		defer close(done)
		inNetns(b)
		out, err := exec.Command("sh", "-ec",
			`ip link set lo up; ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up
			ip addr add 192.0.2.1/24 dev v0; ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:01 dev v0; ip route add default via 192.0.2.2`).CombinedOutput()
		if err != nil {
			b.Errorf("%v\n%s", err, out)
			close(ready)
			return
		}
		p, err := New(Config{Family: lb.IPv4, CountServices: counts})
		if err != nil {
			b.Error(err)
			close(ready)
			return
		}
		defer p.Close()
		tab := w.Table(1000, 3)
		tab.Replace(lb.Owner{Name: "ns/svc-1"}, f)
		reset(b, p, tab)
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP)
		if err != nil {
			b.Error(err)
		}
		ready <- fd
		<-release
		unix.Close(fd)
	}()
	fd, ok := <-ready
	if !ok {
		b.FailNow()
	}
	b.Cleanup(func() { close(release); <-done })
	to := netip.AddrPortFrom(f[0].Key.Addr, f[0].Key.Port)
	return func(from int) float64 {
		cpu := func() float64 {
			var t unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
				b.Fatal(err)
			}
			return float64(t.Nano())
		}
		dst := &unix.SockaddrInet4{Addr: to.Addr().As4()}
		before := cpu()
		for i := range 1_500 {
			port := 1024 + from + i
			if err := unix.Sendto(fd, []byte{byte(port >> 8), byte(port), byte(to.Port() >> 8), byte(to.Port()), 0, 9,
				0, 0, 1}, 0, dst); err != nil {
				b.Fatal(err)
			}
		}
		return cpu() - before
	}
}
