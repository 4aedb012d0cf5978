//go:build linux

package ebpf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	cilium "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/ebpf/bpf"
	"kube-proxy/plane/nftables"
	"kube-proxy/test/planetest"
	"kube-proxy/test/tables"
)

// echoShop is one Service for TCP and UDP whose endpoint is pod1:9000.
const echoShop = `node nodeports 0.0.0.0/0 pods 10.1.0.0/16
10.96.0.10:80/tcp shop/echo:tcp clusterip
  anywhere balance shop/echo:tcp/tcp/cluster
10.96.0.10:80/udp shop/echo:udp clusterip
  anywhere balance shop/echo:udp/udp/cluster
set shop/echo:tcp/tcp/cluster
  10.1.1.11:9000 local
set shop/echo:udp/udp/cluster
  10.1.1.11:9000 local
`

// way is how the client reaches the endpoint.
type way struct {
	name    string
	to      netip.AddrPort
	sockets string // of [Config]
}

var ways = []way{
	{"direct", netip.MustParseAddrPort("10.1.1.11:9000"), "all"},
	{"ebpf", netip.MustParseAddrPort("10.96.0.10:80"), "all"},
	{"nftables", netip.MustParseAddrPort("10.96.0.10:80"), "off"},
}

// BenchmarkSockets measures what a pod does, straight to an endpoint and through a cluster IP,
// by turns: with the programs, and with the packet path alone. Its figures are medians, so that
// a busy machine does not matter.
func BenchmarkSockets(b *testing.B) {
	lab := netlab.ForTest(b, netlab.Options{Cgroup: true, NoNode2: true, NoClient: true})
	p := echoLab(b, lab, 10_000)
	for _, op := range []struct {
		name string
		each int // samples of a turn
		run  func(to netip.AddrPort, samples []time.Duration) error
	}{
		{"connect", 50, connects}, {"tcp-rr", 50, requests}, {"stream", 1, streams}, {"udp-echo", 50, echoes},
	} {
		b.Run(op.name, func(b *testing.B) {
			took := map[string][]time.Duration{}
			for b.Loop() {
				for _, w := range ways {
					if err := p.balance(w.sockets); err != nil {
						b.Fatal(err)
					}
					if op.name == "connect" { // each way starts after this, so that caches are equally cold
						lab.On(netlab.Node1, func() { exec.Command("conntrack", "-F").Run() })
					}
					samples := make([]time.Duration, op.each)
					lab.On("pod3", func() {
						if err := op.run(w.to, samples); err != nil {
							b.Fatalf("%s %s: %v", op.name, w.name, err)
						}
					})
					took[w.name] = append(took[w.name], samples...)
					if w.name == "ebpf" && op.name == "connect" {
						lab.On(netlab.Node1, func() { untracked(b, w.to) })
					}
				}
			}
			direct := median(took["direct"])
			b.ReportMetric(float64(direct.Nanoseconds())/1e3, "direct-µs")
			b.ReportMetric(float64(median(took["ebpf"]))/float64(direct), "ebpf/direct")
			b.ReportMetric(float64(median(took["nftables"]))/float64(direct), "nftables/direct")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// untracked fails if conntrack has a connection to the address.
func untracked(tb testing.TB, to netip.AddrPort) {
	tb.Helper()
	out, err := exec.Command("conntrack", "-L", "-d", to.Addr().String()).Output()
	if err != nil {
		tb.Fatalf("conntrack -L: %v", err)
	}
	if len(bytes.TrimSpace(out)) > 0 {
		tb.Fatalf("conntrack has connections to %s:\n%s", to, out)
	}
}

// echoLab starts the endpoint in pod1, and a plane with so many Services more.
func echoLab(b *testing.B, lab *netlab.TestLab, services int) *Plane {
	table := planetest.World{Family: lb.IPv4}.Table(services, 10)
	shop, err := tables.Parse(echoShop)
	if err != nil {
		b.Fatal(err)
	}
	var fronts []*lb.Frontend
	for f := range shop.All() {
		fronts = append(fronts, f)
	}
	table.Node = shop.Node
	table.Replace(lb.Owner{Name: "shop/echo"}, fronts)
	lab.On("pod1", func() { serveEcho(b) })
	all := &planes{bpffs: bpffs(b)}
	var p *Plane
	lab.On(netlab.Node1, func() {
		if p, err = all.at(lb.IPv4, lab.Cgroup(netlab.Node1)); err != nil {
			b.Fatal(err)
		}
		if _, err := p.Reset(b.Context(), table); err != nil || p.failed != nil {
			b.Fatal(err, p.failed)
		}
	})
	b.Cleanup(func() { p.Close() })
	return p
}

// serveEcho answers a byte to each read of a stream that ends with '!', and a datagram to a
// datagram.
func serveEcho(b *testing.B) {
	l, err := net.Listen("tcp", ":9000")
	if err != nil {
		b.Fatal(err)
	}
	u, err := net.ListenPacket("udp", ":9000")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close(); u.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 1<<16)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					if buf[n-1] == '!' {
						c.Write(buf[:1])
					}
				}
			}()
		}
	}()
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			u.WriteTo(buf[:n], from)
		}
	}()
}

