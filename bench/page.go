package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// page is the result of a run.
type page struct {
	machine   facts
	loadAfter string
	jobs      []job
	rows      []row
	quick     bool
}

var heads = []string{"work", "services", "upstream, for scale", "ours must reach", "now", "ok?"}

func (r row) cells() []string {
	ok := "yes"
	if !r.ok {
		ok = "NO"
	}
	return []string{r.work, r.services, r.upstream, r.must, r.now, ok}
}

// text is the page for a terminal.
func (p page) text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(heads, "\t"))
	last := ""
	for _, r := range p.rows {
		cells := r.cells()
		if r.work == last {
			cells[0] = ""
		}
		last = r.work
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	w.Flush() // into memory: it cannot fail
	fmt.Fprintf(&b, "\n%s\n%s\n", p.machine, p.judgement())
	return b.String()
}

// judgement is the last line: how many limits were kept, and whether the machine was quiet.
func (p page) judgement() string {
	missed := 0
	for _, r := range p.rows {
		if !r.ok {
			missed++
		}
	}
	s := fmt.Sprintf("%d of %d rows reach what they must; load average %s at the end.", len(p.rows)-missed, len(p.rows), p.loadAfter)
	if p.quick {
		s += " With -quick the figures come from few repetitions."
	}
	return s
}

// markdown is the page for docs/.
func (p page) markdown() string {
	var b strings.Builder
	b.WriteString(`# How fast it is

Written by ` + "`make bench ARGS='-out docs/performance.md'`" + `; do not edit it by hand.

Every service has 10 endpoints. The figures of upstream are those of its v1.36.3 in the same mode, measured on such a machine with a
minSyncPeriod of 10 ms; they are here for scale and are not measured again, but where "this run" stands with them (` + "`make bench PEER=…`" + `).
In iptables mode the minSyncPeriod of ours is 10 ms too; the default there is a second, which the next change would wait for. Growth compares two sizes of the same run. The first two works are the
fastest of their rounds, because other work on the machine can only slow them down; the others are what a distribution's p50 and
p99 say. The clock counts what else the machine does, too: mind the load average.

`)
	fmt.Fprintf(&b, "%s\n\n%s\n\n", p.machine, p.judgement())
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat("---|", len(heads)))
	for _, r := range p.rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r.cells(), " | "))
	}
	b.WriteString(`
Times from an API write on begin just before the write and end when a connection from the node has reached the endpoint, so they
contain what etcd and the API server take. The start of the process ends when the last of 20 services spread among the others
answers, on a kernel without rules of ours. CPU per change is the processor time of the process and of the programs that it runs, its
share of idling included, divided by the number of changes. Connection set-up is the connect system call in a pod, through each of the
20 services by turns: of the fastest and of the slowest of them the time that a tenth of the connections did not exceed. The stand-in
is an API server in the measuring program that holds objects as the bytes to send: a real one takes too long to be given 100,000
services. Memory is the largest resident size from the start to the end of all changes.

With many endpoints the kernel sets the pace in iptables mode. At each commit of ` + "`" + `iptables-nft-restore` + "`" + ` it validates every rule that the
hooks lead to: that goes by the endpoints of the cluster, not by the change. One changed endpoint or one new service among 250,000
endpoints (5,000 services × 50) takes 0.86 s on a quiet machine, and among 50,000 0.21 to 0.24 s. The
legacy programs copy the whole table for each change: 4 to 5.5 s there, beside a load of 10. In nftables mode a change costs what
changed. A first write of many endpoints goes in pieces, between which changes are written: 250,000 endpoints in 51 restores of
20,000 lines take 48 s, all but 2 s of it processor time of the program (50,000: 6.4 s), the last of them 1.6 s each; the 20 s that it
should take are out of reach with that program ([0021](adr/0021-pieces.md)).
` + "`" + `go test ./plane/iptables -run '^$' -bench '^BenchmarkManyEndpoints$' -benchtime 1x` + "`" + ` measures it.

The commands, in the root of the module, each as often as the number before it says:

` + "```\n")
	for _, j := range p.jobs {
		fmt.Fprintf(&b, "%d × %s\n", j.rounds, j.command())
	}
	b.WriteString("```\n")
	return b.String()
}
