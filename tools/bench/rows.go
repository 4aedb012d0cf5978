package main

import (
	"fmt"
	"strconv"
	"strings"
)

// row is one line of the table.
type row struct {
	work     string
	services string
	upstream string // upstream v1.36.3's value, measured with the same number of services on such a machine; for scale
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
func newRow(work, services, upstream, more string, limits ...bound) row {
	r := row{work: work, services: services, upstream: upstream, ok: true}
	if len(limits) == 0 {
		return row{work: work, services: services, upstream: upstream, must: "–", now: more, ok: true}
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

// rows is the table of all results.
func rows(f figures) []row {
	var all []row
	for _, add := range []func(figures) []row{pureRows, kernelRows, serverRows, tablesRows, userspaceRows, ipvsRows,
		ebpfRows, failoverRows, traceRows} {
		all = append(all, add(f)...)
	}
	return all
}

// maxGrowth is by how much one change may cost more among the most services than among the fewest.
const maxGrowth = 1.5

// growthRow compares the first and the last size.
func growthRow(work string, sizes []int, value func(size int) float64) []row {
	if len(sizes) < 2 {
		return nil
	}
	first, last := sizes[0], sizes[len(sizes)-1]
	return []row{newRow(work, number(last)+" against "+number(first), "–", "",
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
		all = append(all, newRow(work, number(n), "–", "", limit{"", 20, "µs", both(n, "ns/op") / 1000},
			limit{"", 4, "KB", both(n, "B/op") / 1000}))
	}
	return append(all, growthRow(work, sizes, func(size int) float64 { return both(size, "ns/op") })...)
}

func kernelRows(f figures) (all []row) {
	const work = "the same into the kernel, one netlink transaction"
	upstream := map[int]string{1000: "17 ms", 10_000: "79 ms", 100_000: "145 ms with 20,000"}
	value := func(size int) float64 {
		return least(f.get(inNftables, fmt.Sprintf("EndpointIntoKernel/services=%d", size), "ns/op"))
	}
	sizes := f.sizes(inNftables, "EndpointIntoKernel", "")
	for _, n := range sizes {
		all = append(all, newRow(work, number(n), scale(upstream, n), "", limit{"", 25, "ms", value(n) / 1e6}))
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

// serverRows makes a row of each number of services with a measurement of an operation, with a real
// API server and with a stand-in.
func serverRows(f figures) (all []row) {
	for _, r := range []struct {
		operation string
		upstream  map[int]string
		row       func(a at, upstream string) row
	}{
		{"change", map[int]string{5000: "p50 1.46 s", 10_000: "p50 3.98 s"}, func(a at, upstream string) row {
			return newRow("API write → a connection reaches the changed endpoint", a.where, upstream,
				a.writePart("change"), a.limit("p50", "change", "p50-ms", 40), a.limit("p99", "change", "p99-ms", 100))
		}},
		{"new", map[int]string{5000: "p50 3.1 s", 10_000: "p50 8.1 s"}, func(a at, upstream string) row {
			return newRow("API write of a new service and its slice → it answers", a.where, upstream,
				a.writePart("new"), a.limit("p50", "new", "p50-ms", 50), a.limit("p99", "new", "p99-ms", 120))
		}},
		{"start", map[int]string{5000: "3.9 s", 10_000: "17 s", 100_000: "others: 16 min 44 s with 44,000"},
			func(a at, upstream string) row {
				return a.startRow("", upstream, bySize(a.services, 1500, 3000, 20_000))
			}},
		{"change", map[int]string{5000: "2.1 s", 10_000: "6.1 s"}, func(a at, upstream string) row {
			return newRow("CPU per change", a.where, upstream, "", a.limit("", "change", "cpu-ms/op", 5))
		}},
		{"start", map[int]string{5000: "285 MiB", 10_000: "505 MiB"}, func(a at, upstream string) row {
			return a.memoryRow("", upstream, bySize(a.services, 90, 130, 700))
		}},
	} {
		for _, server := range []struct{ name, where string }{{"APIServer", ""}, {"StandIn", ", stand-in"}} {
			for _, n := range f.sizes(inMeasure, server.name, "/"+r.operation) {
				a := at{f, n, fmt.Sprintf("%s/services=%d/", server.name, n), number(n) + server.where}
				all = append(all, r.row(a, scale(r.upstream, n)))
			}
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
				all = append(all, newRow(title, a.where, "–", "", a.limit("", after, "cpu-ms/op", 1.5)))
			}
		}
	}
	return all
}

// startRow makes the row of a start; prefix begins the description of the work.
func (a at) startRow(prefix, upstream string, most float64) row {
	more := fmt.Sprintf("longest %s; %s of CPU", amount(a.value("start", "max-ms"), "ms"),
		amount(a.value("start", "cpu-ms/op"), "ms"))
	return newRow(prefix+"process start → the last service answers", a.where, upstream, more,
		a.limit("", "start", "p50-ms", most))
}

// memoryRow makes the row of the largest memory; prefix begins the description of the work.
func (a at) memoryRow(prefix, upstream string, most float64) row {
	peak := max(a.value("start", "peak-MiB"), a.value("change", "peak-MiB"), a.value("new", "peak-MiB"))
	return newRow(prefix+"peak memory, resident", a.where, upstream, "", limit{"", most, "MiB", peak})
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

func scale(upstream map[int]string, n int) string {
	if s, ok := upstream[n]; ok {
		return s
	}
	return "–"
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
