package main

import "testing"

// A change is judged by messages and by the growth of its computation, a connection by the ratio of
// one run.
func TestIPVSRows(t *testing.T) {
	f := figures{}
	for name, values := range map[string]map[string]float64{
		"IPVS/services=100": {"messages/op": 2, "sent-B/op": 200, "cpu-µs/op": 400, "messages/service": 13,
			"sent-B/service": 900, "sync-cpu-ms": 90, "first-µs": 1000, "last-µs": 1050},
		"IPVS/services=10000": {"messages/op": 5, "sent-B/op": 200, "cpu-µs/op": 800, "messages/service": 13,
			"sent-B/service": 900, "sync-cpu-ms": 9000, "first-µs": 1000, "last-µs": 1200},
	} {
		f.add(inIPVS, line{name, values})
	}
	wantRows(t, "ipvs", f, `
ipvs: one endpoint changes, in the plane, in a VM|100|≤ 4 messages|2 messages (200 bytes; 400 µs of CPU there)|yes
ipvs: one endpoint changes, in the plane, in a VM|10,000|≤ 4 messages|5 messages (200 bytes; 800 µs of CPU there)|NO
ipvs: one endpoint changes, in the plane, in a VM: CPU|10,000 against 100|≤ 1.5 ×|2 ×|NO
ipvs: first sync, in a VM|100|–|13 messages a Service of ten backends, 900 bytes; 90 ms of CPU there|yes
ipvs: first sync, in a VM|10,000|–|13 messages a Service of ten backends, 900 bytes; 9 s of CPU there|yes
ipvs: a connection to the last Service against the first, in a VM|100|≤ 1.1 ×|1.05 ×|yes
ipvs: a connection to the last Service against the first, in a VM|10,000|≤ 1.1 ×|1.2 ×|NO`)
}
