//go:build linux

package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

// BenchmarkFirstSync is the cold load of services with ten backends each.
func BenchmarkFirstSync(b *testing.B) {
	for _, back := range []xtables.Backend{xtables.NFT, xtables.Legacy} {
		for _, n := range []int{1000, 5000} {
			b.Run(fmt.Sprintf("%s/services=%d", back, n), func(b *testing.B) {
				w := planetest.World{Family: lb.IPv4}
				want := w.Table(n, 10)
				for b.Loop() {
					b.StopTimer()
					needs(b, back)
					inNetns(b)
					p := newPlane(b, Config{Family: lb.IPv4, Backend: back})
					b.StartTimer()
					reset(b, p, want)
				}
			})
		}
	}
}

// BenchmarkChange is one endpoint of one service that changes among many.
func BenchmarkChange(b *testing.B) {
	for _, back := range []xtables.Backend{xtables.NFT, xtables.Legacy} {
		for _, n := range []int{100, 5000} {
			b.Run(fmt.Sprintf("%s/services=%d", back, n), func(b *testing.B) {
				needs(b, back)
				inNetns(b)
				w := planetest.World{Family: lb.IPv4}
				p := newPlane(b, Config{Family: lb.IPv4, Backend: back})
				table := w.Table(n, 10)
				reset(b, p, table)
				i := 0
				for b.Loop() {
					changes, _ := table.Replace(w.ClusterIP(7, 70+i%2, 10))
					if _, err := p.Apply(context.Background(), changes); err != nil {
						b.Fatal(err)
					}
					i++
				}
			})
		}
	}
}

// BenchmarkSourceRanges is a Service with 300 source ranges and 300 ports that comes, one range more, and a change of
// another Service beside it.
func BenchmarkSourceRanges(b *testing.B) {
	for _, back := range []xtables.Backend{xtables.NFT, xtables.Legacy} {
		b.Run(string(back), func(b *testing.B) {
			w := planetest.World{Family: lb.IPv4}
			for b.Loop() {
				needs(b, back)
				inNetns(b)
				p := newPlane(b, Config{Family: lb.IPv4, Backend: back})
				table := w.Table(10, 10)
				reset(b, p, table)
				took := func(unit string, o lb.Owner, fronts []*lb.Frontend) {
					changes, _ := table.Replace(o, fronts)
					began := time.Now()
					apply(b, p, changes, nil)
					b.ReportMetric(float64(time.Since(began).Microseconds())/1000, unit)
				}
				for _, c := range []struct {
					unit   string
					ranges int
				}{{"come-ms", 300}, {"one-more-ms", 301}} {
					o, fronts := restricted(w, 1, 300, someRanges(w, 0, c.ranges), lb.Balance)
					took(c.unit, o, fronts)
				}
				o, fronts := w.ClusterIP(7, 1000, 10)
				took("another-ms", o, fronts)
			}
		})
	}
}

// BenchmarkManyEndpoints is the cold load of services with fifty backends each, as the engine makes it: a Reset and then
// pieces; and then a change of an endpoint, and a new service. Processor time is that of the programs: on a busy machine it
// says more than the clock.
func BenchmarkManyEndpoints(b *testing.B) {
	for _, back := range []xtables.Backend{xtables.NFT, xtables.Legacy} {
		for _, n := range []int{1000, 5000} {
			b.Run(fmt.Sprintf("%s/services=%d", back, n), func(b *testing.B) {
				w := planetest.World{Family: lb.IPv4}
				table := w.Table(n, 50)
				for b.Loop() {
					needs(b, back)
					inNetns(b)
					p := newPlane(b, Config{Family: lb.IPv4, Backend: back})
					cpu, start := programTime(b), time.Now()
					res, err := p.Reset(b.Context(), table)
					if err != nil {
						b.Fatal(err)
					}
					later := res.Later
					longest := time.Duration(0)
					for len(later) > 0 {
						var weight lb.Weight
						var piece []lb.Change
						for used := 0; len(later) > 0 && used < p.Pace(); later = later[1:] {
							piece = append(piece, lb.Change{Key: later[0], New: table.Get(later[0])})
							used += weight.Of(table.Get(later[0]))
						}
						began := time.Now()
						apply(b, p, piece, nil)
						longest = max(longest, time.Since(began))
					}
					b.ReportMetric(time.Since(start).Seconds(), "load-s")
					b.ReportMetric((programTime(b) - cpu).Seconds(), "load-cpu-s")
					b.ReportMetric(longest.Seconds(), "longest-piece-s")
					for _, c := range []struct {
						unit string
						i    int
					}{{"endpoint-ms", 7}, {"service-ms", n + 1}} {
						changes, _ := table.Replace(w.ClusterIP(c.i, 50*c.i+1, 50))
						began := time.Now()
						apply(b, p, changes, nil)
						b.ReportMetric(float64(time.Since(began).Microseconds())/1000, c.unit)
					}
				}
			})
		}
	}
}

