//go:build linux

package iptables

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// BenchmarkSourceRanges adds a Service with 300 source ranges and 300 ports, adds one more range,
// and changes another Service beside it.
func BenchmarkSourceRanges(b *testing.B) {
	for _, back := range xtables.Both {
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
					apply(b, p, changes)
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

// BenchmarkManyEndpoints writes services with fifty backends each to an empty kernel, as the engine
// does: with a Reset and then pieces. Then it changes an endpoint, and adds a service. It measures
// the processor time of the programs, because elapsed time says little on a busy machine.
func BenchmarkManyEndpoints(b *testing.B) {
	for _, back := range xtables.Both {
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
						for used := 0; len(later) > 0 && used < p.MaxBatchWeight(); later = later[1:] {
							piece = append(piece, lb.Change{Key: later[0], New: table.Get(later[0])})
							used += weight.Of(table.Get(later[0]))
						}
						began := time.Now()
						apply(b, p, piece)
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
						apply(b, p, changes)
						b.ReportMetric(float64(time.Since(began).Microseconds())/1000, c.unit)
					}
				}
			})
		}
	}
}

// programTime returns the processor time of the programs run so far.
func programTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
