// Package fold breaks lines for a terminal.
package fold

import (
	"strings"
	"unicode/utf8"
)

// Width is the number of columns of answers for people.
const Width = 80

// Text breaks the lines of a text at spaces, so that each has at most width columns. The rest of a
// line goes below it, two columns further in. A longer word stays whole.
func Text(text string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		body, end := strings.CutSuffix(line, "\n")
		indent := len(body) - len(strings.TrimLeft(body, " ")) + 2
		b.WriteString(Hang(body, width, indent))
		if end {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// Hang is [Text] for one line, with the rest at a column.
func Hang(line string, width, column int) string {
	var b strings.Builder
	begins := len(line) - len(strings.TrimLeft(line, " ")) // no break before the first word
	for utf8.RuneCountInString(line) > width {
		at := breakAt(line, width, begins)
		if at < 0 {
			break
		}
		b.WriteString(strings.TrimRight(line[:at], " ") + "\n")
		line, begins = strings.Repeat(" ", column)+strings.TrimLeft(line[at:], " "), column
	}
	return b.String() + line
}

// breakAt returns the last space within the width after the first word, or the first one beyond it;
// -1 for none.
func breakAt(line string, width, begins int) int {
	last, columns := -1, begins
	for at, r := range line[begins:] {
		if r == ' ' {
			if columns > width && last >= 0 {
				return last
			}
			last = begins + at
			if columns > width {
				return last
			}
		}
		columns++
	}
	return last
}
