package planetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"kube-proxy/test/scenario"
)

// Page returns docs/conformance.md: the recorded results of each mode and kernel. It depends on its
// input alone. A nil release means that none has passed.
func Page(scenarios []*scenario.Scenario, results []Results, release *Release) string {
	p := &page{results: results}
	p.line("# Conformance")
	p.line("")
	p.line("<!-- Made by `go test ./test/planetest -run TestPage -update` from test/planetest/testdata/results. Do " +
		"not edit. -->")
	p.line("")
	p.line("Each [scenario](../test/testdata/scenarios) sends real packets through each mode, on each kernel, in " +
		"IPv4 and IPv6.")
	p.line("`kube-proxy trace` must name the verdict, backends and source of each packet, from the table and from " +
		"the kernel.")
	p.line("After each step the kernel must equal the table.")
	p.line("")
	p.line("Kernels other than the machine's are emulated. There the kernel's answer is compared for at least %d "+
		"packets of a", maxAsked)
	p.line("state, one in generated scenarios; `make test-kernels FULL=1` compares all. Pings have the table's " +
		"answer only.")
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

// when describes which runs prove what.
func (p *page) when(release *Release) {
	p.line("CI runs all scenarios on its own kernel, and on 5.10 the core scenarios of modes nftables, iptables, " +
		"ipvs and userspace, which have every form of rule.")
	p.line("`make release-check` runs all on all kernels.")
	if release == nil {
		p.line("It has not passed yet.")
	} else {
		p.line("It passed last on %s, on kernels %s.", release.Seen, strings.Join(release.Kernels, ", "))
	}
	p.line("")
}

// summary counts, for each run, the scenarios in one family each.
func (p *page) summary() {
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
		text := fmt.Sprintf("- %s, %s: %d pass", r.Mode, r.Kernel, count[Passes])
		for _, more := range []struct {
			n    int
			what string
		}{{count[Fails], "fail"}, {differ, "differ by intent"}, {count[NotApplicable] + count[NeedsSCTP],
			"not applicable"}, {sctp, "lines without SCTP"}} {
			if more.n > 0 {
				text += fmt.Sprintf(", %d %s", more.n, more.what)
			}
		}
		if r.All != nil {
			p.line("%s; complete on %s", text, r.All)
		} else {
			p.line("%s; oldest result %s", text, r.oldest())
		}
	}
	p.line("")
	p.line("A scenario counts once for each family. Kernels without SCTP leave out its lines; the others prove them.")
	p.line("")
}

// table lists, for each mode, the scenarios that do not simply pass, by their marks and notes.
func (p *page) table(scenarios []*scenario.Scenario) {
	p.line("## Differences by mode")
	p.line("")
	p.line("Scenarios that are not listed pass on all kernels on which they ran. ✓ passes, with notes; ✗ fails; – " +
		"differs by")
	p.line("intent or is not applicable; ≈ differs as its notes say; ? was not run. Where kernels differ, each is " +
		"named.")
	names := map[string]string{} // with links
	for _, s := range scenarios {
		names[s.Name] = fmt.Sprintf("[%s](../test/testdata/scenarios/%[1]s.txtar)", s.Name)
	}
	for _, r := range p.results {
		for name := range r.Cases {
			if strings.HasPrefix(name, generatedPrefix) {
				names[name] = name
			}
		}
	}
	for _, mode := range p.modes() {
		by := map[string][]string{}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if cell := p.cell(mode, name); cell != mark(Passes) {
				by[cell] = append(by[cell], names[name])
			}
		}
		p.line("\n### %s\n", mode)
		if len(by) == 0 {
			p.line("All scenarios pass.")
			continue
		}
		for _, cell := range slices.Sorted(maps.Keys(by)) {
			p.line("- %s: %s", cell, strings.Join(by[cell], ", "))
		}
	}
	p.line("")
}

// maxAsked limits the queries to the plane about packets of a state in emulation, except in
// complete runs: lines about affinity send hundreds of packets that differ in the client.
const maxAsked = 8

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
		if how != ProxiedAddress { // every mode with proxied connections has it
			notes = append(notes, p.note(proxiedNotes[how]))
		}
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
