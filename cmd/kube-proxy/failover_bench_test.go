//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
)

// BenchmarkFailover cuts a node off under 200 new connections a second to 10 Services with 6
// endpoints each, two of them there: it drops all packets, or its link goes down. For the
// connections that start in the minute after the cut it reports the slowest and how many fail; for
// those that start 2 s later the slowest, beside the slowest of as many that go straight to an
// endpoint; then the time until the node is used again.
func BenchmarkFailover(b *testing.B) {
	cuts := map[string]fault{"drop": nodeDead, "link": linkDown}
	for _, mode := range failoverModes {
		for _, c := range []struct{ cut, value string }{{"drop", "off"}, {"drop", "avoid"}, {"link", "avoid"}} {
			b.Run(mode+"/"+c.cut+"/"+c.value, func(b *testing.B) {
				for range b.N {
					benchCut(b, mode, cuts[c.cut], c.value)
				}
			})
		}
	}
}

// attempt is a connection.
type attempt struct {
	start  time.Time
	took   time.Duration
	server string
	err    error
	direct bool // straight to an endpoint
}

const (
	cutServices = 10
	cutRate     = 200
	cutFor      = time.Minute
	// cutWait is how long a client waits; Linux gives up after two minutes.
	cutWait = 40 * time.Second
)

func benchCut(b *testing.B, mode string, off fault, value string) {
	n := newModeLab(b, mode)
	n.Serve(netlab.TCP, 8080, "pod1", "pod2", "pod3", "pod4", "pod5", netlab.Sink)
	for i := range cutServices {
		name := fmt.Sprintf("web%d", i)
		n.apply(name, serviceManifest(name, fmt.Sprintf("10.96.0.%d", 10+i), "10.1.1.11@node1", "10.1.1.12@node1",
			"10.1.1.13@node1", "10.1.2.14@node2", "10.1.2.15@node2", "172.18.0.254@sink"))
	}
	p := n.serve("--failover=" + value)
	if value != "off" {
		p.await(regexp.MustCompile("Failover is on"))
	}
	load := n.load()
	time.Sleep(3 * time.Second)
	cut := time.Now()
	off.begin(n)
	time.Sleep(cutFor)
	off.end(n)
	back := time.Now()
	time.Sleep(12 * time.Second)
	all := load()
	p.end(syscall.SIGTERM)

	var slowest, late, direct time.Duration
	connections, failed := 0, 0
	used := time.Time{}
	for _, a := range all {
		switch since := a.start.Sub(cut); {
		case a.direct:
			if since > 2*time.Second && a.start.Before(back) {
				direct = max(direct, a.took)
			}
		case a.start.After(back):
			if (a.server == "pod4" || a.server == "pod5") && (used.IsZero() || a.start.Before(used)) {
				used = a.start
			}
		case since >= 0:
			connections++
			slowest = max(slowest, a.took)
			if a.err != nil {
				failed++
			}
			if since > 2*time.Second {
				late = max(late, a.took)
			}
		}
	}
	b.ReportMetric(float64(connections), "connections")
	b.ReportMetric(100*float64(failed)/float64(connections), "failed-%")
	b.ReportMetric(slowest.Seconds(), "slowest-s")
	b.ReportMetric(1000*late.Seconds(), "after-2s-ms")
	b.ReportMetric(1000*direct.Seconds(), "direct-ms")
	if !used.IsZero() {
		b.ReportMetric(used.Sub(back).Seconds(), "return-s")
	}
}

// load makes connections from pod2 until stopped, and then returns all when each has its end.
func (n *failoverLab) load() (stop func() []attempt) {
	end, done := make(chan struct{}), make(chan struct{})
	var all []attempt
	go func() {
		defer close(done)
		var running sync.WaitGroup
		var mu sync.Mutex
		for ticks := time.NewTicker(time.Second / cutRate); ; {
			select {
			case <-end:
				running.Wait()
				return
			case <-ticks.C:
			}
			dial := func(to netip.AddrPort, direct bool) {
				a := attempt{start: time.Now(), direct: direct}
				r, err := n.dial(to, cutWait)
				a.took, a.server, a.err = time.Since(a.start), r.Server, err
				mu.Lock()
				defer mu.Unlock()
				all = append(all, a)
			}
			running.Go(func() {
				service := netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + rand.IntN(cutServices))})
				dial(netip.AddrPortFrom(service, 80), false)
			})
			running.Go(func() { dial(endpoint("pod1", 8080), true) })
		}
	}()
	return func() []attempt {
		close(end)
		<-done
		return all
	}
}
