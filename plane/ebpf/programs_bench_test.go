//go:build linux

package ebpf

import (
	"testing"
	"time"

	cilium "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
)

// BenchmarkPrograms is how long the programs at connect() and close() of a TCP socket run, by the
// kernel's statistics: straight to an endpoint, and to a cluster IP.
func BenchmarkPrograms(b *testing.B) {
	lab := netlab.ForTest(b, netlab.Options{Cgroup: true, NoNode2: true, NoClient: true})
	p := echoLab(b, lab, 10_000)
	stats, err := cilium.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	ran := func(prog *cilium.Program) (time.Duration, uint64) {
		info, err := prog.Stats()
		if err != nil {
			b.Fatal(err)
		}
		return info.Runtime, info.RunCount
	}
	programs := map[string]*cilium.Program{"connect": p.kernel.obj.Connect4, "release": p.kernel.obj.SockRelease}
	for _, host := range []string{"pod3", netlab.Node1} {
		for _, w := range ways[:2] {
			b.Run(host+"/"+w.name, func(b *testing.B) {
				all := map[string][]time.Duration{}
				lab.On(host, func() {
					for b.Loop() {
						type stat struct {
							took time.Duration
							n    uint64
						}
						before := map[string]stat{}
						for name, prog := range programs {
							took, n := ran(prog)
							before[name] = stat{took, n}
						}
						if err := connects(w.to, make([]time.Duration, 1)); err != nil {
							b.Fatal(err)
						}
						for name, prog := range programs {
							if took, n := ran(prog); n == before[name].n+1 {
								all[name] = append(all[name], took-before[name].took)
							}
						}
					}
				})
				for name, took := range all {
					b.ReportMetric(float64(median(took).Nanoseconds()), name+"-ns")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
