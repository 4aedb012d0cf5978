package main

import (
	"fmt"
	"strings"
	"testing"
)

// measured fills figures as a run with these rounds would.
func measured() figures {
	f := figures{}
	for _, slowdown := range []float64{1.3, 7, 1} { // the machine was busy in the second round
		for n, ns := range map[int]float64{100: 2000, 10_000: 2100, 100_000: 2400} {
			name := fmt.Sprintf("/services=%d", n)
			f.add(inPolicy, line{"EndpointChange" + name, map[string]float64{"ns/op": ns * slowdown, "B/op": 1800}})
			f.add(inNftables, line{"EndpointRender" + name, map[string]float64{"ns/op": ns * slowdown, "B/op": 2500}})
		}
		for n, ns := range map[int]float64{1000: 50_000, 10_000: 60_000, 100_000: 90_000} {
			f.add(inNftables, line{fmt.Sprintf("EndpointIntoKernel/services=%d", n),
				map[string]float64{"ns/op": ns * slowdown}})
		}
	}
	for n, peak := range map[int]float64{5000: 60.4, 10_000: 131} {
		api := func(operation string, values map[string]float64) {
			f.add(inMeasure, line{fmt.Sprintf("APIServer/services=%d/%s", n, operation), values})
		}
		api("start", map[string]float64{"p50-ms": 1400, "max-ms": 3100, "cpu-ms/op": 700, "peak-MiB": 50})
		api("change", map[string]float64{"p50-ms": 4.8, "p99-ms": 101, "write-p50-ms": 3.5, "write-p99-ms": 80,
			"cpu-ms/op": 0.6, "peak-MiB": peak})
		api("new", map[string]float64{"p50-ms": 20, "p99-ms": 60, "write-p50-ms": 18, "write-p99-ms": 55,
			"cpu-ms/op": 1, "peak-MiB": 52})
	}
	for entries, ms := range map[int]float64{0: 0.9, 500_000: 1.6} {
		for _, operation := range []string{"change", "new"} {
			f.add(inMeasure, line{fmt.Sprintf("Conntrack/services=2000/entries=%d/%s", entries, operation),
				map[string]float64{"cpu-ms/op": ms}})
		}
	}
	return f
}

