package lb_test

import (
	"testing"

	"kube-proxy/lb"
)

// Text of others cannot affect a terminal, and what is harmless stays as it is.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"":                    "",
		"shop/web:http 100 %": "shop/web:http 100 %",
		`a "quoted" \ name`:   `a "quoted" \ name`,
		"Zürich, 北京":          "Zürich, 北京",
		"a\x1b[2Jb":           `a\x1b[2Jb`,
		"two\nlines\tand\r":   `two\nlines\tand\r`,
		"C1 \u009b2J":         `C1 \u009b2J`,
		"evil\u202etxt":       `evil\u202etxt`,
		"zero\u200bwidth":     `zero\u200bwidth`,
		"not UTF-8: \xff\xfe": `not UTF-8: \xff\xfe`,
		"replaced: \ufffd":    `replaced: \ufffd`,
	} {
		if got := lb.Printable(in); got != want {
			t.Errorf("%q is printed as %s, want %s", in, got, want)
		}
	}
}
