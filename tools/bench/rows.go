package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// row is one line of the table.
type row struct {
	work     string
	services string
	must     string
	now      string
	ok       bool
}

// limit is a figure that must not be more than most.
type limit struct {
	name string // before the figure; may be ""
	most float64
	unit string // ms and µs become s and ms where that reads better
	now  float64
}

func (l limit) String() string { return strings.TrimSpace(l.name + " " + amount(l.now, l.unit)) }
func (l limit) must() string   { return strings.TrimSpace(l.name + " ≤ " + amount(l.most, l.unit)) }

func (l limit) kept() bool { return l.now <= l.most }

// floor is a ratio that must not be less than least.
type floor struct{ least, now float64 }

func (f floor) String() string { return amount(f.now, "×") }
func (f floor) must() string   { return "≥ " + amount(f.least, "×") }
func (f floor) kept() bool     { return f.now >= f.least }

// bound is a figure that is judged.
type bound interface {
	fmt.Stringer
	must() string
	kept() bool
}

// newRow judges the limits; more is appended to the figures.
func newRow(work, services, more string, limits ...bound) row {
	r := row{work: work, services: services, ok: true}
	if len(limits) == 0 {
		return row{work: work, services: services, must: "–", now: more, ok: true}
	}
	var must, now []string
	for _, l := range limits {
		must, now = append(must, l.must()), append(now, l.String())
		r.ok = r.ok && l.kept()
	}
	r.must, r.now = strings.Join(must, ", "), strings.Join(now, ", ")
	if more != "" {
		r.now += " (" + more + ")"
	}
	return r
}

// rowsOf makes the rows of a mode's table; mode compare has a table of its own ([comparison]).
var rowsOf = map[string]func(figures) []row{
	"nftables": func(f figures) []row { return slices.Concat(pureRows(f), kernelRows(f), serverRows(f)) },
	"iptables": iptablesNFT.rows, "iptables-legacy": iptablesLegacy.rows, "userspace": userspaceRows, "ipvs": ipvsRows,
	"ebpf": ebpfRows, "failover": failoverRows, "trace": traceRows,
}

// maxGrowth is by how much one change may cost more among the most services than among the fewest.
const maxGrowth = 1.5

// growthRow compares the first and the last size.
func growthRow(work string, sizes []int, value func(size int) float64) []row {
	if len(sizes) < 2 {
		return nil
	}
	first, last := sizes[0], sizes[len(sizes)-1]
	return []row{newRow(work, number(last)+" against "+number(first), "",
		limit{"", maxGrowth, "×", value(last) / value(first)})}
}

// pureRows adds up the halves of the path to the kernel. Both benchmarks replace the frontend in
// the table, so that counts twice.
func pureRows(f figures) (all []row) {
	const work = "one endpoint changes: policy, table, rendering"
	both := func(size int, unit string) float64 {
		name := fmt.Sprintf("/services=%d", size)
		return least(f.get(inPolicy, "EndpointChange"+name, unit)) +
			least(f.get(inNftables, "EndpointRender"+name, unit))
	}
	sizes := f.sizes(inPolicy, "EndpointChange", "")
	for _, n := range sizes {
		all = append(all, newRow(work, number(n), "", limit{"", 20, "µs", both(n, "ns/op") / 1000},
			limit{"", 4, "KB", both(n, "B/op") / 1000}))
	}
	return append(all, growthRow(work, sizes, func(size int) float64 { return both(size, "ns/op") })...)
}

func kernelRows(f figures) (all []row) {
	const work = "the same into the kernel, one netlink transaction"
	value := func(size int) float64 {
		return least(f.get(inNftables, fmt.Sprintf("EndpointIntoKernel/services=%d", size), "ns/op"))
	}
	sizes := f.sizes(inNftables, "EndpointIntoKernel", "")
	for _, n := range sizes {
		all = append(all, newRow(work, number(n), "", limit{"", 25, "ms", value(n) / 1e6}))
	}
	return append(all, growthRow(work, sizes, value)...)
}

// at is where an operation of the proxy with an API server was measured.
type at struct {
	figures
	services int
	prefix   string // of the benchmarks' names, up to the operation
	where    string // for the table
}

// value returns the value of an operation; 0 if not measured.
func (a at) value(operation, unit string) float64 {
	return a.median(inMeasure, a.prefix+operation, unit)
}

