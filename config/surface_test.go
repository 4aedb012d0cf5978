package config

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kube-proxy/config/option"
	"kube-proxy/plane/all"
	"kube-proxy/test/golden"
)

// rows reads a table of testdata: lines of cells with tabs between, the first one names the
// columns.
func rows(t *testing.T, name string) []map[string]string {
	t.Helper()
	data, err := os.ReadFile(name)
	must(t, err)
	var all []map[string]string
	var columns []string
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "\t")
		if columns == nil {
			columns = cells
			continue
		}
		if len(cells) != len(columns) {
			t.Fatalf("%s: %d cells in %q, want %d", name, len(cells), line, len(columns))
		}
		row := map[string]string{}
		for i, cell := range cells {
			if cell != `""` {
				row[columns[i]] = cell
			}
		}
		all = append(all, row)
	}
	return all
}

func effectName(e *entry) string {
	switch {
	case e.Gone != "":
		return "gone"
	case e.System != "":
		return e.System
	case e.modes != nil:
		return strings.Join(e.modes, ",")
	}
	return "works"
}

// G1: the flags are those of all documents, and each has the type and the default of the table.
func TestFlagTable(t *testing.T) {
	o := NewOptions(all.Modes())
	fs := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	o.AddFlags(fs)
	byName := map[string]*entry{}
	for f := range o.table.flags() {
		byName[f.Flag] = f
	}
	// Types with better names in the documents than in the parser.
	names := map[string]string{"ip": "string", "ipport": "string"}
	var listed []string
	count := map[string]int{}
	for _, row := range rows(t, "testdata/flags.tsv") {
		name := row["name"]
		listed = append(listed, name)
		for _, era := range []string{"S0", "S1", "S2", "S4", "now"} {
			if row[era] != "-" {
				count[era]++
			}
		}
		f, typ := fs.Lookup(name), row["type"]
		if n, ok := names[typ]; ok {
			typ = n
		}
		switch {
		case f == nil:
			t.Errorf("--%s is not there", name)
			continue
		case f.Value.Type() != typ:
			t.Errorf("--%s has type %s, want %s", name, f.Value.Type(), typ)
		case f.DefValue != row["default"]:
			t.Errorf("--%s has default %q, want %q", name, f.DefValue, row["default"])
		case effectName(byName[name]) != row["effect"]:
			t.Errorf("--%s has effect %s, want %s", name, effectName(byName[name]), row["effect"])
		}
		// G2
		if g := fs.Lookup(strings.ReplaceAll(name, "-", "_")); g != f {
			t.Errorf("--%s with underscores is another flag", name)
		}
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(listed, f.Name) {
			t.Errorf("--%s is not in testdata/flags.tsv", f.Name)
		}
	})
	// As many as the documents have, without --help, which cobra adds.
	for era, want := range map[string]int{"S0": 25, "S1": 39, "S2": 40, "S4": 58} {
		if count[era] != want {
			t.Errorf("%d flags of %s in testdata/flags.tsv, want %d", count[era], era, want)
		}
	}
}

// Each flag whose effect is not "works" causes one warning that names it.
func TestFlagsTell(t *testing.T) {
	values := map[string]string{"duration": "7s", "int32": "3", "bool": "true", "list": "10.0.0.0/8", "float32": "7",
		"ip":     "192.0.2.1",
		"ipport": "192.0.2.1:99", "show-hidden-metrics-for-version": previousMinor, "proxy-port-range": "1-2",
		"source-vip": "192.0.2.9",
		"snapshot":   "/var/lib/kube-proxy", "snapshot-max-age": "1h",
		"failover": "avoid"}
	for _, row := range rows(t, "testdata/flags.tsv") {
		name := row["name"]
		if row["effect"] == "works" || slices.Contains(strings.Split(row["effect"], ","), "nftables") ||
			strings.Contains("iptables-sync-period iptables-min-sync-period iptables-masquerade-bit masquerade-all",
				name) {
			continue
		}
		value, ok := values[name]
		if !ok {
			value, ok = values[row["type"]]
			if !ok {
				value = "x"
			}
		}
		tc := testCase{args: []string{"--proxy-mode=nftables", "--" + name + "=" + value}}
		if row["effect"] == "linux" {
			tc.windows, tc.args[0] = true, "--proxy-mode=userspace"
		}
		c, err := complete(t, tc)
		if err != nil {
			t.Errorf("--%s=%s: %v", name, value, err)
			continue
		}
		reportedFlags := 0
		for _, w := range warnings(t, c) {
			if strings.Contains(w, "--"+name) {
				reportedFlags++
			}
		}
		if reportedFlags != 1 {
			t.Errorf("--%s=%s has %d warnings: %q", name, value, reportedFlags, c.Warnings)
		}
		// In its own mode the flag has its effect.
		if mode, _, _ := strings.Cut(row["effect"], ","); slices.Contains(modes, mode) && mode != "kernelspace" {
			c, err := complete(t, testCase{args: []string{"--proxy-mode=" + mode, "--nodeport-addresses=primary", "--" +
				name + "=" + value}})
			switch {
			case name == "ipvs-scheduler", strings.HasPrefix(name, "ebpf-") && (value == "x" || value == "10.0.0.0/8"):
				// no path
			case err != nil:
				t.Errorf("--%s=%s in mode %s: %v", name, value, mode, err)
			case len(warnings(t, c)) > 0:
				t.Errorf("--%s=%s in mode %s: warnings %q", name, value, mode, warnings(t, c))
			}
		}
	}
}

