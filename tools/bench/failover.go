package main

import (
	"fmt"
	"strings"
)

// failoverJobs cut a node off under load, in the real binary's lab, of the peer, too.
func failoverJobs(o options) []job {
	pattern := "^BenchmarkFailover$"
	if o.quick {
		pattern += "/^nftables$/^drop$/^avoid$"
	}
	return []job{{pkg: inProgram, pattern: pattern, times: 1, rounds: 1, peer: o.peer}}
}

// failoverRows compare with the same load and failover off, and with the upstream program.
func failoverRows(f figures) (all []row) {
	cuts := map[string]string{"drop": "drops all packets", "link": "has its link down"}
	for _, mode := range []string{"nftables", "iptables", "ipvs", "ebpf"} {
		all = append(all, idleRows(f, mode)...)
		for _, cut := range []string{"drop", "link"} {
			all = append(all, cutRows(f, mode, cut, cuts[cut])...)
		}
	}
	return all
}

// idleRows compare failover with failover off while nothing is wrong; none without such figures.
func idleRows(f figures, mode string) []row {
	name := "Failover/" + mode + "/none/"
	value := func(setting, unit string) float64 { return f.median(inProgram, name+setting, unit) }
	if len(f.get(inProgram, name+"avoid", "p50-ms")) == 0 || len(f.get(inProgram, name+"off", "p50-ms")) == 0 {
		return nil
	}
	work := "failover: nothing is wrong, 200 connections a second, mode " + mode + ", beside failover off"
	return []row{newRow(work, "10",
		fmt.Sprintf("p50 %s and %s, p99 %s and %s", amount(value("avoid", "p50-ms"), "ms"),
			amount(value("off", "p50-ms"), "ms"), amount(value("avoid", "p99-ms"), "ms"),
			amount(value("off", "p99-ms"), "ms")),
		limit{"p50 of connects", 1.1, "×", value("avoid", "p50-ms") / value("off", "p50-ms")},
		limit{"processor time of the proxy, more by", 5, "ms/s",
			max(0, value("avoid", "cpu-ms/s")-value("off", "cpu-ms/s"))},
		limit{"probes", 0, "", value("avoid", "probes")})}
}

// cutRows are those of one way to cut a node off; none if it was not measured.
func cutRows(f figures, mode, cut, how string) []row {
	name := "Failover/" + mode + "/" + cut + "/"
	value := func(setting, unit string) float64 { return f.median(inProgram, name+setting, unit) }
	if len(f.get(inProgram, name+"avoid", "slowest-s")) == 0 {
		return nil
	}
	var others []string
	for _, o := range []struct{ name, setting string }{{"failover off", "off"}, {"upstream", "upstream"}} {
		if len(f.get(inProgram, name+o.setting, "slowest-s")) > 0 {
			others = append(others, fmt.Sprintf("%s: %.0f s, %.0f %% fail after 40 s", o.name,
				value(o.setting, "slowest-s"), value(o.setting, "failed-%")))
		}
	}
	work := "failover: a node " + how + " under 200 connections a second, mode " + mode
	return []row{
		newRow(work+": connects in the minute after", "10", strings.Join(others, "; "),
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
