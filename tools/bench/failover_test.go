package main

import "testing"

// A cut is judged by the slowest connect, failures, slow connects after 2 s, and the return.
func TestFailoverRows(t *testing.T) {
	f := figures{}
	f.add(inProgram, line{"Failover/nftables/drop/off", map[string]float64{"slowest-s": 40, "failed-%": 33}})
	f.add(inProgram, line{"Failover/nftables/drop/avoid", map[string]float64{"slowest-s": 2.1, "failed-%": 0,
		"connections": 12000, "after-2s-ms": 90, "direct-ms": 30, "return-s": 4}})
	wantRows(t, "failover", f, `
failover: a node drops all packets under 200 connections a second, mode nftables: connects in the minute after|10|slowest ≤ 3.3 s, failed ≤ 0 %|slowest 2.1 s, failed 0 % (failover off: 40 s, 33 % fail after 40 s)|yes
failover: a node drops all packets under 200 connections a second, mode nftables: those from 2 s after it|10|slower than direct by ≤ 50 ms|slower than direct by 60 ms (slowest of 12000: 90 ms, direct 30 ms)|NO
failover: a node drops all packets under 200 connections a second, mode nftables: the node returns|10|used after ≤ 10 s|used after 4 s|yes`)
}
