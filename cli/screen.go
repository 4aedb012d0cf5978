package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"kube-proxy/lb"
)

// screen escapes what could affect a terminal or be invisible in a program's whole output, as
// [lb.Printable] does: answers come from nodes that may be hostile, and name objects of tenants.
// Line breaks, tabs and the colours of [ink] stay, so fields of one line need Printable as well.
type screen struct {
	to   io.Writer
	rest []byte // the beginning of a character
}

// onScreen returns a screen for out.
func onScreen(out io.Writer) *screen { return &screen{to: out} }

// rawOf returns the writer below a screen, for output that is not text.
func rawOf(out io.Writer) io.Writer {
	if s, is := out.(*screen); is {
		return s.to
	}
	return out
}

// Write is part of [io.Writer].
func (s *screen) Write(b []byte) (int, error) {
	text := append(s.rest, b...)
	var safe bytes.Buffer
	for s.rest = nil; len(text) > 0; {
		n := 1
		switch colour := colourAt(text); {
		case text[0] == '\n' || text[0] == '\t':
			safe.WriteByte(text[0])
		case colour > 0:
			n = colour
			safe.Write(text[:n])
		case !utf8.FullRune(text):
			s.rest, n = bytes.Clone(text), len(text)
		default:
			_, n = utf8.DecodeRune(text)
			safe.WriteString(lb.Printable(string(text[:n])))
		}
		text = text[n:]
	}
	if _, err := s.to.Write(safe.Bytes()); err != nil {
		return 0, err
	}
	return len(b), nil
}

// word returns one of an answer's enumerations as a part of a line: a node may send any text.
func word[T ~string](w T) string { return lb.Printable(string(w)) }

// colourAt returns the length of the code of [ink] at the start of text; 0 without one.
func colourAt(text []byte) int {
	for _, code := range []string{"\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"} {
		if bytes.HasPrefix(text, []byte(code)) {
			return len(code)
		}
	}
	return 0
}

// clear clears the terminal below a screen.
func (s *screen) clear() { io.WriteString(s.to, "\x1b[H\x1b[2J") }

// printJSON prints a value for programs. It escapes the same characters as a screen does, by the
// escapes of JSON, so that a reader gets the value as it is.
func printJSON(out io.Writer, value any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	if err := e.Encode(value); err != nil {
		return err
	}
	_, err := rawOf(out).Write(escapeJSON(text.Bytes(), unicode.MaxRune))
	return err
}

// escapeJSON escapes characters up to most in the strings of valid JSON. Elsewhere JSON has ASCII
// only, and in strings no ASCII control character but DEL.
func escapeJSON(text []byte, most rune) []byte {
	var b bytes.Buffer
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r < 0x7f || r > most || lb.Printable(string(r)) == string(r):
			b.Write(text[:n])
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		text = text[n:]
	}
	return b.Bytes()
}
