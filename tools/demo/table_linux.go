package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// entry is a row of the printed table with its results.
type entry struct {
	row
	tally tally
	// before is the previous result of the row; nil at first.
	before *tally
}

// columns of the table, after the mark.
const columns = 5

func (e entry) cells() [columns]string {
	return [columns]string{e.kind, e.shot.To.String() + "/" + e.shot.Proto.String(), e.from, e.tally.who(),
		e.tally.sources()}
}

// Colours of a terminal.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// Marks in front of a row.
const (
	asSaid    = "✓" // as in packetsFile
	notAsSaid = "✗"
	differs   = "≠" // not as in packetsFile, after a change
)

// layout is how wide the columns are. The zero value begins with the headings.
type layout struct {
	widths [columns]int
	color  bool
}

var headings = [columns]string{"FRONTEND", "", "FROM", "WHO ANSWERED", "SOURCE THAT THE BACKEND SAW"}

// fit makes the columns wide enough for entries; they never become narrower, so that later rows
// align with earlier ones. The last column has no width.
func (l *layout) fit(entries []entry) {
	for i := range columns - 1 {
		l.widths[i] = max(l.widths[i], len(headings[i]))
		for _, e := range entries {
			l.widths[i] = max(l.widths[i], utf8.RuneCountInString(e.cells()[i]))
		}
	}
}

func (l *layout) paint(color, s string) string {
	if !l.color || s == "" {
		return s
	}
	return "\x1b[" + color + "m" + s + "\x1b[0m"
}

// line puts cells into columns.
func (l *layout) line(cells [columns]string) string {
	var b strings.Builder
	for i, c := range cells[:columns-1] {
		fmt.Fprintf(&b, "%-*s  ", l.widths[i], c)
	}
	return strings.TrimRight(b.String()+cells[columns-1], " ")
}

// table returns the lines of entries below headings, with a line for each group.
func (l *layout) table(entries []entry) []string {
	l.fit(entries)
	lines := []string{l.paint(dim, "  "+l.line(headings))}
	return append(lines, l.rows(entries)...)
}

// rows formats the table without the headings.
func (l *layout) rows(entries []entry) []string {
	l.fit(entries)
	var lines []string
	group := ""
	for i, e := range entries {
		if e.group != group || i == 0 {
			group = e.group
			lines = append(lines, l.paint(bold, group))
		}
		wrong := check(e.want, e.tally)
		mark := l.paint(green, asSaid)
		switch {
		case len(wrong) > 0 && e.before != nil:
			mark = l.paint(yellow, differs)
		case len(wrong) > 0:
			mark = l.paint(red, notAsSaid)
		}
		lines = append(lines, mark+" "+l.line(e.cells()))
		if e.before != nil {
			lines = append(lines, l.note(dim, "before: "+e.tally.comparedTo(*e.before)))
		} else if len(wrong) > 0 {
			_, want, _ := strings.Cut(e.text, " : ")
			lines = append(lines, l.note(red, packetsFile+" says: "+strings.TrimSpace(want)+"; but "+
				strings.Join(wrong, ", ")))
		}
		if e.tally.met(sink) {
			lines = append(lines, l.note(dim, "node1 let it pass: the sink is where its default route leads"))
		}
	}
	return lines
}

// note formats a line about the row above it.
func (l *layout) note(color, text string) string {
	indent := 2
	for _, w := range l.widths[:3] {
		indent += w + 2
	}
	return strings.Repeat(" ", indent) + l.paint(color, text)
}

// verdict counts the unexpected entries.
func verdict(entries []entry) (wrong int) {
	for _, e := range entries {
		if len(check(e.want, e.tally)) > 0 {
			wrong++
		}
	}
	return wrong
}
