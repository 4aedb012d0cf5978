package main

import "fmt"

// ipvsKernel is the kernel of the VM in which mode ipvs is measured: not every machine has IPVS.
const ipvsKernel = "6.12"

// ipvsJobs measure in one VM. It is emulated, so its clock is for comparisons.
func ipvsJobs(o options) []job {
	pattern, times := "^BenchmarkIPVS$/^services=(100|1000|10000)$", 500
	if o.quick {
		pattern, times = "^BenchmarkIPVS$/^services=(100|1000)$", 100
	}
	return []job{{pkg: inIPVS, pattern: pattern, times: times, rounds: 1, vm: ipvsKernel}}
}

// ipvsRows counts the requests of a change to the kernel, and compares sizes within the run.
func ipvsRows(f figures) (all []row) {
	sizes := f.sizes(inIPVS, "IPVS", "")
	value := func(n int, unit string) float64 { return f.median(inIPVS, fmt.Sprintf("IPVS/services=%d", n), unit) }
	const change = "ipvs: one endpoint changes, in the plane, in a VM"
	for _, n := range sizes {
		all = append(all, newRow(change, number(n), fmt.Sprintf("%s; %s of CPU there",
			amount(value(n, "sent-B/op"), "bytes"), amount(value(n, "cpu-µs/op"), "µs")),
			limit{"", 4, "messages", value(n, "messages/op")}))
	}
	all = append(all, growthRow(change+": CPU", sizes, func(n int) float64 { return value(n, "cpu-µs/op") })...)
	for _, n := range sizes {
		all = append(all, newRow("ipvs: first sync, in a VM", number(n),
			fmt.Sprintf("%s a Service of ten backends, %s; %s of CPU there",
				amount(value(n, "messages/service"), "messages"), amount(value(n, "sent-B/service"), "bytes"),
				amount(value(n, "sync-cpu-ms"), "ms"))))
	}
	for _, n := range sizes {
		if first := value(n, "first-µs"); first > 0 {
			all = append(all, newRow("ipvs: a connection to the last Service against the first, in a VM", number(n),
				"", limit{"", 1.1, "×", value(n, "last-µs") / first}))
		}
	}
	return all
}
