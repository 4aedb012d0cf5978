//go:build linux

package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
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
// endpoint; then the time until the node is used again. Upstream is the program that PEER names.
//
// With the cut "none" nothing is wrong. It reports the proxy's processor time and probes in the
// minute, and how long connections take.
func BenchmarkFailover(b *testing.B) {
	cuts := map[string]fault{"drop": nodeDead, "link": linkDown, "none": script(netlab.Node2, "true", "true")}
	for _, mode := range failoverModes {
		for _, c := range []struct{ cut, value string }{{"none", "off"}, {"none", "avoid"}, {"drop", "off"},
			{"drop", "avoid"}, {"drop", upstream}, {"link", "avoid"}} {
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

// upstream is the value of a benchmark of the upstream program instead of failover.
const upstream = "upstream"

// flagCutFor makes trials shorter.
var flagCutFor = flag.Duration("cut", time.Minute, "how long BenchmarkFailover cuts a node off")

const (
	cutServices = 10
	cutRate     = 200
	// cutWait is how long a client waits; Linux gives up after two minutes.
	cutWait = 40 * time.Second
)

func benchCut(b *testing.B, mode string, off fault, value string) {
	peer := os.Getenv("PEER")
	if value == upstream && (peer == "" || mode != "nftables" && mode != "iptables") {
		b.Skip("PEER names no upstream kube-proxy with this mode")
	}
	n := newModeLab(b, mode)
	n.Serve(netlab.TCP, 8080, "pod1", "pod2", "pod3", "pod4", "pod5", netlab.Sink)
	var all []string // manifests
	for i := range cutServices {
		name := fmt.Sprintf("web%d", i)
		all = append(all, serviceManifest(name, fmt.Sprintf("10.96.0.%d", 10+i), "10.1.1.11@node1", "10.1.1.12@node1",
			"10.1.1.13@node1", "10.1.2.14@node2", "10.1.2.15@node2", "172.18.0.254@sink"))
		n.apply(name, all[i])
	}
	var p *labProgram
	if value == upstream {
		p = n.servePeer(peer, all)
	} else {
		p = n.serve("--failover=" + value)
		if value != "off" {
			p.await(failoverOn)
		}
	}
	n.measureCut(b, p, off)
	p.end(syscall.SIGTERM)
}

// servePeer starts an upstream kube-proxy with an API server that has the objects, and waits until
// it serves.
func (n *failoverLab) servePeer(path string, manifests []string) *labProgram {
	n.t.Helper()
	api := n.api()
	for _, objects := range manifests {
		for doc := range strings.SplitSeq(objects, "---\n") {
			api.add(n.t, doc)
		}
	}
	p := n.launch(path, "--proxy-mode="+n.mode, "--hostname-override=node1", "--cluster-cidr=10.1.0.0/16",
		"--master=http://"+labAPIAt, "--kube-api-content-type=application/json", "--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
	until(n.t, func() string {
		if _, err := n.dial(n.vip, impatience); err != nil {
			return fmt.Sprintf("upstream does not serve: %v\n%s", err, p.log())
		}
		return ""
	})
	return p
}

func (n *failoverLab) measureCut(b *testing.B, p *labProgram, off fault) {
	const processor, probes = "process_cpu_seconds_total", "kubeproxy_failover_probes_total"
	load := n.load()
	time.Sleep(3 * time.Second)
	cut, spent, probed := time.Now(), p.metric(processor), p.metric(probes)
	off.begin(n)
	time.Sleep(*flagCutFor)
	b.ReportMetric(1000*(p.metric(processor)-spent)/time.Since(cut).Seconds(), "cpu-ms/s")
	b.ReportMetric(p.metric(probes)-probed, "probes")
	off.end(n)
	back := time.Now()
	time.Sleep(12 * time.Second)
	all := load()

	var took []time.Duration
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
			took = append(took, a.took)
			slowest = max(slowest, a.took)
			if a.err != nil {
				failed++
			}
			if since > 2*time.Second {
				late = max(late, a.took)
			}
		}
	}
	slices.Sort(took)
	b.ReportMetric(1000*took[len(took)/2].Seconds(), "p50-ms")
	b.ReportMetric(1000*took[len(took)*99/100].Seconds(), "p99-ms")
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
