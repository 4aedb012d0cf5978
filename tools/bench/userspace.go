package main

import "fmt"

// userspaceJobs measure traffic through the proxy.
func userspaceJobs(o options) []job {
	turns, changes := 15, 2000
	if o.quick {
		turns, changes = 3, 100
	}
	return []job{
		{pkg: inProgram, pattern: "^BenchmarkUserspace$/^(stream|connections|udp)$", times: turns, rounds: 1},
		{pkg: inProgram, pattern: "^BenchmarkUserspace$/^(killed|memory-tcp|memory-udp)$", times: 1, rounds: 1},
		{pkg: inProgram, pattern: "^BenchmarkUserspaceChange$", times: changes, rounds: 1},
	}
}

// userspaceRows compares with direct traffic to the pod, measured by turns in the same run.
func userspaceRows(f figures) (all []row) {
	value := func(name, unit string) float64 { return f.median(inProgram, name, unit) }
	for _, r := range []struct {
		work, name, unit string
		least            float64
	}{
		{"TCP stream", "stream", "MB/s", 0.5},
		{"connections a second: connect, one byte each way, close", "connections", "conn/s", 0.45},
		{"UDP requests a second that are answered", "udp", "rr/s", 0.4},
	} {
		name := "Userspace/" + r.name
		if len(f.get(inProgram, name, "ratio")) == 0 {
			continue
		}
		all = append(all, newRow("userspace: "+r.work+", through the proxy against straight", "1",
			fmt.Sprintf("%.0f against %.0f %s", value(name, r.unit+"-proxied"), value(name, r.unit+"-direct"), r.unit),
			floor{r.least, value(name, "ratio")}))
	}
	if killed := "Userspace/killed"; len(f.get(inProgram, killed, "failed")) > 0 {
		all = append(all, newRow("userspace: a backend is killed under 200 connections a second: clients that see it",
			"1", fmt.Sprintf("of %.0f connections; p99 %s", value(killed, "connections"),
				amount(value(killed, "p99-ms"), "ms")), limit{"", 0, "failed", value(killed, "failed")}))
	}
	sizes := f.sizes(inProgram, "UserspaceChange", "")
	change := func(n int) float64 { return value(fmt.Sprintf("UserspaceChange/services=%d", n), "ns/op") / 1e6 }
	for _, n := range sizes {
		all = append(all, newRow("userspace: one endpoint changes, in the plane", number(n), "",
			limit{"", 1, "ms", change(n)}))
	}
	all = append(all, growthRow("userspace: one endpoint changes, in the plane", sizes, change)...)
	if tcp := "Userspace/memory-tcp"; len(f.get(inProgram, tcp, "MiB")) > 0 {
		all = append(all, newRow("userspace: resident memory with "+number(int(value(tcp, "connections")))+
			" open connections of TCP", "1",
			fmt.Sprintf("%s, %s each, %s each", amount(value(tcp, "MiB"), "MiB"), amount(value(tcp, "KiB/conn"), "KiB"),
				amount(value(tcp, "files/conn"), "descriptors"))))
	}
	if udp := "Userspace/memory-udp"; len(f.get(inProgram, udp, "MiB")) > 0 {
		all = append(all, newRow("userspace: resident memory with "+number(int(value(udp, "sessions")))+
			" sessions of UDP", "1", fmt.Sprintf("%s, %s each, %s in all", amount(value(udp, "MiB"), "MiB"),
			amount(value(udp, "B/session"), "bytes"), amount(value(udp, "files"), "descriptors"))))
	}
	return all
}