// The fields are those of the type and of the table; defaults are the table's.
func TestFieldTable(t *testing.T) {
	o := NewOptions(all.Modes())
	inCode := slices.Collect(o.table.fields())
	var paths []string
	for _, row := range rows(t, "testdata/fields.tsv") {
		i := slices.IndexFunc(inCode, func(e *entry) bool { return e.Path == row["field"] })
		if i < 0 {
			t.Fatalf("testdata/fields.tsv has %s, the code has not", row["field"])
		}
		f := inCode[i]
		paths = append(paths, f.Path)
		live := map[bool]string{true: "live", false: "restart"}[f.Restart == ""]
		got := []string{f.Path, f.Row, saidAt(o.file, f.Path), live, effectName(f)}
		want := []string{row["field"], row["row"], row["default"], row["reload"], row["effect"]}
		if !slices.Equal(got, want) {
			t.Errorf("field %q, want %q", got, want)
		}
	}
	if len(paths) != len(inCode) {
		t.Errorf("testdata/fields.tsv has %d fields, the code %d", len(paths), len(inCode))
	}
	for _, l := range slices.Concat(o.file.leaves(), option.Leaves(&v1alpha1.KubeProxyConfiguration{})) {
		if !slices.Contains(paths, l.Path) {
			t.Errorf("the type has the field %s, the table has not", l.Path)
		}
	}
}

// saidAt returns a value as written in a file.
func saidAt(s *settings, path string) string {
	return strings.Trim(string(written(option.Leaf{Path: path, Value: s.at(path)})), `"`)
}

// Current gates can be set to their defaults, and have an effect or a reason why not (G7).
func TestGates(t *testing.T) {
	for _, g := range gates() {
		if changes := !g.locked || g.documentedOff(); changes == (does[g.name] == "" && idle[g.name] == "") ||
			does[g.name] != "" && idle[g.name] != "" {
			t.Errorf("the gate %s: locked %t, does %q, idle %q", g.name, g.locked, does[g.name], idle[g.name])
		}
	}
	for _, g := range append(gates(), gate{name: "AllAlpha"}, gate{name: "AllBeta"}) {
		for _, on := range []string{"true", "false"} {
			_, err := complete(t, testCase{args: []string{"--proxy-mode=nftables", "--feature-gates=" + g.name + "=" +
				on}})
			if g.locked && on != "true" && !g.documentedOff() {
				if err == nil || !strings.Contains(err.Error(), "feature is locked to true") {
					t.Errorf("%s=%s: %v", g.name, on, err)
				}
			} else if err != nil {
				t.Errorf("%s=%s: %v", g.name, on, err)
			}
		}
	}
}

// Every gate of the reference documents, of other programs and of versions since v1.8 starts the
// proxy, with one warning if it has no effect (G1, CF-01).
func TestGatesOfOthers(t *testing.T) {
	read := func(file string) []string {
		names, err := os.ReadFile("testdata/" + file)
		must(t, err)
		return strings.Fields(string(names))
	}
	documented := read("feature-gates.list")
	others := slices.Concat(read("other-gates.list"), slices.Collect(maps.Keys(idle)))
	if len(documented) != 164 {
		t.Fatalf("%d gates in the documents, want 164", len(documented))
	}
	current := map[string]bool{"AllAlpha": true, "AllBeta": true}
	for _, g := range gates() {
		current[g.name] = true
	}
	for _, name := range documented {
		if !current[name] && !slices.Contains(others, name) {
			t.Errorf("the documents' gate %s is not tested", name)
		}
	}
	others = slices.DeleteFunc(others, func(name string) bool { return current[name] })
	slices.Sort(others)
	others = slices.Compact(others)
	for _, on := range []string{"=true", "=false"} {
		c, err := complete(t, testCase{args: []string{"--proxy-mode=nftables", "--feature-gates=" +
			strings.Join(others, on+",") + on}})
		must(t, err)
		for _, name := range others {
			times := 0
			for _, w := range c.Warnings {
				if slices.Contains(strings.Fields(strings.ReplaceAll(w, ",", " ")), name+on) {
					times++
				}
			}
			if times != 1 {
				t.Errorf("%s%s is in %d warnings", name, on, times)
			}
		}
	}
}

func TestPages(t *testing.T) {
	for name, page := range map[string]string{"../docs/flags.md": flagsPage(all.Modes()),
		"../docs/configuration.md": configurationPage(all.Modes()), "testdata/help.golden": help()} {
		golden.Equal(t, name, page)
	}
}

func help() string {
	var b strings.Builder
	Usage(&b, all.Modes())
	return b.String()
}
