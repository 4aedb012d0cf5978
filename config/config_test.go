package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"kube-proxy/config/option"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/test/golden"
)

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A case of testdata/*.txt is a paragraph of lines:
//
//	# name, with the rows of docs/behaviour.md
//	windows the same, as this program is on Windows
//	NODE_NAME value of the variable in the environment
//	$ flags and arguments, blanks between (␣ is a blank inside one)
//	| a line of the configuration file
//	= a field of the Config that differs from that of "$ --proxy-mode=nftables"
//	! a problem
//	~ a warning, with those of the configured mode, or of iptables
//
// All fields that differ, all problems and all warnings must be listed, in order. A problem or
// warning may end in "…"; then only the text before it counts.
type testCase struct {
	name, at       string
	args           []string
	file           string
	env            string // $NODE_NAME
	windows        bool   // on Windows
	want, bad, say []string
}

// Each accepted configuration can be written and read again (FL-06).
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test cases: %v", err)
	}
	base, _ := complete(t, testCase{args: []string{"--proxy-mode=nftables"}})
	for _, file := range files {
		updated := map[string]string{}
		defer func() {
			if *golden.Update {
				rewrite(t, file, updated)
			}
		}()
		for _, tc := range readCases(t, file) {
			t.Run(tc.name, func(t *testing.T) {
				c, err := complete(t, tc)
				var got, bad, say []string
				if c != nil {
					got, say = differences(base, c), warnings(t, c)
					roundTrip(t, c, tc.windows)
				}
				if err != nil {
					bad = strings.Split(err.Error(), "\n")
				}
				if *golden.Update {
					updated[tc.at] = marked("= ", got) + marked("! ", bad) + marked("~ ", say)
					return
				}
				compare(t, tc, "fields", got, tc.want)
				compare(t, tc, "problems", bad, tc.bad)
				compare(t, tc, "warnings", say, tc.say)
			})
		}
	}
}

// warnings returns all warnings of c when the configured mode runs, or iptables.
func warnings(t testing.TB, c *Config) []string {
	t.Helper()
	mode := c.Mode
	if mode == "" {
		mode = "iptables"
	}
	r, err := forMode(t, c, mode)
	must(t, err)
	return slices.Concat(c.Warnings, r.Warnings)
}

// rewrite replaces the expectations of each case by its results.
func rewrite(t *testing.T, file string, updated map[string]string) {
	data, err := os.ReadFile(file)
	must(t, err)
	var b strings.Builder
	at, begins := "", true
	for i, line := range strings.Split(strings.TrimRight(string(data), "\n"), "\n") {
		if begins && line != "" {
			at, begins = fmt.Sprintf("%s:%d", file, i+1), false
		}
		if line == "" && !begins {
			b.WriteString(updated[at] + "\n")
			begins = true
		} else if line == "" || !strings.ContainsAny(line[:1], "=!~") {
			b.WriteString(line + "\n")
		}
	}
	write(t, file, b.String()+updated[at])
}

func marked(mark string, lines []string) string {
	text := ""
	for _, line := range lines {
		text += mark + line + "\n"
	}
	return text
}

// modes are the names of all modes.
var modes = all.Modes().Names(func(mode.Mode) bool { return true })

// windowsModes returns the modes of a program for Windows, with the Linux modes as facts only.
func windowsModes() mode.List {
	modes := all.Modes()
	for i := range modes {
		if !modes[i].On("windows") {
			modes[i].New = nil
		}
	}
	return modes
}

// forMode returns the values of c for the mode of that name.
func forMode(t testing.TB, c *Config, name string) (Resolved, error) {
	t.Helper()
	m, ok := c.modes.Find(name)
	if !ok {
		t.Fatalf("there is no mode %q", name)
	}
	return c.For(m)
}

func complete(t testing.TB, tc testCase) (*Config, error) {
	t.Helper()
	o := NewOptions(all.Modes())
	o.getenv = func(string) string { return tc.env }
	if tc.windows {
		o.system, o.modes = "windows", windowsModes()
	}
	o.hostname = func() (string, error) { return " Worker-1.Example\n", nil }
	o.readFile = idFiles
	fs := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	o.AddFlags(fs)
	args := tc.args
	if tc.file != "" {
		name := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(name, []byte(tc.file), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"--config=" + name}, args...)
	}
	if err := fs.Parse(args); err != nil {
		return nil, Unparsed(args, err, all.Modes())
	}
	c, err := o.Complete(fs.Args())
	if err != nil && tc.file != "" { // the name of the temporary file is arbitrary
		err = errors.New(strings.ReplaceAll(err.Error(), args[0][len("--config="):], "FILE"))
	}
	return c, err
}

// idFiles are the files of a host that names itself in the second place, as one without systemd
// does.
func idFiles(name string) ([]byte, error) {
	id, ok := map[string]string{"/var/lib/dbus/machine-id": "4d61\n", "/proc/sys/kernel/random/boot_id": "b007\n"}[name]
	if !ok {
		return nil, os.ErrNotExist
	}
	return []byte(id), nil
}

func compare(t *testing.T, tc testCase, what string, got, want []string) {
	t.Helper()
	same := slices.EqualFunc(got, want, func(g, w string) bool {
		if start, ok := strings.CutSuffix(w, "…"); ok {
			return strings.HasPrefix(g, start)
		}
		return g == w
	})
	if !same {
		t.Errorf("%s: %s:\n  %s\nwant:\n  %s", tc.at, what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// differences lists the fields of b that differ from a, as "Field.Sub: value".
func differences(a, b *Config) []string {
	var out []string
	var walk func(name string, x, y reflect.Value)
	walk = func(name string, x, y reflect.Value) {
		if x.Kind() == reflect.Struct && x.Type().PkgPath() == reflect.TypeFor[Config]().PkgPath() {
			for i := range x.NumField() {
				if !x.Type().Field(i).IsExported() || name == "" && slices.Contains([]string{"Flags", "File", "Blocks"},
					x.Type().Field(i).Name) {
					continue
				}
				walk(strings.TrimPrefix(name+"."+x.Type().Field(i).Name, "."), x.Field(i), y.Field(i))
			}
			return
		}
		if name == "Gates" {
			for _, gate := range slices.Sorted(maps.Keys(y.Interface().(map[string]bool))) {
				if on := y.Interface().(map[string]bool)[gate]; on != x.Interface().(map[string]bool)[gate] {
					out = append(out, fmt.Sprintf("Gates.%s: %t", gate, on))
				}
			}
			return
		}
		if name != "Warnings" && !reflect.DeepEqual(x.Interface(), y.Interface()) {
			out = append(out, fmt.Sprintf("%s: %v", name, y.Interface()))
		}
	}
	walk("", reflect.ValueOf(*a), reflect.ValueOf(*b))
	for i, block := range b.Blocks {
		was := option.Leaves(a.Blocks[i])
		for j, l := range option.Leaves(block) {
			if is := written(l); !bytes.Equal(is, written(was[j])) {
				out = append(out, fmt.Sprintf("%s: %s", l.Path, is))
			}
		}
	}
	return out
}

func readCases(t testing.TB, file string) []testCase {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []testCase
	var tc *testCase
	for i, line := range strings.Split(string(data), "\n") {
		if line == "" {
			tc = nil
			continue
		}
		if tc == nil {
			all = append(all, testCase{at: fmt.Sprintf("%s:%d", file, i+1)})
			tc = &all[len(all)-1]
		}
		mark, rest, _ := strings.Cut(line, " ")
		switch mark {
		case "#":
			tc.name = strings.TrimSpace(tc.name + " " + rest)
		case "$":
			for _, arg := range strings.Fields(rest) {
				tc.args = append(tc.args, strings.ReplaceAll(arg, "␣", " "))
			}
		case "|":
			tc.file += strings.ReplaceAll(rest, `\xff`, "\xff") + "\n"
		case "windows":
			tc.windows = true
		case "NODE_NAME":
			tc.env = rest
		case "=":
			tc.want = append(tc.want, rest)
		case "!":
			tc.bad = append(tc.bad, rest)
		case "~":
			tc.say = append(tc.say, rest)
		default:
			t.Fatalf("%s:%d: cannot read %q", file, i+1, line)
		}
	}
	return all
}

// The defaults, listed once: testdata has only the differences.
func TestDefaults(t *testing.T) {
	c, err := complete(t, testCase{args: []string{"--proxy-mode=nftables"}})
	if err != nil {
		t.Fatal(err)
	}
	c.file, c.table, c.Gates, c.Flags, c.Blocks = nil, nil, nil, nil, nil
	c.modes, c.unchecked, c.inMode, c.names = nil, nil, nil, nil
	got := strings.ReplaceAll(fmt.Sprintf("%+v", *c), " ", "\n") + "\n"
	golden.Equal(t, "testdata/defaults.golden", got)
}

// FL-05: --version is evaluated before anything is validated.
func TestVersion(t *testing.T) {
	for arg, want := range map[string][2]bool{
		"--version": {true, false}, "--version=true": {true, false}, "--version=raw": {true, true},
		"--version=false": {false, false}, "--version=v1.2.3": {false, false}, "-v=2": {false, false},
	} {
		o := NewOptions(all.Modes())
		fs := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
		o.AddFlags(fs)
		if err := fs.Parse([]string{arg}); err != nil {
			t.Fatal(err)
		}
		if print, raw := o.PrintsVersion(); print != want[0] || raw != want[1] {
			t.Errorf("%s: print %v, raw %v, want %v", arg, print, raw, want)
		}
	}
}

// Any file gives a configuration or an error; a configuration is valid and can be written (FL-06).
func FuzzFile(f *testing.F) {
	files, err := filepath.Glob("testdata/*file.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		for _, tc := range readCases(f, name) {
			f.Add(tc.file)
		}
	}
	f.Fuzz(func(t *testing.T, file string) {
		if file == "" {
			return
		}
		c, err := complete(t, testCase{file: file, args: []string{"--nodeport-addresses=primary"}})
		switch {
		case (c == nil) != (err != nil):
			t.Errorf("configuration %+v and error %v", c, err)
		case err != nil && err.Error() == "":
			t.Error("an error without a text")
		case err == nil && (c.NodeName == "" || c.Mode != "" &&
			!slices.Contains([]string{"iptables", "nftables", "ipvs"}, c.Mode) || !c.BindAddress.IsValid() ||
			len(c.ClusterCIDRs) > 2 || c.Logging.Verbosity < 0):
			t.Errorf("configuration %+v", c)
		case err == nil:
			roundTrip(t, c, false)
		}
	})
}

// Files that no editor writes: nothing, binary data, another alphabet, a folder.
func TestBadFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "config.yaml")
	for content, want := range map[string]string{
		"":                         "failed to decode: it is empty: want apiVersion",
		" \n\t\n":                  "failed to decode: ",
		"\x00\x00\x00":             "failed to decode: ",
		"\xff\xfem\x00o\x00d\x00":  "failed to decode: ",
		"\xff\xfe\xfd":             "failed to decode: ",
		"- a\n- b\n":               "failed to decode: it is not a mapping of fields to values",
		"kind: &a [*a]\n":          "failed to decode: ",
		strings.Repeat("[", 20000): "failed to decode: ",
	} {
		must(t, os.WriteFile(name, []byte(content), 0o600))
		o := NewOptions(all.Modes())
		o.ConfigFile = name
		_, err := o.Complete(nil)
		if err == nil || !strings.HasPrefix(err.Error(), "--config "+name+": "+want) {
			t.Errorf("a file of %.20q: %.300v", content, err)
		}
	}
	o := NewOptions(all.Modes())
	o.ConfigFile = t.TempDir()
	if _, err := o.Complete(nil); err == nil || !strings.HasPrefix(err.Error(), "read --config: ") {
		t.Errorf("a folder: %v", err)
	}
}

// A file from an editor of Windows, with CRLF and with or without a byte order mark, has the same
// meaning.
func TestFileOfWindows(t *testing.T) {
	const file = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n" +
		"clusterCIDR: 10.0.0.0/16\nwinkernel:\n  networkName: cbr0\n"
	want, err := complete(t, testCase{file: file})
	must(t, err)
	for _, mark := range []string{"", "\ufeff"} {
		got, err := complete(t, testCase{file: mark + strings.ReplaceAll(file, "\n", "\r\n")})
		must(t, err)
		if d := differences(want, got); len(d) > 0 || len(got.Warnings) != len(want.Warnings) {
			t.Errorf("with mark %q: %v, %v", mark, d, got.Warnings)
		}
	}
}
