package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"kube-proxy/cli/preflight"
	"kube-proxy/debug/inspect"
)

// The singular is used for one.
func TestAskCountsWell(t *testing.T) {
	one := inspect.Difference{Family: "IPv4", Object: "element", Desired: "there"}
	for want, d := range map[string]*inspect.Diff{
		"1 difference; 1 frontend compared\n":    {Differences: []inspect.Difference{one}, Frontends: 1},
		"2 differences; 2 frontends compared\n":  {Differences: []inspect.Difference{one}, More: 1, Frontends: 2},
		"no difference; 1 frontend compared\n":   {Frontends: 1},
		"no difference; 0 frontends compared\n":  {},
		"no difference; 36 frontends compared\n": {Frontends: 36},
	} {
		var out bytes.Buffer
		diffText(&out, d, maxDiffers)
		if got := out.String(); !strings.HasSuffix("\n"+got, "\n"+want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for want, of := range map[string]*inspect.TraceAnswer{
		"  and 1 ended one\n":                     {Conntrack: make([]inspect.Connection, 1), ConntrackEnded: 1},
		"  none is open; 2 ended ones\n":          {ConntrackEnded: 2},
		"  none is open; at least 2 ended ones\n": {ConntrackEnded: 2, ConntrackMore: true},
	} {
		if got := of.Report(false); !strings.HasSuffix(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// Names of processes that others chose are printed: no escape sequence in them reaches the
// terminal.
func TestTerminalIsLeftAlone(t *testing.T) {
	evil := "x\x1b]0;owned\x07\u009b2J\r"
	text := findingsText(false, []preflight.Finding{{ID: "node-ports", Severity: preflight.Warning, About: "30080/tcp",
		Seen: "process 1 (" + evil + ")"}})
	if strings.ContainsAny(text, "\x1b\x07\r\u009b") || !strings.Contains(text, `x\x1b]0;owned\a\u009b2J\r`) {
		t.Errorf("%q", text)
	}
}

// A query builds the flags of its own command alone.
func TestFlagsOfOneCommand(t *testing.T) {
	root := New(nil, io.Discard, io.Discard, []string{"why", "shop/web"}, nil)
	for _, c := range append(root.Commands(), root) {
		if has := c.Flags().Lookup("manifests") != nil; has != (c.Name() == "why") {
			t.Errorf("%s has the flags of kube-proxy: %t", c.Name(), has)
		}
	}
}
