package cli

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
	"kube-proxy/lb"
)

// malice has what affects a terminal: control characters of ASCII and of Latin-1, a mark for the
// direction of text, a character outside the first plane, and a line of its own.
const malice = "\x1b]0;title\x07\x9b31m\u009b31m\u202e\U000e0041\rA\nFORGED"

// fill sets every string below v, of any type, to malice; elements of lists and maps are one.
func fill(v reflect.Value, depth int) {
	if _, is := v.Addr().Interface().(encoding.TextUnmarshaler); is || depth == 0 {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(malice)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(3)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), depth)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth-1)
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth-1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth-1)
		fill(value, depth-1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	}
}

// hostile is a node whose every answer is as bad as its type lets it be.
func hostile(t *testing.T) *api.Client {
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.Header, "1")
		var answer any
		switch query := strings.TrimPrefix(r.URL.Path, "/v1/"); query {
		case "status":
			answer = new(inspect.Status)
		case "service":
			answer = new(inspect.Detail)
		case "attention":
			answer = new(inspect.Attention)
		case "diff":
			answer = new(inspect.Diff)
		case "events":
			answer = new(inspect.Changes)
		case "top":
			answer = new(inspect.Top)
		case "trace":
			answer = new(inspect.TraceAnswer)
		case "probe":
			answer = new(inspect.Probes)
		case "table":
			answer = new(struct {
				Node      string             `json:"node"`
				Frontends []inspect.Frontend `json:"frontends"`
			})
		default:
			w.WriteHeader(http.StatusNotFound)
			answer = new(inspect.Problem)
		}
		fill(reflect.ValueOf(answer).Elem(), 6)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	})}
	l := &oneByOne{make(chan net.Conn)}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return api.Over("here", func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		l.conns <- there
		return here, nil
	})
}

type oneByOne struct{ conns chan net.Conn }

func (l *oneByOne) Accept() (net.Conn, error) {
	conn, open := <-l.conns
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (l *oneByOne) Close() error { close(l.conns); return nil }
func (*oneByOne) Addr() net.Addr { return &net.UnixAddr{} }

// harmless checks what reached the terminal.
func harmless(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && (!unicode.IsPrint(r) || r == unicode.ReplacementChar) {
			t.Errorf("%U reached the terminal:\n%q", r, text)
			break
		}
	}
	for line := range strings.Lines(text) {
		before, _, forged := strings.Cut(line, "FORGED")
		if forged && len(before) < 8 && strings.TrimSpace(before) == "" { // diff indents more
			t.Errorf("a line is the node's own:\n%s", text)
		}
	}
}

// A hostile node, as any tenant, writes nothing to the terminal of whom it answers: neither control
// sequences nor lines of its own, in no field of any answer (TN-97). Answers for programs have the
// values, escaped.
func TestHostileNodeTN97(t *testing.T) {
	client := hostile(t)
	questions := map[string][]string{"status": nil, "backends": {"a"}, "why": {"a"}, "why ": nil, "probe": {"a"},
		"table": nil, "diff": nil, "events": nil, "top": nil, "trace": {"node", "192.0.2.1:80/tcp"}}
	for _, a := range queryCommands() {
		// They print no answer: a connection, a page for a browser, and a file.
		if _, tested := questions[a.name]; !tested && !slices.Contains([]string{"connect", "ui", "report"}, a.name) {
			t.Errorf("%s is not tested", a.name)
		}
	}
	for name, args := range questions {
		for _, a := range queryCommands() {
			if a.name != strings.TrimSpace(name) {
				continue
			}
			for _, format := range []string{"", "wide", "json", "yaml"} {
				var out, errOut bytes.Buffer
				on := onScreen(&out)
				q := &queries{client: client, out: on, errOut: onScreen(&errOut), format: format}
				err := reported(a.ask(t.Context(), q, args))
				Exit(&errOut, "kube-proxy", err)
				harmless(t, errOut.String())
				if harmless(t, out.String()); out.Len() == 0 {
					t.Errorf("%s -o %s printed nothing: %v", name, format, err)
				}
				var back any
				if format != "json" {
					continue
				}
				if err := json.Unmarshal(out.Bytes(), &back); err != nil ||
					!strings.Contains(deep(back), "\u202e\U000e0041") {
					t.Errorf("%s -o json: %v\n%s", name, err, out.String())
				}
			}
			if a.merge == nil {
				continue
			}
			var out, one bytes.Buffer
			if err := a.ask(t.Context(), &queries{client: client, out: &one, format: "json"}, args); err != nil {
				var code exitCode
				if !errors.As(err, &code) {
					t.Fatal(err)
				}
			}
			answers := []nodeAnswer{{node: malice, text: one.Bytes()}, {node: "b", text: one.Bytes()}}
			if err := a.merge(onScreen(&out), answers, true); err != nil {
				t.Error(err)
			}
			harmless(t, out.String())
		}
	}
}

// A screen passes colours and text, also in pieces, and escapes all else.
func TestScreen(t *testing.T) {
	var whole, pieces bytes.Buffer
	text := "a\tb\n\x1b[31mred\x1b[0m é\u2028日本 \x1b[32;1m" + malice
	io.WriteString(onScreen(&whole), text)
	p := onScreen(&pieces)
	for i := range len(text) {
		if text[i] == 0x1b { // codes come whole
			continue
		}
		p.Write([]byte(text[i : i+1]))
	}
	want := "a\tb\n\x1b[31mred\x1b[0m é\\u2028日本 \\x1b[32;1m" + lb.Printable(strings.TrimSuffix(malice, "\nFORGED")) +
		"\nFORGED"
	if whole.String() != want {
		t.Errorf("%q\nwant\n%q", whole.String(), want)
	}
	if !strings.Contains(pieces.String(), "é\\u2028日本") {
		t.Errorf("in pieces: %q", pieces.String())
	}
	if isTerminal(onScreen(os.Stdin)) != isTerminal(os.Stdin) {
		t.Error("a screen hides its terminal")
	}
}

// deep returns all strings of a decoded value.
func deep(v any) string {
	var b strings.Builder
	switch v := v.(type) {
	case string:
		b.WriteString(v)
	case []any:
		for _, e := range v {
			b.WriteString(deep(e))
		}
	case map[string]any:
		for k, e := range v {
			b.WriteString(k + deep(e))
		}
	}
	return b.String()
}
