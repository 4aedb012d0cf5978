package cli

import (
	"io"
	"os"
	"strings"
)

// ink colours words on a terminal. A [screen] lets its codes pass.
type ink bool

// inkFor colours on a terminal only, and not where NO_COLOR is set (no-color.org) or the terminal
// is dumb.
func inkFor(out io.Writer) ink {
	return ink(isTerminal(out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

// colours has those of severities and verdicts.
var colours = map[string]string{
	"error": "31", "DROP": "31", "DROPPED": "31", "REJECT": "31", "REJECTED": "31",
	"drop": "31", "reject": "31", "THE KERNEL DIFFERS": "31", "PINNED": "31",
	"TRANSLATED": "31", "LIVE": "31",
	"warning": "33", "unknown": "33", "NOT DECIDED": "33", "NOT TRANSLATED": "33",
	"ok": "32", "balance": "32", "DELIVERED": "32", "BALANCED": "32",
}

// of colours a text by a word; it stays unchanged if the word has no colour.
func (i ink) of(word, text string) string {
	if colour := colours[word]; bool(i) && colour != "" {
		return "\x1b[" + colour + "m" + text + "\x1b[0m"
	}
	return text
}

// verdicts colours the verdicts at the start of lines.
func (i ink) verdicts(text string) string {
	if !i {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		for _, word := range []string{
			"DROP", "DROPPED", "REJECT", "REJECTED", "PINNED", "NOT DECIDED", "THE KERNEL DIFFERS",
			"TRANSLATED", "LIVE", "NOT TRANSLATED", "DELIVERED", "BALANCED", "balance", "reject", "drop",
		} {
			if rest, is := strings.CutPrefix(line, word); is && strings.IndexAny(rest, " :,\n") == 0 {
				line = i.of(word, word) + rest
				break
			}
		}
		b.WriteString(line)
	}
	return b.String()
}
