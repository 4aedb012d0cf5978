package main

import "fmt"

// tables is iptables mode with one of the back ends of iptables.
type tables struct {
	benchmark string
	name      string
	start     float64 // how many ms a first sync may take
	judged    bool    // whether changes have a goal
}

var (
	iptablesNFT    = tables{"IPTables", "iptables-nft", 7000, true}
	iptablesLegacy = tables{"IPTablesLegacy", "iptables-legacy", 4000, false}
)

func (b tables) rows(f figures) (all []row) {
	for _, operation := range []string{"start", "change", "new", "connect", "cpu", "memory"} {
		of := operation
		switch operation {
		case "cpu":
			of = "change"
		case "memory":
			of = "start"
		}
		for _, n := range f.sizes(inMeasure, b.benchmark, "/"+of) {
			all = append(all, b.row(at{f, n, fmt.Sprintf("%s/services=%d/", b.benchmark, n), number(n)}, operation))
		}
	}
	return all
}

func (b tables) row(a at, operation string) row {
	// change makes a row of a time that starts with an API write.
	change := func(work, operation string, most float64) row {
		p50, p99 := a.value(operation, "p50-ms"), amount(a.value(operation, "p99-ms"), "ms")
		if !b.judged {
			return newRow(work, a.where, fmt.Sprintf("p50 %s (p99 %s; %s)", amount(p50, "ms"), p99,
				a.writePart(operation)))
		}
		return newRow(work, a.where, fmt.Sprintf("p99 %s; %s", p99, a.writePart(operation)),
			limit{"p50", most, "ms", p50})
	}
	switch work := b.name + ": "; operation {
	case "start":
		return a.startRow(work, b.start)
	case "change":
		return change(work+"API write → a connection reaches the changed endpoint", "change", 80)
	case "new":
		return change(work+"API write of a new service and its slice → it answers", "new", 120)
	case "connect":
		more := fmt.Sprintf("%s, %s", amount(a.value("connect", "first-us"), "µs"),
			amount(a.value("connect", "last-us"), "µs"))
		return newRow(work+"connection set-up, the last service against the first", a.where, more,
			limit{"", 1.1, "×", a.value("connect", "ratio")})
	case "cpu":
		return newRow(work+"CPU per change, children included", a.where, "", a.limit("", "change", "cpu-ms/op", 80))
	default:
		return a.memoryRow(work, 90)
	}
}
