package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"kube-proxy/plane/all"
)

// The help has a line for each command on its first screen, the flags below, and nothing else in
// the list.
func TestHelpBeginsWithTheCommands(t *testing.T) {
	var out, errOut bytes.Buffer
	cmd := command(&out, &errOut, []string{"--help"})
	if err := cmd.ExecuteContext(t.Context()); err != nil || errOut.Len() > 0 {
		t.Fatalf("%v: %s", err, errOut.String())
	}
	screen := strings.Split(out.String(), "\n")[:24]
	for _, c := range cmd.Commands() {
		lines := 0
		for _, line := range screen {
			if strings.HasPrefix(line, "  "+c.Name()+" ") && len(strings.Fields(line)) > 3 {
				lines++
			}
		}
		if lines != 1 {
			t.Errorf("%s has %d lines of the first %d:\n%s", c.Name(), lines, len(screen), strings.Join(screen, "\n"))
		}
	}
	if !strings.Contains(out.String(), "\nProxy:\n      --proxy-mode") {
		t.Errorf("no flags:\n%s", out.String())
	}
}

// An argument that is no command is an error (FL-01), as are cobra's "help" and the former name of
// a command; one similar to a command suggests it.
func TestNoCommand(t *testing.T) {
	for _, c := range []struct{ args, meant string }{
		{"backend", "kube-proxy backends?"},
		{"tr", "kube-proxy trace?"},
		{"--proxy-mode ipvs tabel x", "kube-proxy table?"},
		{"help", ""}, {"no-help", ""}, {"serve", ""},
	} {
		err := command(&bytes.Buffer{}, &bytes.Buffer{}, strings.Fields(c.args)).
			ExecuteContext(t.Context())
		switch {
		case err == nil || !strings.Contains(err.Error(), `"kube-proxy" does not take any arguments, got [`):
			t.Errorf("%s: %v", c.args, err)
		case !strings.HasSuffix(strings.Split(err.Error(), "\n")[0], "did you mean "+c.meant) && c.meant != "",
			strings.Contains(err.Error(), "mean") != (c.meant != ""):
			t.Errorf("%s: %v, want it to name %q", c.args, err, c.meant)
		}
	}
}

// README's table and the picture at the top of docs/architecture.md have every mode.
func TestPagesNameTheModes(t *testing.T) {
	for page, part := range map[string]string{"../../README.md": `(?m)^\| modes \|.*$`,
		"../../docs/architecture.md": "(?s)```.*?```"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(part).FindString(string(text))
		for _, m := range all.Modes() {
			if m.Built() != strings.Contains(found, m.Name) {
				t.Errorf("%s: %s\nand mode %s (built: %v)", page, found, m.Name, m.Built())
			}
		}
	}
}
