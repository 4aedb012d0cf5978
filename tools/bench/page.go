package main

import (
	"fmt"
	"slices"
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

var heads = []string{"work", "services", "upstream, for scale", "goal", "now", "ok?"}

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
	s := fmt.Sprintf("%d of %d rows reach their goal; load average %s at the end.", len(p.rows)-missed, len(p.rows),
		p.loadAfter)
	if p.quick {
		s += " With -quick the figures come from few repetitions."
	}
	return s
}

// A part of docs/performance.md is the result of one mode's last run, between two lines that name
// the mode. The rest of the page is written by hand, and stays.
func partBegin(mode string) string { return "<!-- bench: " + mode + " -->\n" }

func partEnd(mode string) string { return "<!-- end of bench: " + mode + " -->\n" }

// into returns the text of the page with new parts for the measured modes. A page without a place
// for one of them is an error.
func (p page) into(text string, measured []string) (string, error) {
	for _, mode := range measured {
		before, rest, found := strings.Cut(text, partBegin(mode))
		_, after, ends := strings.Cut(rest, partEnd(mode))
		if !found || !ends {
			return "", fmt.Errorf("it has no part for mode %s, which begins and ends with the lines\n%s%s", mode,
				partBegin(mode), partEnd(mode))
		}
		text = before + partBegin(mode) + p.of(mode).markdown() + partEnd(mode) + after
	}
	return text, nil
}

// of returns the page's part of one mode.
func (p page) of(mode string) page {
	p.rows = slices.DeleteFunc(slices.Clone(p.rows), func(r row) bool { return r.mode() != mode })
	p.jobs = slices.DeleteFunc(slices.Clone(p.jobs), func(j job) bool { return j.mode != mode })
	return p
}

// mode returns the mode of the row, as -mode names it.
func (r row) mode() string {
	switch name, _, named := strings.Cut(r.work, ": "); {
	case named && name == "iptables-nft":
		return "iptables"
	case named && slices.Contains(modes, name):
		return name
	}
	return "nftables"
}

// markdown is a part of the page in docs.
func (p page) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n\n%s\n\n", p.machine, p.judgement())
	heads := heads[:len(heads)-1]
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat("---|", len(heads)))
	last := ""
	for _, r := range p.rows {
		cells := r.cells()[:len(heads)]
		if r.work == last {
			cells[0] = ""
		}
		if !r.ok {
			cells[len(cells)-1] = "**missed:** " + cells[len(cells)-1]
		}
		last = r.work
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	b.WriteString("\n")
	return b.String()
}
