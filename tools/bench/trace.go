package main

// traceJobs measure `kube-proxy trace`, as a whole command, against a proxy with 10,000 Services in
// mode nftables.
func traceJobs(o options) []job {
	times := 100
	if o.quick {
		times = 20
	}
	return []job{{pkg: inProgram, pattern: "^BenchmarkAskTrace$", times: times, rounds: 1}}
}

func traceRows(f figures) []row {
	p50, fastest := f.get(inProgram, "AskTrace/nftables/trace", "ms-p50"), f.get(inProgram, "AskTrace/nftables/trace",
		"ms-min")
	if len(p50) == 0 || len(fastest) == 0 {
		return nil
	}
	return []row{newRow("trace: the command, with the kernel's own answer and the open connections", number(10_000),
		"fastest "+amount(least(fastest), "ms"), limit{"p50", 50, "ms", median(p50)})}
}
