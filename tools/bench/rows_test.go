package main

import (
	"fmt"
	"os"
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
	f.add(inMeasure, line{"StandIn/services=100000/start", map[string]float64{"p50-ms": 15_000, "max-ms": 16_000,
		"cpu-ms/op": 9000, "peak-MiB": 650}})
	return f
}

// wantRows compares the rows of figures with lines whose cells are separated by "|".
func wantRows(t *testing.T, f figures, want string) {
	t.Helper()
	var got []string
	for _, r := range rows(f) {
		got = append(got, strings.Join(r.cells(), "|"))
	}
	if text := strings.Join(got, "\n"); text != strings.TrimSpace(want) {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

// Each kind of row, judged or not.
func TestRows(t *testing.T) {
	wantRows(t, measured(), `
one endpoint changes: policy, table, rendering|100|–|≤ 20 µs, ≤ 4 KB|4 µs, 4.3 KB|NO
one endpoint changes: policy, table, rendering|10,000|–|≤ 20 µs, ≤ 4 KB|4.2 µs, 4.3 KB|NO
one endpoint changes: policy, table, rendering|100,000|–|≤ 20 µs, ≤ 4 KB|4.8 µs, 4.3 KB|NO
one endpoint changes: policy, table, rendering|100,000 against 100|–|≤ 1.5 ×|1.2 ×|yes
the same into the kernel, one netlink transaction|1,000|17 ms|≤ 25 ms|50 µs|yes
the same into the kernel, one netlink transaction|10,000|79 ms|≤ 25 ms|60 µs|yes
the same into the kernel, one netlink transaction|100,000|145 ms with 20,000|≤ 25 ms|90 µs|yes
the same into the kernel, one netlink transaction|100,000 against 1,000|–|≤ 1.5 ×|1.8 ×|NO
API write → a connection reaches the changed endpoint|5,000|p50 1.46 s|p50 ≤ 40 ms, p99 ≤ 100 ms|p50 4.8 ms, p99 101 ms (API server: p50 3.5 ms, p99 80 ms)|NO
API write → a connection reaches the changed endpoint|10,000|p50 3.98 s|p50 ≤ 40 ms, p99 ≤ 100 ms|p50 4.8 ms, p99 101 ms (API server: p50 3.5 ms, p99 80 ms)|NO
API write of a new service and its slice → it answers|5,000|p50 3.1 s|p50 ≤ 50 ms, p99 ≤ 120 ms|p50 20 ms, p99 60 ms (API server: p50 18 ms, p99 55 ms)|yes
API write of a new service and its slice → it answers|10,000|p50 8.1 s|p50 ≤ 50 ms, p99 ≤ 120 ms|p50 20 ms, p99 60 ms (API server: p50 18 ms, p99 55 ms)|yes
process start → the last service answers|5,000|3.9 s|≤ 1.5 s|1.4 s (longest 3.1 s; 700 ms of CPU)|yes
process start → the last service answers|10,000|17 s|≤ 3 s|1.4 s (longest 3.1 s; 700 ms of CPU)|yes
process start → the last service answers|100,000, stand-in|others: 16 min 44 s with 44,000|≤ 20 s|15 s (longest 16 s; 9 s of CPU)|yes
CPU per change|5,000|2.1 s|≤ 5 ms|600 µs|yes
CPU per change|10,000|6.1 s|≤ 5 ms|600 µs|yes
peak memory, resident|5,000|285 MiB|≤ 90 MiB|60 MiB|yes
peak memory, resident|10,000|505 MiB|≤ 130 MiB|131 MiB|NO
peak memory, resident|100,000, stand-in|–|≤ 700 MiB|650 MiB|yes
CPU per change, with 0 conntrack entries|2,000, stand-in|–|≤ 1.5 ms|900 µs|yes
CPU per change, with 500,000 conntrack entries|2,000, stand-in|–|≤ 1.5 ms|1.6 ms|NO
CPU per new Service, with 0 conntrack entries|2,000, stand-in|–|≤ 1.5 ms|900 µs|yes
CPU per new Service, with 500,000 conntrack entries|2,000, stand-in|–|≤ 1.5 ms|1.6 ms|NO`)
}

// Rows of iptables mode, without a peer and with one; the peer's figures replace the known ones.
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
	wantRows(t, f, `
iptables-nft: process start → the last service answers|5,000|6 min 27 s|≤ 7 s|6.5 s (longest 7.1 s; 5 s of CPU)|yes
iptables-legacy: process start → the last service answers|5,000|500 ms for the restore alone|≤ 4 s|6.5 s (longest 7.1 s; 5 s of CPU)|NO
iptables-nft: API write → a connection reaches the changed endpoint|5,000|p50 470 ms|p50 ≤ 80 ms|p50 81 ms (p99 101 ms; API server: p50 3.5 ms, p99 80 ms)|NO
iptables-legacy: API write → a connection reaches the changed endpoint|5,000|–|–|p50 81 ms (p99 101 ms; API server: p50 3.5 ms, p99 80 ms)|yes
iptables-nft: API write of a new service and its slice → it answers|5,000|p50 1.03 s|p50 ≤ 120 ms|p50 100 ms (p99 160 ms; API server: p50 18 ms, p99 55 ms)|yes
iptables-legacy: API write of a new service and its slice → it answers|5,000|–|–|p50 100 ms (p99 160 ms; API server: p50 18 ms, p99 55 ms)|yes
iptables-nft: connection set-up, the last service against the first|5,000|walks 5,000 rules|≤ 1.1 ×|1.04 × (25 µs, 26 µs)|yes
iptables-legacy: connection set-up, the last service against the first|5,000|walks 5,000 rules|≤ 1.1 ×|1.04 × (25 µs, 26 µs)|yes
iptables-nft: CPU per change, children included|5,000|740 ms|≤ 80 ms|60 ms|yes
iptables-legacy: CPU per change, children included|5,000|–|≤ 80 ms|60 ms|yes
iptables-nft: peak memory, resident|5,000|257 MiB|≤ 90 MiB|91 MiB|NO
iptables-legacy: peak memory, resident|5,000|–|≤ 90 MiB|91 MiB|NO`)
	add("PeerIPTables", 0.1)
	if got := rows(f)[0].upstream; got != "65 s, this run" {
		t.Errorf("with a peer the first row says of upstream: %s", got)
	}
	if got := rows(f)[6].upstream; got != "10.4 ×, this run" {
		t.Errorf("with a peer the row of connections says of upstream: %s", got)
	}
}

func TestPage(t *testing.T) {
	p := page{machine: facts{commit: "abc", load: "0.5"}, loadAfter: "2.5", rows: rows(measured()),
		jobs: plan(options{api: true, huge: true, sizes: []int{5000}, few: []int{5000}, modes: modes,
			peer: "/upstream"})}
	for _, text := range []string{p.text(), p.markdown()} {
		for _, want := range []string{"commit abc", "load average 0.5 at the start", "15 of 24 rows reach their goal",
			"2.5 at the end", "p50 4.8 ms"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
	commands := "\n"
	for _, j := range p.jobs {
		commands += fmt.Sprintf("%d × %s\n", j.rounds, j.command())
	}
	for _, want := range []string{
		"\n3 × go test ./policy -run '^$' -bench '^BenchmarkEndpointChange$/^services=(100|10000|100000)$' " +
			"-benchtime 10000x ",
		"\n1 × cd test/e2e && KUBE_PROXY=$OLDPWD/bin/kube-proxy go test ./measure -run '^$' -bench " +
			"'^BenchmarkAPIServer$/^services=/^start$' ",
		" -bench '^BenchmarkStandIn$/^services=/^start$' -benchtime 1x ", " -args -services 100000 -keep\n",
		" -bench '^BenchmarkIPTables$/^services=/^(change|new|connect)$' -benchtime 200x ",
		" PEER=/upstream go test ./measure -run '^$' -bench '^BenchmarkPeerIPTablesLegacy$/^services=/^' -benchtime " +
			"20x ", " -keep -once\n",
	} {
		if !strings.Contains(commands, want) {
			t.Errorf("no %q in\n%s", want, commands)
		}
	}
	if cells := strings.Count(strings.Split(p.text(), "\n")[2], "one endpoint changes"); cells != 0 {
		t.Error("the text repeats the work in every row")
	}
}

// The page has a place for each mode, and a measurement of one changes nothing else of it.
func TestPageParts(t *testing.T) {
	before, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	p := page{machine: facts{commit: "abc"}, rows: rows(measured()),
		jobs: plan(options{api: true, sizes: []int{5000}, few: []int{5000}, modes: modes})}
	for _, mode := range modes {
		after, err := p.into(string(before), []string{mode})
		if err != nil {
			t.Fatal(err)
		}
		cut := func(text string) (head, part, tail string) {
			head, rest, _ := strings.Cut(text, partBegin(mode))
			part, tail, _ = strings.Cut(rest, partEnd(mode))
			return head, part, tail
		}
		head, was, tail := cut(string(before))
		newHead, part, newTail := cut(after)
		if newHead != head || newTail != tail {
			t.Errorf("%s: what is not of the mode has changed", mode)
		}
		if !strings.Contains(part, "commit abc") || len(p.of(mode).jobs) == 0 ||
			strings.Contains(part, "one endpoint changes: policy") != (mode == "nftables") {
			t.Errorf("%s: the part is\n%s", mode, part)
		}
		if !strings.Contains(was, "Not measured yet") && !strings.Contains(was, ", commit ") {
			t.Errorf("%s: docs/performance.md does not name the commit of the part", mode)
		}
	}
	if _, err := p.into("# A page\n", []string{"ipvs"}); err == nil ||
		!strings.Contains(err.Error(), "no part for mode ipvs") {
		t.Errorf("a page without places: %v", err)
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args string
		want string // of options, or part of the error
	}{
		{"", "{false true true [5000 10000] [5000] [nftables iptables iptables-legacy userspace ipvs ebpf failover " +
			"trace]   }"},
		{"-quick", "{true true false [500] [500] "},
		{"-quick -size 70,7 -out x.md", "{true true false [7 70] [7 70] [nftables iptables iptables-legacy userspace " +
			"ipvs ebpf failover trace]   x.md}"},
		{"-100k=false -size 100000,5,5", "{false true false [5 100000] [5 100000] "},
		{"-api=false", "{false false false [5000 10000] "},
		{"-mode iptables -only new", "[iptables] new  }"},
		{"-mode magic", `"magic" is none of nftables`},
		{"-only slow", "want one of start"},
		{"-only new -out x.md", "would lose the other rows"},
		{"-size 5k", `"5k" is not a number`},
		{"-size 0", `"0" is not a number`},
		{"fast", "no arguments but flags"},
	} {
		o, err := parse(strings.Fields(c.args))
		got := fmt.Sprint(o)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%q: %s, want %s", c.args, got, c.want)
		}
	}
}
