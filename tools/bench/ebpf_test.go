package main

import "testing"

// Sockets are judged by ratios of one run, a change by its writes and by what it adds, the first
// sync by its CPU time.
func TestEBPFRows(t *testing.T) {
	f := figures{}
	for name, values := range map[string]map[string]float64{
		"Sockets/connect":  {"ebpf/direct": 1.04, "nftables/direct": 1.03, "direct-µs": 24},
		"Sockets/udp-echo": {"ebpf/direct": 1.2, "nftables/direct": 1.1, "direct-µs": 20},
		"Tables/services=100": {"change-more-µs": 15, "change-nftables-µs": 20, "writes/change": 3, "first-ms": 90,
			"first-nftables-ms": 9, "first-cpu-ms": 80, "kernel-MiB": 0.25},
		"Tables/services=1000": {"change-more-µs": 60, "change-nftables-µs": 20, "writes/change": 5, "first-ms": 2000,
			"first-nftables-ms": 9, "first-cpu-ms": 1800, "kernel-MiB": 3},
	} {
		f.add(inEBPF, line{name, values})
	}
	wantRows(t, "ebpf", f, `
ebpf: connect and close, no entry in conntrack, pod to pod through a cluster IP against direct|10,000|≤ 1.05 ×|1.04 × (mode nftables 1.03 ×; direct 24 µs)|yes
ebpf: UDP echo of an unconnected socket, pod to pod through a cluster IP against direct|10,000|≤ 1.1 ×|1.2 × (mode nftables 1.1 ×; direct 20 µs)|NO
ebpf: one endpoint changes, in the plane, more than in mode nftables|100|≤ 50 µs, ≤ 4 writes|15 µs, 3 writes (mode nftables 20 µs)|yes
ebpf: one endpoint changes, in the plane, more than in mode nftables|1,000|≤ 50 µs, ≤ 4 writes|60 µs, 5 writes (mode nftables 20 µs)|NO
ebpf: one endpoint changes, in the plane|1,000 against 100|≤ 1.5 ×|4 ×|NO
ebpf: first sync, CPU|100|≤ 1.5 s|80 ms (90 ms in all, of that mode nftables 9 ms; 0.25 MiB of the kernel's memory)|yes
ebpf: first sync, CPU|1,000|≤ 1.5 s|1.8 s (2 s in all, of that mode nftables 9 ms; 3 MiB of the kernel's memory)|NO`)
}
