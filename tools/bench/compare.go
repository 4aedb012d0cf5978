package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// sizedJob is one size of a mode of one of the programs.
type sizedJob struct {
	peer            bool
	mode            string
	services        int
	starts, changes int
	limit           time.Duration // of a start, and of an answer
}

// compareJobs measure this program in each mode and the peer in its own, at an API server that
// answers at once. The figures that most readers look at come first: a run with -for may end early.
func compareJobs(o options) (jobs []job) {
	const minute = time.Minute
	all := []sizedJob{
		{false, "nftables", 5000, 3, 200, minute}, {false, "nftables", 20_000, 3, 200, minute},
		{true, "nftables", 5000, 1, 20, 2 * minute}, {true, "nftables", 20_000, 1, 6, 4 * minute},
		{false, "nftables", 100_000, 1, 200, 2 * minute},
		{false, "ebpf", 5000, 3, 200, minute}, {false, "ebpf", 20_000, 3, 200, minute},
		{false, "ebpf", 100_000, 1, 200, 2 * minute},
		{false, "iptables", 5000, 1, 40, 2 * minute}, {false, "iptables", 20_000, 1, 20, 3 * minute},
		{true, "iptables", 5000, 1, 20, 10 * minute},
		{true, "nftables", 100_000, 1, 3, 4 * minute},
		{false, "iptables", 100_000, 1, 5, 4 * minute},
	}
	tenants := []sizedJob{
		{false, "nftables", 5000, 1, 300, minute}, {false, "ebpf", 5000, 1, 300, minute},
		{false, "iptables", 5000, 1, 40, minute}, {true, "nftables", 5000, 1, 10, 2 * minute},
	}
	for i, of := range [][]sizedJob{all[:5], tenants, all[5:]} {
		for _, j := range of {
			if j.peer && o.peer == "" {
				continue
			}
			if o.quick {
				j.services, j.changes = max(100, j.services/100), 5
			}
			jobs = append(jobs, j.job(o, i == 1))
		}
	}
	return jobs
}

// job is the `go test -bench` of it; tenant measures changes beside a hostile tenant.
func (s sizedJob) job(o options, tenant bool) job {
	name, operations := "StandIn", "^(start|change|new|connect)$"
	if tenant {
		name, operations = "Tenant", "^change$"
	}
	j := job{dir: "test/e2e", pkg: inMeasure, times: s.changes, rounds: 1, args: []string{"-services",
		fmt.Sprint(s.services), "-starts", fmt.Sprint(s.starts), "-patience", s.limit.String()}}
	if s.peer {
		name, j.peer = "Peer"+name, o.peer
	}
	j.pattern = fmt.Sprintf("^Benchmark%s$/^%s$/^services=/%s", name, s.mode, operations)
	return j
}

// readmeSizes are the numbers of Services in README.
var readmeSizes = []int{5000, 20_000}

// column is a program in a mode.
type column struct{ head, prefix, mode string }

var columns = []column{
	{"nftables", "", "nftables"}, {"ebpf", "", "ebpf"}, {"iptables", "", "iptables"},
	{"upstream nftables", "Peer", "nftables"}, {"upstream iptables", "Peer", "iptables"},
}

// compared is a figure of the comparison, a line of the table for each size.
type compared struct {
	what            string
	name, operation string  // of the benchmark
	unit            string  // of the figure
	in              string  // the unit for readers
	goal            float64 // of this program in mode nftables; 0 is none
}

var comparisons = []compared{
	{"process start → the last Service answers", "StandIn", "start", "p50-ms", "ms", 0},
	{"… its processor time", "StandIn", "start", "cpu-ms/op", "ms", 0},
	{"changed endpoint → a connection reaches it, p50", "StandIn", "change", "p50-ms", "ms", 0},
	{"… p99", "StandIn", "change", "p99-ms", "ms", 0},
	{"… processor time of the change", "StandIn", "change", "cpu-ms/op", "ms", 0},
	{"new Service → it answers, p50", "StandIn", "new", "p50-ms", "ms", 0},
	{"… p99", "StandIn", "new", "p99-ms", "ms", 0},
	{"… processor time", "StandIn", "new", "cpu-ms/op", "ms", 0},
	{"peak memory, resident", "StandIn", "new", "peak-MiB", "MiB", 0},
	{"connect from a pod, the slowest of 20 Services", "StandIn", "connect", "last-us", "µs", 0},
	{"changed endpoint beside a hostile tenant → a connection reaches it, p50", "Tenant", "change", "p50-ms", "ms", 0},
	{"… p99", "Tenant", "change", "p99-ms", "ms", 0},
	{"… the proxy's own share, p50 (goal in mode nftables: ≤ 1 ms)", "Tenant", "change", "own-p50-ms", "ms", 1},
	{"… the proxy's own share, p99 (goal in mode nftables: ≤ 5 ms)", "Tenant", "change", "own-p99-ms", "ms", 5},
}

// cell is the figure of a program, or the reason for its absence.
func (c compared) cell(f figures, col column, services int) string {
	name := fmt.Sprintf("%s%s/%s/services=%d/", col.prefix, c.name, col.mode, services)
	if values := f.get(inMeasure, name+c.operation, c.unit); len(values) > 0 {
		v := median(values)
		if c.goal > 0 && col == columns[0] && v > c.goal {
			return "**missed:** " + amount(v, c.in)
		}
		return amount(v, c.in)
	}
	over := f.get(inMeasure, name+"start", "over-ms")
	if len(over) > 0 && c.operation == "start" && c.unit == "p50-ms" {
		return "not in " + amount(median(over), "ms")
	}
	return noFigure
}

const noFigure = "–"

// sizes are those at which the figure of some program was measured.
func (c compared) sizes(f figures) (all []int) {
	for _, col := range columns {
		all = append(all, f.sizes(inMeasure, col.prefix+c.name+"/"+col.mode, "/"+c.operation)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// comparison returns the table of both programs, of some sizes or all. Lines without a figure are
// left out.
func comparison(f figures, only ...int) string {
	var b strings.Builder
	b.WriteString("| |")
	b.WriteString(" Services |")
	for _, col := range columns {
		b.WriteString(" " + col.head + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", 1+len(columns)) + "\n")
	for _, c := range comparisons {
		what := c.what
		for _, n := range c.sizes(f) {
			if len(only) > 0 && !slices.Contains(only, n) {
				continue
			}
			var cells []string
			for _, col := range columns {
				cells = append(cells, c.cell(f, col, n))
			}
			if len(slices.Compact(slices.Clone(cells))) == 1 && cells[0] == noFigure {
				continue
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", what, number(n), strings.Join(cells, " | "))
			what = ""
		}
	}
	return b.String()
}
