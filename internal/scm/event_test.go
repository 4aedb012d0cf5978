package scm

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"
)

// events records its calls.
type events []string

func (e *events) Info(id uint32, text string) error    { return e.add("info", id, text) }
func (e *events) Warning(id uint32, text string) error { return e.add("warning", id, text) }
func (e *events) Error(id uint32, text string) error   { return e.add("error", id, text) }

func (e *events) add(kind string, id uint32, text string) error {
	if strings.Contains(text, "\x00") || len(utf16.Encode([]rune(text))) > 31_839 {
		return fmt.Errorf("the event log refuses %.20q", text)
	}
	*e = append(*e, fmt.Sprintf("%s %d %s", kind, id, text))
	return nil
}

// Lines for stderr become events of the severity in the line, in each format of the log.
func TestWriter(t *testing.T) {
	for _, tc := range []struct{ write, want string }{
		{"I1121 13:09:01.123456    1234 run.go:33] \"Starting kube-proxy\"\n",
			`info 1 I1121 13:09:01.123456    1234 run.go:33] "Starting kube-proxy"`},
		{"W1121 13:09:01.1 1 a.go:3] x\n", "warning 2 W1121 13:09:01.1 1 a.go:3] x"},
		{"E1121 13:09:01.1 1 a.go:3] x\n", "error 3 E1121 13:09:01.1 1 a.go:3] x"},
		{`{"ts":1.0,"caller":"a.go:3","msg":"x","v":0}` + "\n", `info 1 {"ts":1.0,"caller":"a.go:3","msg":"x","v":0}`},
		{`{"ts":1.0,"caller":"a.go:3","msg":"x","level":"warning"}` + "\n",
			`warning 2 {"ts":1.0,"caller":"a.go:3","msg":"x","level":"warning"}`},
		{`{"ts":1.0,"caller":"a.go:3","msg":"x","level":"error"}` + "\n",
			`error 3 {"ts":1.0,"caller":"a.go:3","msg":"x","level":"error"}`},
		{`{"ts":1.0,"caller":"a.go`, `warning 2 {"ts":1.0,"caller":"a.go`},
		{"kube-proxy: warning: x has no effect\n", "warning 2 kube-proxy: warning: x has no effect"},
		{"kube-proxy: --bind-address: \"x\": want an IP address\n",
			"error 3 kube-proxy: --bind-address: \"x\": want an IP address"},
		{"a\x00b\xff", "error 3 a?b?"},
		{"I0930 x\n", "info 1 I0930 x"},
		{"W0000 ", "error 3 W0000"}, // trimmed, it is no header
		{"I09a0 x", "error 3 I09a0 x"},
		{"I09 0 x", "error 3 I09 0 x"},
		{"I09300x", "error 3 I09300x"},
	} {
		var e events
		n, err := NewWriter(&e).Write([]byte(tc.write))
		if err != nil || n != len(tc.write) || len(e) != 1 || e[0] != tc.want {
			t.Errorf("%q gives %q, %d, %v; want %q", tc.write, e, n, err, tc.want)
		}
	}
}

// The event log accepts a line of any length, with any characters.
func TestWriterLong(t *testing.T) {
	for _, of := range []string{"a", "é", "€", "😀"} {
		var e events
		line := strings.Repeat(of, 100_000/len(of))
		if n, err := NewWriter(&e).Write([]byte(line)); err != nil || n != len(line) || len(e) != 1 ||
			len(e[0]) < longestEvent/2 {
			t.Errorf("%s: %d, %v, %d events", of, n, err, len(e))
		}
	}
}