// connects opens connections, and resets them, so that no ports run out.
func connects(to netip.AddrPort, samples []time.Duration) error {
	for i := range samples {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return err
		}
		start := time.Now()
		if err := errors.Join(unix.Connect(fd, sockaddr(to)), unix.Close(fd)); err != nil {
			return err
		}
		samples[i] = time.Since(start)
	}
	return nil
}

func openEcho(kind int, to netip.AddrPort) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, err
	}
	wait := unix.Timeval{Sec: 20}
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Connect(fd, sockaddr(to))
	}
	return fd, err
}

// requests sends a byte and waits for one, on one connection.
func requests(to netip.AddrPort, samples []time.Duration) error {
	return exchanges(to, samples, []byte("!"))
}

// streams sends 16 MiB and waits for a byte.
func streams(to netip.AddrPort, samples []time.Duration) error {
	data := make([]byte, 16<<20)
	data[len(data)-1] = '!'
	return exchanges(to, samples, data)
}

func exchanges(to netip.AddrPort, samples []time.Duration, data []byte) error {
	fd, err := openEcho(unix.SOCK_STREAM, to)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var buf [1]byte
	for i := range samples {
		start := time.Now()
		for rest := data; len(rest) > 0; {
			n, err := unix.Write(fd, rest)
			if err != nil && err != unix.EINTR {
				return err
			}
			rest = rest[max(n, 0):]
		}
		if _, _, err := receive(fd, buf[:]); err != nil {
			return err
		}
		samples[i] = time.Since(start)
	}
	return nil
}

// echoes sends datagrams with one unconnected socket.
func echoes(to netip.AddrPort, samples []time.Duration) error {
	fd, err := openEcho(unix.SOCK_DGRAM, to)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var buf [16]byte
	for i := range samples {
		start := time.Now()
		if err := unix.Sendto(fd, buf[:], 0, sockaddr(to)); err != nil {
			return err
		}
		_, from, err := receive(fd, buf[:])
		if err != nil {
			return err
		}
		samples[i] = time.Since(start)
		if addrPort(from) != to {
			return fmt.Errorf("a reply from %s to a datagram to %s", addrPort(from), to)
		}
	}
	return nil
}

// timed is a packet path that notes how long its calls take.
type timed struct {
	PacketPath
	spent time.Duration
}

func (p *timed) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	defer func(start time.Time) { p.spent = time.Since(start) }(time.Now())
	return p.PacketPath.Apply(ctx, changes)
}

func (p *timed) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	defer func(start time.Time) { p.spent = time.Since(start) }(time.Now())
	return p.PacketPath.Reset(ctx, want)
}

