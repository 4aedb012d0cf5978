package lb

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns s with all that could do something to a terminal, or hide in it, escaped as in Go: control characters, marks that turn
// the direction of text, what is no UTF-8, line breaks.
func Printable(s string) string {
	ok := func(r rune) bool { return unicode.IsPrint(r) && r != unicode.ReplacementChar }
	clean := true
	for _, r := range s {
		clean = clean && ok(r)
	}
	if clean {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if ok(r) {
			b.WriteString(s[:n])
		} else {
			b.WriteString(strings.Trim(strconv.QuoteToASCII(s[:n]), `"`))
		}
		s = s[n:]
	}
	return b.String()
}
