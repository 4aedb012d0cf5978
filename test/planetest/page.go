package planetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"kube-proxy/test/scenario"
)

// Page returns docs/conformance.md: each scenario against each mode and kernel that results are there for. It is
// the same text for the same input, so that a test can tell when the file is stale. A nil release is none yet.
func Page(scenarios []*scenario.Scenario, results []Results, release *Release) string {
	p := &page{results: results}
	p.line("# Conformance")
	p.line("")
	p.line("<!-- Made by `go test ./test/planetest -run TestPage -update` from test/planetest/testdata/results. Do not edit. -->")
	p.line("")
	p.line("What was seen when real packets were sent through each data plane, on each kernel, in IPv4 and in IPv6. Every line")
	p.line("is a file of [test/testdata/scenarios](../test/testdata/scenarios); the ids are rows of [the behaviour book](behaviour.md).")
	p.line("")
	p.line("About every packet the tests ask `kube-proxy trace` too: the verdict, the backends and the source that the packet met must be those")
	p.line("that it tells, from the table and from what the kernel holds; and after each step the kernel must differ from the table in nothing")
	p.line("([ADR 0028](adr/0028-what-a-change-proves.md)). A scenario in which one of these says otherwise fails.")
	p.line("")
	p.line("What the kernel holds is asked for every packet on the kernel of the machine. The other kernels run in emulation, where such an answer takes half a second and")
	p.line("more: there for %d packets of a state at least, or all that it has, and in generated scenarios for one, with one comparison for all states.", mostAsked)
	p.line("`make test-kernels FULL=1` asks for every packet there too, but in generated scenarios. The table's own answer is asked for all of them, everywhere.")
	p.line("Of pings it alone is asked, and nothing is of packets that another program of the node leads elsewhere first.")
	p.line("")
	p.when(release)
	p.summary()
	p.proxied()
	p.modelled()
	p.table(scenarios)
	p.rows(scenarios)
	p.notesText()
	return p.b.String()
}

type page struct {
	b       strings.Builder
	results []Results
	notes   []string
}

func (p *page) line(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

// when says what is run when.
func (p *page) when(release *Release) {
	p.line("CI sends all scenarios through the kernel of its machine, and the core of them, which has each mode write every form of rule")
	p.line("that it knows, through the others. `make release-check` sends all of them through all kernels, and runs all other tests, with")
	p.line("the race detector too, and all fuzz targets.")
	if release == nil {
		p.line("It has not passed yet: complete runs are noted below.")
	} else {
		p.line("It passed last on %s, on kernels %s.", release.Seen, strings.Join(release.Kernels, ", "))
	}
	p.line("")
}

// summary counts, for each run, the scenarios in one family each.
func (p *page) summary() {
	p.line("| mode | kernel | pass | fail | differ by intent | not applicable | lines that need SCTP | last complete run |")
	p.line("|---|---|---|---|---|---|---|---|")
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
		all := "not noted"
		if r.All != nil {
			all = r.All.String()
		}
		p.line("| %s | %s | %d | %d | %d | %d | %d | %s |", r.Mode, r.Kernel, count[Passes], count[Fails], differ,
			count[NotApplicable]+count[NeedsSCTP], sctp, all)
	}
	p.line("")
	p.line("Pass and fail count a scenario once for each family. A kernel without SCTP sockets leaves out the SCTP lines; the other")
	p.line("kernels prove them.")
	p.line("")
}

// table has a line for each scenario, and for each generated one that a run knew.
func (p *page) table(scenarios []*scenario.Scenario) {
	head, rule := "| behaviour | rows |", "|---|---|"
	for _, r := range p.results {
		head += " " + r.Column() + " |"
		rule += ":-:|"
	}
	p.line("## Behaviours")
	p.line("")
	p.line("✓ passes in both families, ✗ fails, – differs by intent or is not applicable, ? was not run. What another run than the last")
	p.line("complete one showed has a note that says which.")
	p.line("")
	p.line("%s", head)
	p.line("%s", rule)
	known := map[string]bool{}
	for _, s := range scenarios {
		known[s.Name] = true
		p.line("| **%s**: %s | %s |%s", s.Name, oneLine(s.Story), strings.Join(s.Rows, ", "), p.cells(s.Name))
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
		p.line("| **%s** | |%s", name, p.cells(name))
	}
	p.line("")
}

// mostAsked is about how many packets of a state the plane is asked in emulation, but in complete runs: lines about affinity send hundreds that
// differ in the client.
const mostAsked = 8

// generatedPrefix begins the names of scenarios that have no file.
const generatedPrefix = "generated-"

func oneLine(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", `\|`)
}

func (p *page) cells(name string) string {
	var out string
	for _, r := range p.results {
		c, ok := r.Cases[name]
		if !ok {
			out += " ? |"
			continue
		}
		out += " " + p.cell(c) + " |"
	}
	return out
}

func (p *page) cell(c Result) string {
	switch {
	case c.Left != "":
		return "?" + p.note("Left out in emulation: "+c.Left+".")
	case c.Differs != "":
		return "–" + p.note(c.Differs) + p.seen(c)
	}
	v4, v6 := mark(c.Families["IPv4"]), mark(c.Families["IPv6"])
	text := v4
	if v4 != v6 {
		text = fmt.Sprintf("v4 %s v6 %s", v4, v6)
	}
	if c.SCTP > 0 {
		text += p.note("This kernel has no SCTP sockets; what the lines in SCTP say is proven on those that have.")
	}
	for _, how := range c.Proxied {
		text += p.note(proxiedNotes[how])
	}
	if len(c.Modelled) > 0 {
		text = strings.ReplaceAll(text, mark(Passes), "≈")
	}
	for _, how := range c.Modelled {
		text += p.note(modelledNotes[how])
	}
	return text + p.seen(c)
}

// seen says which run showed it, if it was not the last complete one.
func (p *page) seen(c Result) string {
	if c.Seen == nil {
		return ""
	}
	return p.note("Seen on " + c.Seen.String() + ".")
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

// rows lists the scenarios of each row of the behaviour book.
func (p *page) rows(scenarios []*scenario.Scenario) {
	by := map[string][]string{}
	for _, s := range scenarios {
		for _, row := range s.Rows {
			by[row] = append(by[row], s.Name)
		}
	}
	p.line("## Rows")
	p.line("")
	p.line("| row | proven by |")
	p.line("|---|---|")
	for _, row := range slices.Sorted(maps.Keys(by)) {
		p.line("| %s | %s |", row, strings.Join(by[row], ", "))
	}
	p.line("")
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
