package main

import "testing"

// Traffic through the proxy is judged by ratios of one run; a ratio below the goal fails.
func TestUserspaceRows(t *testing.T) {
	f := figures{}
	add := func(name string, values map[string]float64) { f.add(inProgram, line{name, values}) }
	add("Userspace/stream", map[string]float64{"ratio": 0.61, "MB/s-direct": 1000, "MB/s-proxied": 610})
	add("Userspace/connections", map[string]float64{"ratio": 0.44, "conn/s-direct": 9000, "conn/s-proxied": 3960})
	add("Userspace/udp", map[string]float64{"ratio": 0.4, "rr/s-direct": 50_000, "rr/s-proxied": 20_000})
	add("Userspace/killed", map[string]float64{"failed": 1, "connections": 600, "p99-ms": 3})
	add("UserspaceChange/services=100", map[string]float64{"ns/op": 200_000})
	add("UserspaceChange/services=10000", map[string]float64{"ns/op": 400_000})
	add("Userspace/memory-tcp", map[string]float64{"MiB": 40, "KiB/conn": 1.2, "connections": 9500, "files/conn": 2})
	add("Userspace/memory-udp", map[string]float64{"MiB": 60, "B/session": 300, "sessions": 100_000, "files": 16})
	wantRows(t, "userspace", f, `
userspace: TCP stream, through the proxy against straight|1|≥ 0.5 ×|0.61 × (610 against 1000 MB/s)|yes
userspace: connections a second: connect, one byte each way, close, through the proxy against straight|1|≥ 0.45 ×|0.44 × (3960 against 9000 conn/s)|NO
userspace: UDP requests a second that are answered, through the proxy against straight|1|≥ 0.4 ×|0.4 × (20000 against 50000 rr/s)|yes
userspace: a backend is killed under 200 connections a second: clients that see it|1|≤ 0 failed|1 failed (of 600 connections; p99 3 ms)|NO
userspace: one endpoint changes, in the plane|100|≤ 1 ms|200 µs|yes
userspace: one endpoint changes, in the plane|10,000|≤ 1 ms|400 µs|yes
userspace: one endpoint changes, in the plane|10,000 against 100|≤ 1.5 ×|2 ×|NO
userspace: resident memory with 9,500 open connections of TCP|1|–|40 MiB, 1.2 KiB each, 2 descriptors each|yes
userspace: resident memory with 100,000 sessions of UDP|1|–|60 MiB, 300 bytes each, 16 descriptors in all|yes`)
}
