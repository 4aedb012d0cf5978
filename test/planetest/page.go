package planetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"kube-proxy/test/scenario"
)

// Page returns docs/conformance.md: each scenario against each mode and kernel that results are there for. It is
// the same text for the same input, so that a test can tell when the file is stale. Release nil: none yet.
func Page(scenarios []*scenario.Scenario, results []Results, release *Release) string {
	p := &page{results: results}
	p.line("# Conformance")
	p.line("")
	p.line("<!-- Made by `go test ./test/planetest -run TestPage -update` from test/planetest/testdata/results. Do not edit. -->")
	p.line("")
	p.line("Each scenario sends real packets through each mode, on each kernel, in IPv4 and in IPv6. A scenario is a")
	p.line("file of [test/testdata/scenarios](../test/testdata/scenarios) that begins with its purpose. [The specification](behaviour.md) lists the scenarios of each of its rows.")
	p.line("")
	p.line("For each packet the tests also run `kube-proxy trace`. Its verdict, backends and source, from the table and from the kernel, must be")
	p.line("those of the packet. After each step the kernel must equal the table ([ADR 0028](adr/0028-what-a-change-proves.md)).")
	p.line("")
	p.line("Kernels other than the machine's run in emulation. There the kernel's answer is compared for at least %d packets of a state, and for one", mostAsked)
	p.line("in generated scenarios; `make test-kernels FULL=1` compares all. The table's answer is always compared.")
	p.line("Pings have the table's answer only. Packets that another program redirects first have neither.")
	p.line("")
	p.when(release)
	p.summary()
	p.proxied()
	p.modelled()
	p.table(scenarios)
	p.notesText()
	return p.b.String()
}

type page struct {
	b       strings.Builder
	results []Results
	notes   []string
}

func (p *page) line(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

// when says which runs prove what.
func (p *page) when(release *Release) {
	p.line("CI runs all scenarios on its own kernel. On the other kernels it runs each mode's core scenarios, which write every form of rule.")
	p.line("`make release-check` runs all scenarios on all kernels, all other tests with the race detector, and all fuzz targets.")
	if release == nil {
		p.line("It has not passed yet.")
	} else {
		p.line("It passed last on %s, on kernels %s.", release.Seen, strings.Join(release.Kernels, ", "))
	}
	p.line("")
}

// summary counts, for each run, the scenarios in one family each.
func (p *page) summary() {
	p.line("| mode | kernel | pass | fail | differ by intent | not applicable | SCTP lines left out | last complete run | oldest result |")
	p.line("|---|---|---|---|---|---|---|---|---|")
	for _, r := range p.results {
		count, differ, sctp := map[string]int{}, 0, 0
		for _, c := range r.Cases {
			for _, v := range c.Families {
				if v != Passes || len(c.Modelled) == 0 {
					count[v]++
				}
			}
			if c.Differs != "" || len(c.Modelled) > 0 {
				differ++
			}
			sctp += c.SCTP
		}
		all := "–"
		if r.All != nil {
			all = r.All.String()
		}
		p.line("| %s | %s | %d | %d | %d | %d | %d | %s | %s |", r.Mode, r.Kernel, count[Passes], count[Fails], differ,
			count[NotApplicable]+count[NeedsSCTP], sctp, all, r.oldest())
	}
	p.line("")
	p.line("Pass and fail count a scenario once for each family. Kernels without SCTP leave out the SCTP lines; the others prove them.")
	p.line("")
}

// table has a line for each scenario, and for each generated one that a run knew. A column is a mode.
func (p *page) table(scenarios []*scenario.Scenario) {
	p.line("## Scenarios")
	p.line("")
	p.line("✓ passes in both families, ✗ fails, – differs by intent or is not applicable, ≈ differs as its notes say, ? was not run.")
	p.line("A mark covers all kernels on which the scenario ran; where they differ, each is named.")
	p.line("")
	modes := p.modes()
	p.line("| scenario | %s |", strings.Join(modes, " | "))
	p.line("|---|%s", strings.Repeat(":-:|", len(modes)))
	for _, s := range scenarios {
		p.line("| [%s](../test/testdata/scenarios/%[1]s.txtar) |%s", s.Name, p.cells(modes, s.Name))
	}
	generated := map[string]bool{}
	for _, r := range p.results {
		for name := range r.Cases {
			if strings.HasPrefix(name, generatedPrefix) {
				generated[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(generated)) {
		p.line("| %s |%s", name, p.cells(modes, name))
	}
	p.line("")
}

// mostAsked limits the queries to the plane about packets of a state in emulation, except in complete runs:
// lines about affinity send hundreds of packets that differ in the client.
const mostAsked = 8

// generatedPrefix begins the names of scenarios that have no file.
const generatedPrefix = "generated-"

// modes returns the heads of the columns, in the order of the results.
func (p *page) modes() []string {
	var modes []string
	for _, r := range p.results {
		modes = append(modes, r.column())
	}
	return slices.Compact(modes)
}

func (p *page) cells(modes []string, name string) string {
	var out string
	for _, mode := range modes {
		out += " " + p.cell(mode, name) + " |"
	}
	return out
}

// cell returns the mark of a scenario in a mode, with its notes.
func (p *page) cell(mode, name string) string {
	var marks, each, notes []string
	for _, r := range p.results {
		c, ok := r.Cases[name]
		if r.column() != mode || !ok {
			continue
		}
		notes = append(notes, p.notesOf(c)...)
		if c.Left == "" {
			marks = append(marks, c.mark())
			each = append(each, r.Kernel+" "+c.mark())
		}
	}
	slices.Sort(notes)
	text := strings.Join(slices.Compact(notes), "")
	slices.Sort(marks)
	switch marks = slices.Compact(marks); len(marks) {
	case 0:
		return "?" + text
	case 1:
		return marks[0] + text
	}
	return strings.Join(each, ", ") + text
}

// mark returns the result as the table shows it.
func (c Result) mark() string {
	if c.Differs != "" {
		return mark(NotApplicable)
	}
	v4, v6 := mark(c.Families["IPv4"]), mark(c.Families["IPv6"])
	text := v4
	if v4 != v6 {
		text = fmt.Sprintf("v4 %s v6 %s", v4, v6)
	}
	if len(c.Modelled) > 0 {
		text = strings.ReplaceAll(text, mark(Passes), "≈")
	}
	return text
}

// notesOf returns the marks of the footnotes that a result needs.
func (p *page) notesOf(c Result) []string {
	var notes []string
	if c.Left != "" {
		notes = append(notes, p.note("Left out in emulation: "+c.Left+"."))
	}
	if c.Differs != "" {
		notes = append(notes, p.note(c.Differs))
	}
	for _, how := range c.Proxied {
		notes = append(notes, p.note(proxiedNotes[how]))
	}
	for _, how := range c.Modelled {
		notes = append(notes, p.note(modelledNotes[how]))
	}
	return notes
}

func mark(verdict string) string {
	switch verdict {
	case Passes:
		return "✓"
	case Fails:
		return "✗"
	}
	return "–"
}

// note returns the mark of a footnote; the same text has the same mark.
func (p *page) note(text string) string {
	i := slices.Index(p.notes, text)
	if i < 0 {
		i = len(p.notes)
		p.notes = append(p.notes, text)
	}
	return fmt.Sprintf(" <sup>%d</sup>", i+1)
}

func (p *page) notesText() {
	if len(p.notes) == 0 {
		return
	}
	p.line("## Notes")
	p.line("")
	for i, n := range p.notes {
		p.line("%d. %s", i+1, n)
	}
}
