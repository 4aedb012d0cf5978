package main

import "fmt"

// failoverJobs cut a node off under load, in the real binary's lab.
func failoverJobs(o options) []job {
	pattern := "^BenchmarkFailover$"
	if o.quick {
		pattern += "/^nftables$/^drop$/^avoid$"
	}
	return []job{{pkg: inProgram, pattern: pattern, times: 1, rounds: 1}}
}

// failoverRows compare with the same load and failover off, in which other versions of kube-proxy
// always are.
func failoverRows(f figures) (all []row) {
	cuts := map[string]string{"drop": "drops all packets", "link": "has its link down"}
	for _, mode := range []string{"nftables", "iptables", "ipvs", "ebpf"} {
		for _, cut := range []string{"drop", "link"} {
			all = append(all, cutRows(f, mode, cut, cuts[cut])...)
		}
	}
	return all
}

// cutRows are those of one way to cut a node off; none if it was not measured.
func cutRows(f figures, mode, cut, how string) []row {
	name := "Failover/" + mode + "/" + cut + "/"
	value := func(setting, unit string) float64 { return f.median(inProgram, name+setting, unit) }
	if len(f.get(inProgram, name+"avoid", "slowest-s")) == 0 {
		return nil
	}
	off := ""
	if len(f.get(inProgram, name+"off", "slowest-s")) > 0 {
		off = fmt.Sprintf("failover off: %.0f s, %.0f %% fail after 40 s", value("off", "slowest-s"),
			value("off", "failed-%"))
	}
	work := "failover: a node " + how + " under 200 connections a second, mode " + mode
	return []row{
		newRow(work+": connects in the minute after", "10", off,
			limit{"slowest", 3300, "ms", 1000 * value("avoid", "slowest-s")},
			limit{"failed", 0, "%", value("avoid", "failed-%")}),
		newRow(work+": those from 2 s after it", "10",
			fmt.Sprintf("slowest of %.0f: %s, direct %s", value("avoid", "connections"),
				amount(value("avoid", "after-2s-ms"), "ms"), amount(value("avoid", "direct-ms"), "ms")),
			limit{"slower than direct by", 50, "ms",
				max(0, value("avoid", "after-2s-ms")-value("avoid", "direct-ms"))}),
		newRow(work+": the node returns", "10", "",
			limit{"used after", 10_000, "ms", 1000 * value("avoid", "return-s")}),
	}
}
