package planetest

import (
	"flag"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"kube-proxy/test/golden"
	"kube-proxy/test/scenario"
)

var (
	release = flag.String("release", "", "note that make release-check passed for this commit, on the kernels that "+
		"the arguments name")
)

// One mark represents all kernels of a mode if they agree; otherwise each kernel is named.
func TestPageKernels(t *testing.T) {
	is := func(v string) map[string]Result {
		return map[string]Result{"one": {Families: map[string]string{"IPv4": v, "IPv6": v}}, "new": {Left: "too large"}}
	}
	sc := []*scenario.Scenario{{Name: "one"}, {Name: "new"}}
	agree := []Results{{Mode: "m", Kernel: "6.1", Cases: is(Passes)}, {Mode: "m", Kernel: "6.12", Cases: is(Passes)}}
	differ := append(agree[:1:1], Results{Mode: "m", Kernel: "6.12", Cases: is(Fails)})
	for want, results := range map[string][]Results{
		"### m\n\n- ? <sup>1</sup>: [new](../test/testdata/scenarios/new.txtar)\n": agree,
		"- 6.1 ✓, 6.12 ✗: [one](../test/testdata/scenarios/one.txtar)\n":           differ,
	} {
		if got := Page(sc, results, nil); !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

// docs/conformance.md shows the recorded results. To record: PLANETEST_RECORD=$(git describe
// --always --dirty) go test -count=1 ./plane/MODE -run Conformance, also under other kernels (make
// generate does all); then go test ./test/planetest -run TestPage -update.
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
	file := filepath.Join("testdata", "release.json")
	if *release != "" {
		r, err := NewRelease(Seen{time.Now().UTC().Format(time.DateOnly), *release}, flag.Args(), results)
		if err == nil {
			err = r.Write(file)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	passed, err := ReadRelease(file)
	if err != nil {
		t.Fatal(err)
	}
	want := Page(all, results, passed)
	file = filepath.Join(dir, "..", "..", "..", "docs", "conformance.md")
	golden.Equal(t, file, want)
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
		return &scenario.Scenario{Name: name, Rows: []string{"SV-10"}}
	}
	both := func(v4, v6 string) Result { return Result{Families: map[string]string{"IPv4": v4, "IPv6": v6}} }
	sctp := both(Passes, Passes)
	sctp.SCTP = 2
	before := both(Passes, Passes)
	before.Seen = &Seen{"2026-11-02", "older"}
	got := Page([]*scenario.Scenario{sc("good"), sc("bad"), sc("half"), sc("differs"), sc("sctp"), sc("new"),
		sc("before"), sc("large")}, []Results{{
		Mode: "m", Kernel: "6.1",
		Cases: map[string]Result{
			"good": both(Passes, Passes), "bad": both(Fails, Fails), "half": both(Passes, NotApplicable),
			"differs": {Differs: "SV-62: not in this mode"}, "sctp": sctp, "generated-x": both(Passes, Fails),
			"before": before, "large": {Left: "it takes hours"},
		},
		All: &Seen{"2026-11-03", "abc"},
	}}, nil)
	for _, want := range []string{
		"It has not passed yet",
		"- m, 6.1: 8 pass, 3 fail, 1 differ by intent, 1 not applicable, 2 lines without SCTP; complete on " +
			"2026-11-03 at abc\n",
		"- ?: [new](../test/testdata/scenarios/new.txtar)\n",
		"- ? <sup>2</sup>: [large](../test/testdata/scenarios/large.txtar)\n",
		"- v4 ✓ v6 –: [half](../test/testdata/scenarios/half.txtar)\n",
		"- v4 ✓ v6 ✗: generated-x\n",
		"- – <sup>1</sup>: [differs](../test/testdata/scenarios/differs.txtar)\n",
		"- ✗: [bad](../test/testdata/scenarios/bad.txtar)\n",
		"1. SV-62: not in this mode\n2. Left out in emulation: it takes hours.\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	for _, name := range []string{"good", "sctp", "before"} {
		if strings.Contains(got, "["+name+"]") {
			t.Errorf("%s passes, and is listed:\n%s", name, got)
		}
	}
}

// The page describes the differences of a mode in which connections end at the proxy, and nothing
// of that without such a mode.
func TestPageProxied(t *testing.T) {
	sc := []*scenario.Scenario{{Name: "one", Rows: []string{"SV-10"}}}
	c := Result{Families: map[string]string{"IPv4": Passes, "IPv6": Passes}}
	plain := []Results{{Mode: "m", Kernel: "6.1", Cases: map[string]Result{"one": c}}}
	if got := Page(sc, plain, nil); strings.Contains(got, "end at the proxy") {
		t.Errorf("speaks of a mode that is not there:\n%s", got)
	}
	note(&c.Proxied, []Proxied{ProxiedRetry, ProxiedAddress, ProxiedRetry})
	got := Page(sc, append(plain, Results{Mode: "u", Kernel: "6.1", Cases: map[string]Result{"one": c}}), nil)
	for _, want := range []string{
		"In mode u connections end at the proxy: ",
		"### m\n\nAll scenarios pass.\n\n### u\n",
		"- ✓ <sup>1</sup>: [one](../test/testdata/scenarios/one.txtar)\n",
		"1. " + proxiedNotes[ProxiedRetry] + "\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

// A column of a model has that in its name, and the page explains its value; without a model it has
// no explanation.
func TestPageModelled(t *testing.T) {
	sc := []*scenario.Scenario{{Name: "one", Rows: []string{"SV-10"}}}
	c := Result{Families: map[string]string{"IPv4": Passes, "IPv6": Passes}}
	plain := []Results{{Mode: "m", Kernel: "6.1", Cases: map[string]Result{"one": c}}}
	if got := Page(sc, plain, nil); strings.Contains(got, "is a model") {
		t.Errorf("speaks of a model that is not there:\n%s", got)
	}
	note(&c.Modelled, []Modelled{ModelledSplit, ModelledSCTP, ModelledSplit})
	model := Results{Mode: "w", Kernel: "fake HNS", Model: true, Cases: map[string]Result{"one": c}}
	got := Page(sc, append(plain, model), nil)
	for _, want := range []string{
		"### w (fake HNS)\n",
		"A mode with a name in brackets is a model",
		"- ≈ <sup>1</sup> <sup>2</sup>: [one](../test/testdata/scenarios/one.txtar)\n",
		"- w, fake HNS: 0 pass, 1 differ by intent; oldest result –\n",
		"1. " + modelledNotes[ModelledSCTP] + "\n2. " + modelledNotes[ModelledSplit] + "\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	passed := Seen{Date: "2026-11-22", Commit: "c"}
	plain[0].All = &passed
	if _, err := NewRelease(passed, []string{"6.1"}, append(plain, model)); err != nil {
		t.Errorf("a release asks for packets of a model: %v", err)
	}
	dir := t.TempDir()
	if err := model.Write(dir); err != nil {
		t.Fatal(err)
	}
	if again, err := ReadResults(dir); err != nil || len(again) != 1 || !reflect.DeepEqual(again[0], model) {
		t.Errorf("read back: %+v, %v", again, err)
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

// A run of some scenarios does not change the results of others. A run of all removes deleted
// scenarios, and keeps earlier results of those that it had to leave out.
func TestMerge(t *testing.T) {
	is := func(verdict string, seen *Seen) Result {
		return Result{Families: map[string]string{"IPv4": verdict}, Seen: seen}
	}
	old, odd, now := Seen{"2026-11-01", "old"}, Seen{"2026-11-02", "odd"}, Seen{"2026-11-03", "now"}
	known := []Results{
		{Mode: "iptables", Kernel: "6.1", All: &old, Cases: map[string]Result{
			"again": is(Fails, nil), "odd": is(Passes, &odd), "large": is(Passes, nil), "gone": is(Passes, nil)}},
		{Mode: "iptables", Kernel: "6.12", All: &old, Cases: map[string]Result{"elsewhere": is(Passes, nil)}},
		{Mode: "nftables", Kernel: "6.1", All: &old, Cases: map[string]Result{"other": is(Passes, nil)}},
	}
	for name, c := range map[string]struct {
		all       bool
		run, want map[string]Result
	}{
		"some": {false, map[string]Result{"again": is(Passes, nil), "large": {Left: "too large"}},
			map[string]Result{"again": is(Passes, &now), "odd": is(Passes, &odd), "large": is(Passes, nil),
				"gone": is(Passes, nil)}},
		"all": {true, map[string]Result{"again": is(Passes, nil), "odd": is(Passes, nil), "large": {Left: "too large"},
			"new": is(Passes, nil)},
			map[string]Result{"again": is(Passes, nil), "odd": is(Passes, nil), "large": is(Passes, &old),
				"new": is(Passes, nil)}},
	} {
		r := Results{Mode: "iptables", Kernel: "6.1", Cases: c.run}
		r.merge(known, now, c.all)
		when := old
		if c.all {
			when = now
		}
		if !reflect.DeepEqual(r.Cases, c.want) || *r.All != when {
			t.Errorf("%s: %+v at %s, want %+v at %s", name, r.Cases, r.All, c.want, when)
		}
	}
	first := Results{Mode: "ipvs", Kernel: "6.1", Cases: map[string]Result{"again": is(Passes, nil)}}
	first.merge(known, now, false)
	if first.All != nil || *first.Cases["again"].Seen != now {
		t.Errorf("a first run, of some scenarios: %+v", first)
	}
}

// A release check counts only with complete runs of its commit, in all modes and on all kernels
// that it names.
func TestNewRelease(t *testing.T) {
	now := Seen{"2026-11-03", "abc"}
	results := func(last *Seen) []Results {
		return []Results{{Mode: "a", Kernel: "5.10", All: &now}, {Mode: "b", Kernel: "5.10", All: &now},
			{Mode: "a", Kernel: "6.1", All: &now}, {Mode: "b", Kernel: "6.1", All: last}}
	}
	r, err := NewRelease(now, []string{"5.10", "6.1"}, results(&now))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "release.json")
	if none, err := ReadRelease(file); none != nil || err != nil {
		t.Errorf("before the first check: %v, %v", none, err)
	}
	if err := r.Write(file); err != nil {
		t.Fatal(err)
	}
	if again, err := ReadRelease(file); err != nil || !reflect.DeepEqual(r, again) {
		t.Errorf("wrote %v, read %v: %v", r, again, err)
	}
	if text := Page(nil, nil, r); !strings.Contains(text,
		"It passed last on 2026-11-03 at abc, on kernels 5.10, 6.1.\n") {
		t.Error(text)
	}
	for _, last := range []*Seen{nil, {"2026-11-03", "older"}} {
		if r, err := NewRelease(now, []string{"5.10", "6.1"}, results(last)); err == nil {
			t.Errorf("mode b was seen on kernel 6.1 at %v, and the check is %v", last, r)
		}
	}
	if r, err := NewRelease(now, []string{"5.10", "6.12"}, results(&now)); err == nil {
		t.Errorf("nothing was run on kernel 6.12, and the check is %v", r)
	}
}