// programTime is the processor time of the programs that have run.
func programTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkFind is what the start asks before it reads any rule, on a node that a kubelet has marked, beside the rules of
// earlier services.
func BenchmarkFind(b *testing.B) {
	for _, n := range []int{100, 5000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			needs(b, xtables.NFT)
			inNetns(b)
			run(b, "", "iptables-nft", "-t", "mangle", "-N", xtables.Kubelets[0])
			reset(b, newPlane(b, Config{Family: lb.IPv4, Backend: xtables.NFT}), planetest.World{Family: lb.IPv4}.Table(n, 10))
			for b.Loop() {
				if _, err := xtables.Find(lb.IPv4); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLook is, among services with three backends each: a packet that is followed; all that is compared, and how much memory that takes; and
// a change, alone and while somebody follows packets all the time.
func BenchmarkLook(b *testing.B) {
	for _, back := range []xtables.Backend{xtables.NFT, xtables.Legacy} {
		for _, n := range []int{100, 10_000} {
			b.Run(fmt.Sprintf("%s/services=%d", back, n), func(b *testing.B) {
				needs(b, back)
				inNetns(b)
				w := planetest.World{Family: lb.IPv4}
				p := newPlane(b, Config{Family: lb.IPv4, Backend: back})
				table := w.Table(n, 3)
				reset(b, p, table)
				packet := trace.Packet{From: netip.AddrPortFrom(w.Addr(100, 1<<20), 0), To: netip.AddrPortFrom(w.Addr(10, n/2), 80), Proto: lb.TCP}
				follow := func() error {
					k, err := p.Follow(context.Background(), packet)
					if err == nil && len(k.Backends) != 3 {
						err = fmt.Errorf("%s", show(k))
					}
					return err
				}
				ns, err := netns.Get() // what runs beside, runs there too
				if err != nil {
					b.Fatal(err)
				}
				defer ns.Close()
				measure := func(unit string, times int, do func(i int) error) {
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					all := make([]time.Duration, times)
					for i := range all {
						began := time.Now()
						if err := do(i); err != nil {
							b.Fatal(err)
						}
						all[i] = time.Since(began)
					}
					runtime.ReadMemStats(&after)
					slices.Sort(all)
					b.ReportMetric(float64(all[times/2].Microseconds())/1000, "ms/"+unit)
					b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(times)/1e6, "MB/"+unit)
				}
				change := func(i int) error {
					changes, _ := table.Replace(w.ClusterIP(7, 1<<21+3*(i%2), 3))
					_, err := p.Apply(context.Background(), changes)
					return err
				}
				for b.Loop() {
					measure("follow", 20, func(int) error { return follow() })
					measure("compare", 1, func(int) error {
						return p.Differences(context.Background(), table, func(d trace.Difference) bool {
							b.Errorf("differs: %+v", d)
							return false
						})
					})
					measure("change", 10, change)
					stop, ended := make(chan struct{}), make(chan error, 1)
					followed := 0
					go func() {
						ended <- netlab.In(ns, func() error {
							for ; ; followed++ {
								select {
								case <-stop:
									return nil
								default:
								}
								if err := follow(); err != nil {
									return err
								}
							}
						})
					}()
					measure("change-beside", 10, change)
					close(stop)
					if err := <-ended; err != nil {
						b.Error(err)
					}
					b.ReportMetric(float64(followed), "followed-beside")
				}
			})
		}
	}
}

// BenchmarkReadCounters is one reading of the counters of rules, which nobody does (docs/adr/0011): of the chains that have a rule for each
// service address, one after the other.
func BenchmarkReadCounters(b *testing.B) {
	const n = 10_000
	needs(b, xtables.NFT)
	inNetns(b)
	p := newPlane(b, Config{Family: lb.IPv4, Backend: xtables.NFT})
	if _, err := planetest.ResetAll(b.Context(), p, (planetest.World{Family: lb.IPv4}).Table(n, 3)); err != nil {
		b.Fatal(err)
	}
	h, err := p.Tool.OpenHolding(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	names, err := h.Names(xtables.NAT)
	if err != nil {
		b.Fatal(err)
	}
	rules, used := 0, ownTime(b)
	for b.Loop() {
		rules = 0
		for name := range names {
			if !strings.HasPrefix(name, xtables.AddressBranch) {
				continue
			}
			c, err := h.Chain(xtables.ChainID{Table: xtables.NAT, Name: name})
			if err != nil {
				b.Fatal(err)
			}
			rules += len(c.Rules)
		}
		if rules < n {
			b.Fatalf("%d rules of %d Services", rules, n)
		}
	}
	b.ReportMetric(float64((ownTime(b)-used).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(rules), "rules")
}

// ownTime is how long this process has computed, in the kernel too.
func ownTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
