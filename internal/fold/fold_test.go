package fold

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"short\n", "short\n"},
		{"one two three\n", "one two\n  three\n"},
		{"  one two three\n", "  one two\n    three\n"},
		{"abcdefghijklmnop", "abcdefghijklmnop"},
		{"abcdefghijklmnop qr st uv", "abcdefghijklmnop\n  qr st uv"},
		{"aé → bé cé", "aé → bé cé"},
		{"aé → bé cé dé", "aé → bé cé\n  dé"},
		{"a   bcdefghijk", "a\n  bcdefghijk"},
		{"exactly te\nn", "exactly te\nn"},
		{"exactly te n", "exactly te\n  n"},
	} {
		if got := Text(c.text, 10); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

// FuzzText: all words stay, in their order, and only a line of one word is too long.
func FuzzText(f *testing.F) {
	f.Add("  one two three\nfour", 6)
	f.Fuzz(func(t *testing.T, text string, width int) {
		width = 1 + max(width, -width)%100
		got := Text(text, width)
		if a, b := strings.Join(strings.Fields(text), " "), strings.Join(strings.Fields(got), " "); a != b {
			t.Fatalf("%q, want the words of %q", got, text)
		}
		for line := range strings.Lines(got) {
			line = strings.TrimRight(line, " \n")
			if utf8.RuneCountInString(line) > width && strings.Contains(strings.TrimLeft(line, " "), " ") {
				t.Fatalf("width %d: %q in %q of %q", width, line, got, text)
			}
		}
	})
}
