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
	upstream string // what upstream v1.36.3 took, measured with the same number of services on such a machine; for scale
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

// newRow judges the limits; more is appended to the figures.
func newRow(work, services, upstream, more string, limits ...limit) row {
	r := row{work: work, services: services, upstream: upstream, ok: true}
	var must, now []string
	for _, l := range limits {
		must, now = append(must, l.must()), append(now, l.String())
		r.ok = r.ok && l.now <= l.most
	}
	r.must, r.now = strings.Join(must, ", "), strings.Join(now, ", ")
	if more != "" {
		r.now += " (" + more + ")"
	}
	return r
}

// rows is the table of all that was measured.
func rows(f figures) []row {
	var all []row
	for _, add := range []func(figures) []row{pureRows, kernelRows, changeRows, newServiceRows, startRows, cpuRows, memoryRows} {
		all = append(all, add(f)...)
	}
	return all
}

// mostGrowth is by how much one change may cost more among the most services than among the fewest.
const mostGrowth = 1.5

// growthRow compares the first and the last size.
func growthRow(work string, sizes []int, value func(size int) float64) []row {
	if len(sizes) < 2 {
		return nil
	}
	first, last := sizes[0], sizes[len(sizes)-1]
	return []row{newRow(work, number(last)+" against "+number(first), "–", "", limit{"", mostGrowth, "×", value(last) / value(first)})}
}

// pureRows adds up the halves of the way to the kernel. Both benchmarks replace the row in the table, so that is counted twice.
func pureRows(f figures) (all []row) {
	const work = "one endpoint changes: policy, table, rendering"
	both := func(size int, unit string) float64 {
		name := fmt.Sprintf("/services=%d", size)
		return least(f.get(inPolicy, "EndpointChange"+name, unit)) + least(f.get(inNftables, "EndpointRender"+name, unit))
	}
	sizes := f.sizes(inPolicy, "EndpointChange", "")
	for _, n := range sizes {
		all = append(all, newRow(work, number(n), "–", "", limit{"", 20, "µs", both(n, "ns/op") / 1000}, limit{"", 4, "KB", both(n, "B/op") / 1000}))
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

func changeRows(f figures) []row {
	upstream := map[int]string{5000: "p50 1.46 s", 10_000: "p50 3.98 s"}
	return apiRows(f, "change", func(n int, get func(unit string) float64) row {
		return newRow("API write → a connection reaches the changed endpoint", number(n), scale(upstream, n), writePart(get),
			limit{"p50", 40, "ms", get("p50-ms")}, limit{"p99", 100, "ms", get("p99-ms")})
	})
}

func newServiceRows(f figures) []row {
	upstream := map[int]string{5000: "p50 3.1 s", 10_000: "p50 8.1 s"}
	return apiRows(f, "new", func(n int, get func(unit string) float64) row {
		return newRow("API write of a new service and its slice → it answers", number(n), scale(upstream, n), writePart(get),
			limit{"p50", 50, "ms", get("p50-ms")}, limit{"p99", 120, "ms", get("p99-ms")})
	})
}

// writePart is how much of a time from an API write on the API server took, until it answered the writer.
func writePart(get func(unit string) float64) string {
	return fmt.Sprintf("of that the API server: p50 %s, p99 %s", amount(get("write-p50-ms"), "ms"), amount(get("write-p99-ms"), "ms"))
}

func startRows(f figures) []row {
	upstream := map[int]string{5000: "3.9 s", 10_000: "17 s", 100_000: "others: 16 min 44 s with 44,000"}
	return apiRows(f, "start", func(n int, get func(unit string) float64) row {
		return newRow("process start → the last service answers", number(n), scale(upstream, n),
			fmt.Sprintf("longest %s; %s of CPU", amount(get("max-ms"), "ms"), amount(get("cpu-ms/op"), "ms")),
			limit{"", bySize(n, 1500, 3000, 20_000), "ms", get("p50-ms")})
	})
}

func cpuRows(f figures) []row {
	upstream := map[int]string{5000: "2.1 s", 10_000: "6.1 s"}
	return apiRows(f, "change", func(n int, get func(unit string) float64) row {
		return newRow("CPU per change", number(n), scale(upstream, n), "", limit{"", 5, "ms", get("cpu-ms/op")})
	})
}

func memoryRows(f figures) []row {
	upstream := map[int]string{5000: "285 MiB", 10_000: "505 MiB"}
	return apiRows(f, "start", func(n int, get func(unit string) float64) row {
		peak := get("peak-MiB")
		for _, after := range []string{"change", "new"} { // the same process later
			for _, v := range f.get(inMeasure, fmt.Sprintf("APIServer/services=%d/%s", n, after), "peak-MiB") {
				peak = max(peak, v)
			}
		}
		return newRow("peak memory, resident", number(n), scale(upstream, n), "", limit{"", bySize(n, 90, 130, 700), "MiB", peak})
	})
}

// apiRows makes a row of each size at which an operation of BenchmarkAPIServer was measured.
func apiRows(f figures, operation string, make func(n int, get func(unit string) float64) row) (all []row) {
	for _, n := range f.sizes(inMeasure, "APIServer", "/"+operation) {
		all = append(all, make(n, func(unit string) float64 {
			return median(f.get(inMeasure, fmt.Sprintf("APIServer/services=%d/%s", n, operation), unit))
		}))
	}
	return all
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