// wantRows compares the rows of a mode with lines whose cells are separated by "|".
func wantRows(t *testing.T, mode string, f figures, want string) {
	t.Helper()
	var got []string
	for _, r := range rowsOf[mode](f) {
		got = append(got, strings.Join(r.cells(), "|")+"|"+map[bool]string{true: "yes", false: "NO"}[r.ok])
	}
	if text := strings.Join(got, "\n"); text != strings.TrimSpace(want) {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

// Each kind of row, judged or not.
func TestRows(t *testing.T) {
	wantRows(t, "nftables", measured(), `
one endpoint changes: policy, table, rendering|100|≤ 20 µs, ≤ 4 KB|4 µs, 4.3 KB|NO
one endpoint changes: policy, table, rendering|10,000|≤ 20 µs, ≤ 4 KB|4.2 µs, 4.3 KB|NO
one endpoint changes: policy, table, rendering|100,000|≤ 20 µs, ≤ 4 KB|4.8 µs, 4.3 KB|NO
one endpoint changes: policy, table, rendering|100,000 against 100|≤ 1.5 ×|1.2 ×|yes
the same into the kernel, one netlink transaction|1,000|≤ 25 ms|50 µs|yes
the same into the kernel, one netlink transaction|10,000|≤ 25 ms|60 µs|yes
the same into the kernel, one netlink transaction|100,000|≤ 25 ms|90 µs|yes
the same into the kernel, one netlink transaction|100,000 against 1,000|≤ 1.5 ×|1.8 ×|NO
API write → a connection reaches the changed endpoint|5,000|p50 ≤ 40 ms, p99 ≤ 100 ms|p50 4.8 ms, p99 101 ms (API server: p50 3.5 ms, p99 80 ms)|NO
API write → a connection reaches the changed endpoint|10,000|p50 ≤ 40 ms, p99 ≤ 100 ms|p50 4.8 ms, p99 101 ms (API server: p50 3.5 ms, p99 80 ms)|NO
API write of a new service and its slice → it answers|5,000|p50 ≤ 50 ms, p99 ≤ 120 ms|p50 20 ms, p99 60 ms (API server: p50 18 ms, p99 55 ms)|yes
API write of a new service and its slice → it answers|10,000|p50 ≤ 50 ms, p99 ≤ 120 ms|p50 20 ms, p99 60 ms (API server: p50 18 ms, p99 55 ms)|yes
process start → the last service answers|5,000|≤ 1.5 s|1.4 s (longest 3.1 s; 700 ms of CPU)|yes
process start → the last service answers|10,000|≤ 3 s|1.4 s (longest 3.1 s; 700 ms of CPU)|yes
CPU per change|5,000|≤ 5 ms|600 µs|yes
CPU per change|10,000|≤ 5 ms|600 µs|yes
peak memory, resident|5,000|≤ 90 MiB|60 MiB|yes
peak memory, resident|10,000|≤ 130 MiB|131 MiB|NO
CPU per change, with 0 conntrack entries|2,000, stand-in|≤ 1.5 ms|900 µs|yes
CPU per change, with 500,000 conntrack entries|2,000, stand-in|≤ 1.5 ms|1.6 ms|NO
CPU per new Service, with 0 conntrack entries|2,000, stand-in|≤ 1.5 ms|900 µs|yes
CPU per new Service, with 500,000 conntrack entries|2,000, stand-in|≤ 1.5 ms|1.6 ms|NO`)
}

// Rows of mode iptables, with either back end: only one has goals for changes.
func TestTablesRows(t *testing.T) {
	f := figures{}
	add := func(prefix string, faster float64) {
		api := func(operation string, values map[string]float64) {
			f.add(inMeasure, line{fmt.Sprintf("%s/services=5000/%s", prefix, operation), values})
		}
		api("start", map[string]float64{"p50-ms": 6500 / faster, "max-ms": 7100, "cpu-ms/op": 5000,
			"peak-MiB": 80 / faster})
		api("change", map[string]float64{"p50-ms": 81 / faster, "p99-ms": 101, "write-p50-ms": 3.5, "write-p99-ms": 80,
			"cpu-ms/op": 60 / faster, "peak-MiB": 91})
		api("new", map[string]float64{"p50-ms": 100 / faster, "p99-ms": 160, "write-p50-ms": 18, "write-p99-ms": 55,
			"cpu-ms/op": 1, "peak-MiB": 52})
		api("connect", map[string]float64{"first-us": 25, "last-us": 26, "ratio": 1.04 / faster})
	}
	add("IPTables", 1)
	add("IPTablesLegacy", 1)
	wantRows(t, "iptables", f, `
iptables-nft: process start → the last service answers|5,000|≤ 7 s|6.5 s (longest 7.1 s; 5 s of CPU)|yes
iptables-nft: API write → a connection reaches the changed endpoint|5,000|p50 ≤ 80 ms|p50 81 ms (p99 101 ms; API server: p50 3.5 ms, p99 80 ms)|NO
iptables-nft: API write of a new service and its slice → it answers|5,000|p50 ≤ 120 ms|p50 100 ms (p99 160 ms; API server: p50 18 ms, p99 55 ms)|yes
iptables-nft: connection set-up, the last service against the first|5,000|≤ 1.1 ×|1.04 × (25 µs, 26 µs)|yes
iptables-nft: CPU per change, children included|5,000|≤ 80 ms|60 ms|yes
iptables-nft: peak memory, resident|5,000|≤ 90 MiB|91 MiB|NO`)
	wantRows(t, "iptables-legacy", f, `
iptables-legacy: process start → the last service answers|5,000|≤ 4 s|6.5 s (longest 7.1 s; 5 s of CPU)|NO
iptables-legacy: API write → a connection reaches the changed endpoint|5,000|–|p50 81 ms (p99 101 ms; API server: p50 3.5 ms, p99 80 ms)|yes
iptables-legacy: API write of a new service and its slice → it answers|5,000|–|p50 100 ms (p99 160 ms; API server: p50 18 ms, p99 55 ms)|yes
iptables-legacy: connection set-up, the last service against the first|5,000|≤ 1.1 ×|1.04 × (25 µs, 26 µs)|yes
iptables-legacy: CPU per change, children included|5,000|≤ 80 ms|60 ms|yes
iptables-legacy: peak memory, resident|5,000|≤ 90 MiB|91 MiB|NO`)
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args string
		want string // of options, or part of the error
	}{
		{"", "false true [5000 10000] [5000] [compare nftables iptables iptables-legacy userspace ipvs ebpf failover " +
			"trace]   0s true"},
		{"-quick", "true true [500] [500] "},
		{"-quick -size 70,7", " 0s false"},
		{"-size 100000,5,5", "false true [5 100000] [5 100000] "},
		{"-api=false", "false false [5000 10000] "},
		{"-mode iptables -only new", "[iptables] new  0s false"},
		{"-for 25m -job Peer", " Peer 25m0s true"},
		{"-job (", "-job (: error parsing regexp"},
		{"-mode magic", `"magic" is none of compare`},
		{"-only slow", "want one of start"},
		{"-size 5k", `"5k" is not a number`},
		{"-size 0", `"0" is not a number`},
		{"fast", "no arguments but flags"},
	} {
		o, err := parse(strings.Fields(c.args))
		got := fmt.Sprintln(o.quick, o.api, o.sizes, o.few, o.modes, o.only, o.job, o.budget, o.write)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%q: %s, want %s", c.args, got, c.want)
		}
	}
}