// limit judges a value that is in ms.
func (a at) limit(name, operation, unit string, most float64) limit {
	return limit{name, most, "ms", a.value(operation, unit)}
}

// writePart is how much of a time from an API write on the API server took, until it answered the
// writer.
func (a at) writePart(operation string) string {
	return fmt.Sprintf("API server: p50 %s, p99 %s",
		amount(a.value(operation, "write-p50-ms"), "ms"), amount(a.value(operation, "write-p99-ms"), "ms"))
}

// serverRows makes a row of each number of services with a measurement of an operation with an API
// server.
func serverRows(f figures) (all []row) {
	for _, r := range []struct {
		operation string
		row       func(a at) row
	}{
		{"change", func(a at) row {
			return newRow("API write → a connection reaches the changed endpoint", a.where, a.writePart("change"),
				a.limit("p50", "change", "p50-ms", 40), a.limit("p99", "change", "p99-ms", 100))
		}},
		{"new", func(a at) row {
			return newRow("API write of a new service and its slice → it answers", a.where, a.writePart("new"),
				a.limit("p50", "new", "p50-ms", 50), a.limit("p99", "new", "p99-ms", 120))
		}},
		{"start", func(a at) row { return a.startRow("", bySize(a.services, 1500, 3000, 20_000)) }},
		{"change", func(a at) row {
			return newRow("CPU per change", a.where, "", a.limit("", "change", "cpu-ms/op", 5))
		}},
		{"start", func(a at) row { return a.memoryRow("", bySize(a.services, 90, 130, 700)) }},
	} {
		for _, n := range f.sizes(inMeasure, "APIServer", "/"+r.operation) {
			all = append(all, r.row(at{f, n, fmt.Sprintf("APIServer/services=%d/", n), number(n)}))
		}
	}
	return append(all, conntrackRows(f)...)
}

// conntrackRows judge the processor time of changes beside conntrack tables of different lengths:
// it must not follow the length.
func conntrackRows(f figures) (all []row) {
	const name = "Conntrack"
	for _, work := range []struct{ name, operation string }{
		{"CPU per change", "change"}, {"CPU per new Service", "new"},
	} {
		for _, entries := range []int{0, 500_000} {
			after := fmt.Sprintf("/entries=%d/%s", entries, work.operation)
			for _, n := range f.sizes(inMeasure, name, after) {
				a := at{f, n, fmt.Sprintf("%s/services=%d", name, n), number(n) + ", stand-in"}
				title := fmt.Sprintf("%s, with %s conntrack entries", work.name, number(entries))
				all = append(all, newRow(title, a.where, "", a.limit("", after, "cpu-ms/op", 1.5)))
			}
		}
	}
	return all
}

// startRow makes the row of a start; prefix begins the description of the work.
func (a at) startRow(prefix string, most float64) row {
	more := fmt.Sprintf("longest %s; %s of CPU", amount(a.value("start", "max-ms"), "ms"),
		amount(a.value("start", "cpu-ms/op"), "ms"))
	return newRow(prefix+"process start → the last service answers", a.where, more,
		a.limit("", "start", "p50-ms", most))
}

// memoryRow makes the row of the largest memory; prefix begins the description of the work.
func (a at) memoryRow(prefix string, most float64) row {
	peak := max(a.value("start", "peak-MiB"), a.value("change", "peak-MiB"), a.value("new", "peak-MiB"))
	return newRow(prefix+"peak memory, resident", a.where, "", limit{"", most, "MiB", peak})
}

// bySize is the limit for n services; the issue gives it for 5,000, 10,000 and 100,000.
func bySize(n int, at5k, at10k, at100k float64) float64 {
	switch {
	case n <= 5000:
		return at5k
	case n <= 10_000:
		return at10k
	}
	return at100k
}

// amount writes a figure with two digits, more where there is a whole number of them.
func amount(v float64, unit string) string {
	switch {
	case unit == "ms" && v >= 1000:
		v, unit = v/1000, "s"
	case unit == "ms" && v < 1:
		v, unit = v*1000, "µs"
	}
	decimals := 0
	if v < 10 {
		decimals = 1
	}
	if v < 1 || unit == "s" || unit == "×" {
		decimals = 2
	}
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text + " " + unit
}

// number writes 10000 as 10,000.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
