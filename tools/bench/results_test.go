package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each document shows what docs/performance.json has: who writes a figure by hand fails here.
func TestDocuments(t *testing.T) {
	const root = "../.."
	r, err := readResults(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"README.md", "docs/performance.md"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		filled, err := fill(file, string(text), r)
		if err != nil {
			t.Fatal(err)
		}
		if filled != string(text) {
			t.Errorf("%s does not show the figures of %s: make bench writes both", file, resultsFile)
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if strays := figuresByHand(string(text), readme(r)); len(strays) > 0 {
		t.Errorf("README has figures that are not in %s: %q", resultsFile, strays)
	}
}

// figureText is a time or an amount of memory with its unit.
var figureText = regexp.MustCompile(`\d[\d.,]* (?:ns|µs|ms|s|MiB|GiB|MB|GB)\b`)

// figuresByHand returns the figures of a document that the part made from the results lacks.
func figuresByHand(document, made string) (strays []string) {
	known := figureText.FindAllString(made, -1)
	for _, f := range figureText.FindAllString(document, -1) {
		if !slices.Contains(known, f) {
			strays = append(strays, f)
		}
	}
	return strays
}

func TestFiguresByHand(t *testing.T) {
	const made = "| start | 5,000 | 1.2 ms | 80 MiB |"
	got := figuresByHand("a change takes 1.2 ms, a start 2 s and 80 MiB or 0 MiB", made)
	if strings.Join(got, ",") != "2 s,0 MiB" {
		t.Errorf("%q", got)
	}
}

// results of a run of both programs.
func bothMeasured() figures {
	f := figures{}
	add := func(name string, values map[string]float64) { f.add(inMeasure, line{name, values}) }
	for _, program := range []string{"", "Peer"} {
		add(program+"StandIn/nftables/services=5000/start", map[string]float64{"p50-ms": 620, "cpu-ms/op": 480})
		add(program+"StandIn/nftables/services=5000/change", map[string]float64{"p50-ms": 1.25, "p99-ms": 3})
	}
	add("StandIn/nftables/services=20000/start", map[string]float64{"p50-ms": 1620, "cpu-ms/op": 1480})
	add("PeerStandIn/nftables/services=20000/start", map[string]float64{"over-ms": 240_000})
	add("Tenant/nftables/services=5000/change", map[string]float64{"own-p50-ms": 1.1})
	add("Tenant/ebpf/services=5000/change", map[string]float64{"own-p50-ms": 0.7})
	return f
}

func TestComparison(t *testing.T) {
	const want = `| | Services | nftables | ebpf | iptables | upstream nftables | upstream iptables |
|---|---|---|---|---|---|---|
| process start → the last Service answers | 5,000 | 620 ms | – | – | 620 ms | – |
|  | 20,000 | 1.62 s | – | – | not in 240 s | – |
| … its processor time | 5,000 | 480 ms | – | – | 480 ms | – |
|  | 20,000 | 1.48 s | – | – | – | – |
| changed endpoint → a connection reaches it, p50 | 5,000 | 1.2 ms | – | – | 1.2 ms | – |
| … p99 | 5,000 | 3 ms | – | – | 3 ms | – |
| … the proxy's own share, p50 (goal in mode nftables: ≤ 1 ms) | 5,000 | **missed:** 1.1 ms | 700 µs | – | – | – |
`
	if got := comparison(bothMeasured()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := comparison(bothMeasured(), 20_000); strings.Count(got, "\n") != 4 || !strings.Contains(got, "1.62 s") {
		t.Errorf("of one size:\n%s", got)
	}
}

// A run adds to what the same commit measured on the same machine; another replaces it. A failed
// command is named with the table.
func TestAdd(t *testing.T) {
	r, now := results{}, facts{Commit: "abc", Kernel: "6.18", CPU: "fast"}
	value := func(mode, key string) []float64 { return r[mode].Figures[key] }
	r.add("compare", now, "Kubernetes v1.37.2", outcome{Command: "a", LoadBefore: 0.5, LoadAfter: 2},
		figures{"x": {1}, "y": {5}})
	r.add("compare", now, "", outcome{Command: "a", LoadBefore: 1, LoadAfter: 1.5}, figures{"x": {2}})
	r.add("compare", now, "", outcome{Command: "b", LoadBefore: 1, Error: errors.New("exit status 1").Error()}, nil)
	if p := r["compare"]; len(p.Runs) != 2 || value("compare", "x")[0] != 2 || value("compare", "y")[0] != 5 {
		t.Errorf("%+v", p)
	}
	const want = "load average 0.0 to 1.5. Upstream is Kubernetes v1.37.2. Without result: `b` (exit status 1)."
	if got := r["compare"].judgement(nil); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	now.Commit = "def"
	r.add("compare", now, "", outcome{Command: "b"}, figures{"z": {1}})
	if p := r["compare"]; len(p.Figures) != 1 || len(p.Runs) != 1 || p.Peer != "" {
		t.Errorf("after a run of another commit: %+v", p)
	}
}

// The file holds what was written, and the places of documents take it; the rest of them stays.
func TestWrite(t *testing.T) {
	root := t.TempDir()
	for _, file := range []string{"README.md", "docs/performance.md"} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(root, file), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r, err := readResults(root)
	if err != nil || len(r) != 0 {
		t.Fatalf("without a file: %v, %v", r, err)
	}
	now := facts{Date: "2026-11-28", Commit: "abcdef", Kernel: "6.18", CPUs: 2}
	r.add("compare", now, "Kubernetes v1.37.2", outcome{Command: "a"}, bothMeasured())
	r.add("nftables", now, "", outcome{Command: "b"}, measured())
	if err := write(root, r); err != nil {
		t.Fatal(err)
	}
	again, err := readResults(root)
	if err != nil || len(again) != 2 || again["compare"].Peer != "Kubernetes v1.37.2" {
		t.Errorf("read again: %v, %v", again, err)
	}
	for file, want := range map[string]string{"README.md": "| 5,000 | 620 ms | – | – | 620 ms | – |\n",
		"docs/performance.md": "13 of 22 rows reach their goal"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil || !strings.Contains(string(text), want) || !strings.Contains(string(text), "commit abcdef") {
			t.Errorf("%s: %v, no %q in\n%s", file, err, want, text)
		}
	}
	if _, err := fill("docs/performance.md", "# A page\n", r); err == nil {
		t.Error("a page without places is taken")
	}
}

// A plan has both programs, in each mode that they have, and prints no path of this machine.
func TestPlan(t *testing.T) {
	o := options{api: true, sizes: []int{5000}, few: []int{5000}, modes: modes, peer: "/upstream/kube-proxy",
		job: regexp.MustCompile("")}
	commands := ""
	for _, j := range selected(o) {
		commands += j.command() + "\n"
	}
	for _, want := range []string{
		"go test ./policy -run '^$' -bench '^BenchmarkEndpointChange$/^services=(100|10000|100000)$' " +
			"-benchtime 10000x ",
		"cd test/e2e && KUBE_PROXY=$OLDPWD/bin/kube-proxy go test ./measure -run '^$' -bench " +
			"'^BenchmarkAPIServer$/^services=/^start$' ",
		"PEER=$PEER go test ./measure -run '^$' -bench '^BenchmarkPeerStandIn$/^nftables$/^services=/" +
			"^(start|change|new|connect)$' -benchtime 6x ", " -services 20000 -starts 1 -patience 4m0s\n",
		"'^BenchmarkTenant$/^ebpf$/^services=/^change$'",
		"'^BenchmarkIPTablesLegacy$/^services=/^(change|new|connect)$'",
	} {
		if !strings.Contains(commands, want) {
			t.Errorf("no %q in\n%s", want, commands)
		}
	}
	if strings.Contains(commands, o.peer) {
		t.Errorf("a command names the path of the peer:\n%s", commands)
	}
	o.job, o.modes = regexp.MustCompile("Peer"), []string{"compare"}
	if n := len(selected(o)); n != 5 {
		t.Errorf("%d commands measure the peer", n)
	}
	o.peer = ""
	if n := len(selected(o)); n != 0 {
		t.Errorf("%d commands measure a peer that is not there", n)
	}
}
