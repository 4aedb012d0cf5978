package lb

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns s with everything escaped, as in Go, that could affect a terminal or be
// invisible: control characters, marks for the direction of text, invalid UTF-8, line breaks.
func Printable(s string) string {
	ok := func(r rune) bool { return unicode.IsPrint(r) && r != unicode.ReplacementChar }
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
