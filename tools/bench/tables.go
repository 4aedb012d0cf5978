package main

import "fmt"

// tables is iptables mode with one of the back ends of iptables.
type tables struct {
	benchmark string
	name      string
	start     float64 // how many ms a first sync may take
	judged    bool    // whether the issue has a goal for changes
	known     known
}

// known has the values of upstream v1.36.3 with 5,000 services on such a machine.
type known struct{ start, change, create, connect, cpu, memory string }

var backends = []tables{
	{"IPTables", "iptables-nft", 7000, true, known{"6 min 27 s", "p50 470 ms", "p50 1.03 s", "walks 5,000 rules",
		"740 ms", "257 MiB"}},
	{"IPTablesLegacy", "iptables-legacy", 4000, false, known{"500 ms for the restore alone", "–", "–",
		"walks 5,000 rules", "–", "–"}},
}

// tablesRows returns the results of iptables mode; those of a peer in the same run replace the
// known values.
func tablesRows(f figures) (all []row) {
	for _, operation := range []string{"start", "change", "new", "connect", "cpu", "memory"} {
		for _, b := range backends {
			for _, n := range b.sizes(f, operation) {
				all = append(all, b.row(f, operation, n))
			}
		}
	}
	return all
}

// of returns the benchmark's operation for a row.
func of(operation string) string {
	switch operation {
	case "cpu":
		return "change"
	case "memory":
		return "start"
	}
	return operation
}

func (b tables) sizes(f figures, operation string) []int {
	return f.sizes(inMeasure, b.benchmark, "/"+of(operation))
}

func (b tables) row(f figures, operation string, n int) row {
	ours := at{f, n, fmt.Sprintf("%s/services=%d/", b.benchmark, n), number(n)}
	peer := at{f, n, fmt.Sprintf("Peer%s/services=%d/", b.benchmark, n), number(n)}
	k := b.known
	if n != 5000 {
		k = known{"–", "–", "–", "–", "–", "–"}
	}
	// upstream returns the peer's value, if measured.
	upstream := func(otherwise, prefix, operation, unit, in string) string {
		if v := peer.value(operation, unit); v > 0 {
			return prefix + amount(v, in) + ", this run"
		}
		return otherwise
	}
	// change makes a row of a time that starts with an API write; the issue has no goal for the
	// legacy back end.
	change := func(work, operation, known string, most float64) row {
		p50, p99 := ours.value(operation, "p50-ms"), amount(ours.value(operation, "p99-ms"), "ms")
		up := upstream(known, "p50 ", operation, "p50-ms", "ms")
		if !b.judged {
			return newRow(work, number(n), up, fmt.Sprintf("p50 %s (p99 %s; %s)", amount(p50, "ms"), p99,
				ours.writePart(operation)))
		}
		return newRow(work, number(n), up, fmt.Sprintf("p99 %s; %s", p99, ours.writePart(operation)),
			limit{"p50", most, "ms", p50})
	}
	switch work := b.name + ": "; operation {
	case "start":
		return ours.startRow(work, upstream(k.start, "", "start", "p50-ms", "ms"), b.start)
	case "change":
		return change(work+"API write → a connection reaches the changed endpoint", "change", k.change, 80)
	case "new":
		return change(work+"API write of a new service and its slice → it answers", "new", k.create, 120)
	case "connect":
		more := fmt.Sprintf("%s, %s", amount(ours.value("connect", "first-us"), "µs"),
			amount(ours.value("connect", "last-us"), "µs"))
		return newRow(work+"connection set-up, the last service against the first", number(n),
			upstream(k.connect, "", "connect", "ratio", "×"), more,
			limit{"", 1.1, "×", ours.value("connect", "ratio")})
	case "cpu":
		return newRow(work+"CPU per change, children included", number(n), upstream(k.cpu, "", "change", "cpu-ms/op",
			"ms"), "",
			ours.limit("", "change", "cpu-ms/op", 80))
	default:
		return ours.memoryRow(work, upstream(k.memory, "", "start", "peak-MiB", "MiB"), 90)
	}
}
