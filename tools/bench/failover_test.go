package main

import "testing"

// A cut is judged by the slowest connect, failures, slow connects after 2 s, and the return; beside
// failover off and upstream. Without a cut failover costs nothing.
func TestFailoverRows(t *testing.T) {
	f := figures{}
	f.add(inProgram, line{"Failover/nftables/drop/off", map[string]float64{"slowest-s": 40, "failed-%": 33}})
	f.add(inProgram, line{"Failover/nftables/drop/avoid", map[string]float64{"slowest-s": 2.1, "failed-%": 0,
		"connections": 12000, "after-2s-ms": 90, "direct-ms": 30, "return-s": 4}})
	f.add(inProgram, line{"Failover/nftables/drop/upstream", map[string]float64{"slowest-s": 40, "failed-%": 32}})
	for setting, p50 := range map[string]float64{"off": 0.2, "avoid": 0.21} {
		f.add(inProgram, line{"Failover/nftables/none/" + setting, map[string]float64{"p50-ms": p50, "p99-ms": 2,
			"cpu-ms/s": 10 * p50, "probes": 0}})
	}
	wantRows(t, "failover", f, `
failover: nothing is wrong, 200 connections a second, mode nftables, beside failover off|10|p50 of connects ≤ 1.1 ×, processor time of the proxy, more by ≤ 5 ms/s, probes ≤ 0|p50 of connects 1.05 ×, processor time of the proxy, more by 0.1 ms/s, probes 0 (p50 210 µs and 200 µs, p99 2 ms and 2 ms)|yes
failover: a node drops all packets under 200 connections a second, mode nftables: connects in the minute after|10|slowest ≤ 3.3 s, failed ≤ 0 %|slowest 2.1 s, failed 0 % (failover off: 40 s, 33 % fail after 40 s; upstream: 40 s, 32 % fail after 40 s)|yes
failover: a node drops all packets under 200 connections a second, mode nftables: those from 2 s after it|10|slower than direct by ≤ 50 ms|slower than direct by 60 ms (slowest of 12000: 90 ms, direct 30 ms)|NO
failover: a node drops all packets under 200 connections a second, mode nftables: the node returns|10|used after ≤ 10 s|used after 4 s|yes`)
}
