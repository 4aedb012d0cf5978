//go:build linux

package nftables

import (
	"context"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/failover"
	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// TestUnanswered proves notices of unanswered connections (FO-12), and their end (FO-11, FO-13).
func TestUnanswered(t *testing.T) {
	planetest.Unanswered(t, planetest.Config{New: newConformant})
}

// BenchmarkWatched is a connection with one answer and some lines, while unanswered connections are
// watched and while they are not: what failover costs when nothing is wrong.
func BenchmarkWatched(b *testing.B) {
	lab := netlab.ForTest(b, netlab.Options{})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod4")
	table, clusterIP, _ := planetest.Shop(lb.IPv4)
	var p *Plane
	lab.On(netlab.Node1, func() {
		p = newPlane(b, lb.IPv4)
		reset(b, p, table)
	})
	for _, watched := range []string{"yes", "no", "yes", "no"} {
		b.Run("watched="+watched, func(b *testing.B) {
			if watched == "yes" {
				ctx, stop := context.WithCancel(context.Background())
				var watch sync.WaitGroup
				watch.Go(func() {
					lab.On(netlab.Node1, func() {
						err := p.Run(ctx, func(n failover.Notice) { b.Errorf("notice %+v", n) })
						if err != nil {
							b.Error(err)
						}
					})
				})
				defer watch.Wait()
				defer stop()
				time.Sleep(100 * time.Millisecond)
			}
			before := cpuTime(b)
			for b.Loop() {
				c, err := lab.Open("pod2", netlab.TCP, clusterIP, netlab.DialOptions{})
				if err != nil {
					b.Fatal(err)
				}
				for range 20 {
					if _, err := c.Exchange(); err != nil {
						b.Fatal(err)
					}
				}
				c.Close()
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime is this process's, with the kernel's work for its packets.
func cpuTime(b *testing.B) time.Duration {
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
