package planetest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kube-proxy/internal/scenario"
)

var update = flag.Bool("update", false, "write docs/conformance.md anew")

// docs/conformance.md is what the recorded results say. To record: PLANETEST_RECORD=1 go test ./plane/MODE -run
// Conformance, also under other kernels; then go test ./plane/planetest -run TestPage -update.
func TestPage(t *testing.T) {
	dir, err := scenario.Dir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := scenario.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	results, err := ReadResults(filepath.Join("testdata", "results"))
	if err != nil {
		t.Fatal(err)
	}
	want := Page(all, results)
	file := filepath.Join(dir, "..", "..", "docs", "conformance.md")
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/conformance.md is stale: go test ./plane/planetest -run TestPage -update\n%s", difference(want, string(got)))
	}
	for _, r := range results {
		for name, c := range r.Cases {
			for family, verdict := range c.Families {
				if verdict == Fails {
					t.Errorf("recorded: %s fails in %s on kernel %s, %s", name, r.Mode, r.Kernel, family)
				}
			}
		}
	}
}

func TestPageCells(t *testing.T) {
	sc := func(name string) *scenario.Scenario {
		return &scenario.Scenario{Name: name, Story: "A | b\nc.", Rows: []string{"SV-10"}}
	}
	both := func(v4, v6 string) Result { return Result{Families: map[string]string{"IPv4": v4, "IPv6": v6}} }
	sctp := both(Passes, Passes)
	sctp.SCTP = 2
	got := Page([]*scenario.Scenario{sc("good"), sc("bad"), sc("half"), sc("differs"), sc("sctp"), sc("new")}, []Results{{
		Mode: "m", Kernel: "6.1",
		Cases: map[string]Result{
			"good": both(Passes, Passes), "bad": both(Fails, Fails), "half": both(Passes, NotApplicable),
			"differs": {Differs: "SV-62: not in this mode"}, "sctp": sctp, "generated-x": both(Passes, Fails),
		},
	}})
	for _, want := range []string{
		"| m | 6.1 | 6 | 3 | 1 | 1 | 2 |\n",
		"| **good**: A \\| b c. | SV-10 | ✓ |\n",
		"| **bad**: A \\| b c. | SV-10 | ✗ |\n",
		"| **half**: A \\| b c. | SV-10 | v4 ✓ v6 – |\n",
		"| **differs**: A \\| b c. | SV-10 | – <sup>1</sup> |\n",
		"| **sctp**: A \\| b c. | SV-10 | ✓ <sup>2</sup> |\n",
		"| **new**: A \\| b c. | SV-10 | ? |\n",
		"| **generated-x** | | v4 ✓ v6 ✗ |\n",
		"| SV-10 | good, bad, half, differs, sctp, new |\n",
		"1. SV-62: not in this mode\n2. This kernel has no SCTP",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"5.10", "6.1", -1}, {"6.12", "6.1", 1}, {"6.1", "6.1", 0}} {
		if got := compareVersions(c.a, c.b); got != c.want {
			t.Errorf("%s, %s: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// A run of some scenarios leaves what was recorded of the others, and of other modes and kernels, alone.
func TestComplete(t *testing.T) {
	passed, failed := Result{Families: map[string]string{"IPv4": Passes}}, Result{Families: map[string]string{"IPv4": Fails}}
	r := Results{Mode: "iptables", Kernel: "6.1", Cases: map[string]Result{"again": passed}}
	r.complete([]Results{
		{Mode: "iptables", Kernel: "6.1", Cases: map[string]Result{"again": failed, "before": failed}},
		{Mode: "iptables", Kernel: "6.12", Cases: map[string]Result{"elsewhere": passed}},
		{Mode: "nftables", Kernel: "6.1", Cases: map[string]Result{"other": passed}},
	})
	if len(r.Cases) != 2 || r.Cases["again"].Families["IPv4"] != Passes || r.Cases["before"].Families["IPv4"] != Fails {
		t.Errorf("%+v", r.Cases)
	}
}
