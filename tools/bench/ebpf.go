package main

import "fmt"

const inEBPF = "./plane/ebpf"

// ebpfJobs measure sockets that the programs connect, and the tables.
func ebpfJobs(o options) []job {
	turns, sizes := 200, "100|10000|100000"
	if o.quick {
		turns, sizes = 20, "100|10000"
	}
	return []job{
		{pkg: inEBPF, pattern: "^BenchmarkSockets$", times: turns, rounds: 1},
		{pkg: inEBPF, pattern: "^BenchmarkTables$/^services=(" + sizes + ")$", times: 1000, rounds: 1},
	}
}

// ebpfRows compare with a direct connection, and with the packet path, measured by turns in the
// same run.
func ebpfRows(f figures) (all []row) {
	value := func(name, unit string) float64 { return f.median(inEBPF, name, unit) }
	for _, r := range []struct {
		work, name string
		most       float64
	}{
		{"connect and close, no entry in conntrack", "connect", 1.05},
		{"TCP, a byte each way", "tcp-rr", 1.02},
		{"TCP stream, 16 MiB", "stream", 1.02},
		{"UDP echo of an unconnected socket", "udp-echo", 1.1},
	} {
		name := "Sockets/" + r.name
		if len(f.get(inEBPF, name, "ebpf/direct")) == 0 {
			continue
		}
		all = append(all, newRow("ebpf: "+r.work+", pod to pod through a cluster IP against direct", number(10_000),
			fmt.Sprintf("mode nftables %s; direct %s", amount(value(name, "nftables/direct"), "×"),
				amount(value(name, "direct-µs"), "µs")), limit{"", r.most, "×", value(name, "ebpf/direct")}))
	}
	sizes := f.sizes(inEBPF, "Tables", "")
	at := func(n int, unit string) float64 { return value(fmt.Sprintf("Tables/services=%d", n), unit) }
	for _, n := range sizes {
		all = append(all, newRow("ebpf: one endpoint changes, in the plane, more than in mode nftables", number(n),
			"mode nftables "+amount(at(n, "change-nftables-µs"), "µs"),
			limit{"", 50, "µs", at(n, "change-more-µs")}, limit{"", 4, "writes", at(n, "writes/change")}))
	}
	all = append(all, growthRow("ebpf: one endpoint changes, in the plane", sizes,
		func(n int) float64 { return at(n, "change-more-µs") })...)
	for _, n := range sizes {
		all = append(all, newRow("ebpf: first sync, CPU", number(n),
			fmt.Sprintf("%s in all, of that mode nftables %s; %s of the kernel's memory",
				amount(at(n, "first-ms"), "ms"), amount(at(n, "first-nftables-ms"), "ms"),
				amount(at(n, "kernel-MiB"), "MiB")),
			limit{"", bySize(n, 1500, 1500, 8000), "ms", at(n, "first-cpu-ms")}))
	}
	return all
}