// BenchmarkTables is the first sync of Services with ten endpoints, and then a change of one
// endpoint: how much longer it takes than the packet path, the elements written, and the
// kernel's memory.
func BenchmarkTables(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			w := planetest.World{Family: lb.IPv4}
			table := w.Table(n, 10)
			lab := netlab.ForTest(b, netlab.Options{Cgroup: true, NoNode2: true, NoClient: true})
			lab.On(netlab.Node1, func() {
				under, err := nftables.New(nftables.Config{Family: lb.IPv4})
				if err != nil {
					b.Fatal(err)
				}
				path := &timed{PacketPath: under}
				p, err := New(Config{Family: lb.IPv4, Cgroup: lab.Cgroup(netlab.Node1),
					Pins: filepath.Join(bpffs(b), "bench"), Sockets: "all", Stale: "none"}, path)
				if err != nil {
					b.Fatal(err)
				}
				defer p.Close()
				runtime.GC()
				start, used := time.Now(), cpu(b)
				if _, err := p.Reset(b.Context(), table); err != nil || p.failed != nil {
					b.Fatal(err, p.failed)
				}
				used = cpu(b) - used
				first, ofPath := time.Since(start), path.spent
				benchChange(b, w, table, p, path)
				b.ReportMetric(first.Seconds()*1e3, "first-ms")
				b.ReportMetric(ofPath.Seconds()*1e3, "first-nftables-ms")
				b.ReportMetric(used.Seconds()*1e3, "first-cpu-ms")
				var bytes uint64
				for _, m := range []*cilium.Map{p.kernel.fronts.inner, p.kernel.sets.inner, p.kernel.slots.inner,
					p.kernel.backends.inner} {
					info, err := m.Info()
					if err != nil {
						b.Fatal(err)
					}
					size, _ := info.Memlock()
					bytes += size
				}
				b.ReportMetric(float64(bytes)/(1<<20), "kernel-MiB")
			})
		})
	}
}

// cpu is how much CPU time this process has used.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchChange(b *testing.B, w planetest.World, table *lb.Table, p *Plane, path *timed) {
	var more, under []time.Duration
	before := p.kernel.writes
	for i := 0; b.Loop(); i++ {
		owner, fronts := w.ClusterIP(i%100, i%100*10+i/100%2, 10)
		changes, _ := table.Replace(owner, fronts)
		start := time.Now()
		if _, err := p.Apply(b.Context(), changes); err != nil || p.failed != nil {
			b.Fatal(err, p.failed)
		}
		if len(changes) > 0 {
			more, under = append(more, time.Since(start)-path.spent), append(under, path.spent)
		}
	}
	if len(more) > 0 {
		b.ReportMetric(float64(median(more).Nanoseconds())/1e3, "change-more-µs")
		b.ReportMetric(float64(median(under).Nanoseconds())/1e3, "change-nftables-µs")
		b.ReportMetric(float64(p.kernel.writes-before)/float64(len(more)), "writes/change")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkNamespaces is how long the program at connect() runs for a pod, by the kernel's
// statistics: where it reads the devices of the network namespace, and where it knows the way to
// the address.
func BenchmarkNamespaces(b *testing.B) {
	lab := netlab.ForTest(b, netlab.Options{Cgroup: true, NoNode2: true, NoClient: true})
	p := echoLab(b, lab, 100)
	stats, err := cilium.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	ran := func() (time.Duration, uint64) {
		info, err := p.kernel.obj.Connect4.Stats()
		if err != nil {
			b.Fatal(err)
		}
		return info.Runtime, info.RunCount
	}
	to := netip.MustParseAddrPort("10.96.0.10:80")
	for _, known := range []bool{false, true} {
		b.Run(map[bool]string{false: "read", true: "known"}[known], func(b *testing.B) {
			var all []time.Duration
			lab.On("pod3", func() {
				for b.Loop() {
					if !known {
						if err := prune(p.kernel.obj.Paths, func(bpf.LBPath, uint64) bool { return true }); err != nil {
							b.Fatal(err)
						}
					}
					before, n := ran()
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
					if err := errors.Join(err, unix.Connect(fd, sockaddr(to)), unix.Close(fd)); err != nil {
						b.Fatal(err)
					}
					after, m := ran()
					if m == n+1 {
						all = append(all, after-before)
					}
				}
			})
			if len(all) > 0 {
				b.ReportMetric(float64(median(all).Nanoseconds()), "program-ns")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
