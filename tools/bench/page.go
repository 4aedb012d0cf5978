package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

var rowHeads = []string{"work", "services", "goal", "now"}

func (r row) cells() []string { return []string{r.work, r.services, r.must, r.now} }

// text is the table of a mode for a terminal.
func text(mode string, p *part) string {
	if mode == "compare" {
		return p.markdown(mode)
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(rowHeads, "\t")+"\tok?")
	last := ""
	rows := rowsOf[mode](p.Figures)
	for _, r := range rows {
		cells := r.cells()
		if r.work == last {
			cells[0] = ""
		}
		last = r.work
		fmt.Fprintln(w, strings.Join(cells, "\t")+"\t"+map[bool]string{true: "yes", false: "NO"}[r.ok])
	}
	w.Flush() // into memory: it cannot fail
	fmt.Fprintf(&b, "\n%s\n%s\n", p.facts, p.judgement(rows))
	return b.String()
}

// markdownRows is the table of a mode on the page in docs.
func markdownRows(rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(rowHeads, " | "), strings.Repeat("---|", len(rowHeads)))
	last := ""
	for _, r := range rows {
		cells := r.cells()
		if r.work == last {
			cells[0] = ""
		}
		if !r.ok {
			cells[len(cells)-1] = "**missed:** " + cells[len(cells)-1]
		}
		last = r.work
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}

// place is a part of a document that the results fill, between two lines that name it. The rest is
// written by hand.
type place struct {
	file, name string
	text       func(results) string // "" leaves the place as it is
}

// places are those of all documents.
func places() (all []place) {
	for _, mode := range modes {
		all = append(all, place{"docs/performance.md", mode, func(r results) string {
			if r[mode] == nil {
				return ""
			}
			return r[mode].markdown(mode)
		}})
	}
	return append(all, place{"README.md", "README", readme})
}

// readme is the table of README: the comparison at one size.
func readme(r results) string {
	p := r["compare"]
	if p == nil {
		return ""
	}
	return fmt.Sprintf("\n%s\nMeasured on %s at commit %s, kernel %s, %d processors; upstream is %s.\n\n",
		comparison(p.Figures, readmeSizes...), p.Date, p.Commit, p.Kernel, p.CPUs, cmp.Or(p.Peer, "not measured"))
}

// fill returns the text of a file with the results in its places.
func fill(file, text string, r results) (string, error) {
	for _, p := range places() {
		if p.file != file {
			continue
		}
		begin, end := "<!-- bench: "+p.name+" -->\n", "<!-- end of bench: "+p.name+" -->\n"
		before, rest, found := strings.Cut(text, begin)
		_, after, ends := strings.Cut(rest, end)
		if !found || !ends {
			return "", fmt.Errorf("%s has no place for %s, which begins and ends with the lines\n%s%s", file, p.name,
				begin, end)
		}
		if part := p.text(r); part != "" {
			text = before + begin + part + end + after
		}
	}
	return text, nil
}

// write writes the results, and the documents that show them.
func write(root string, r results) error {
	if err := r.write(root); err != nil {
		return err
	}
	for _, file := range []string{"README.md", "docs/performance.md"} {
		before, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return err
		}
		after, err := fill(file, string(before), r)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(after), 0o644); err != nil {
			return err
		}
	}
	return nil
}
