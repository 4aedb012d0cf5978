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

// One mark represents all kernels of a mode if they agree; otherwise each kernel is named. The page
// describes models, and modes in which connections end at the proxy, if there are any.
func TestPageCells(t *testing.T) {
	var all []*scenario.Scenario
	for _, name := range []string{"good", "bad", "half", "kernels", "differs", "sctp", "new", "before", "large"} {
		all = append(all, &scenario.Scenario{Name: name})
	}
	both := func(v4, v6 string) Result { return Result{Families: map[string]string{"IPv4": v4, "IPv6": v6}} }
	pass, sctp, before, proxied, modelled := both(Passes, Passes), both(Passes, Passes), both(Passes, Passes),
		both(Passes, Passes), both(Passes, Passes)
	sctp.SCTP, before.Seen = 2, &Seen{"2026-11-02", "older"}
	note(&proxied.Proxied, []Proxied{ProxiedRetry, ProxiedAddress, ProxiedRetry})
	note(&modelled.Modelled, []Modelled{ModelledSplit, ModelledSCTP, ModelledSplit})
	results := []Results{
		{Mode: "m", Kernel: "6.1", All: &Seen{"2026-11-03", "abc"}, Cases: map[string]Result{
			"good": pass, "bad": both(Fails, Fails), "half": both(Passes, NotApplicable), "kernels": pass,
			"differs": {Differs: "Not in this mode"}, "sctp": sctp, "generated-x": both(Passes, Fails),
			"before": before, "large": {Left: "it takes hours"}}},
		{Mode: "m", Kernel: "6.12", Cases: map[string]Result{"good": pass, "kernels": both(Fails, Fails)}},
	}
	if got := Page(all[:1], results[1:], nil); !strings.Contains(got, "### m\n\nAll scenarios pass.\n") ||
		strings.Contains(got, "end at the proxy") || strings.Contains(got, "is a model") {
		t.Errorf("reports failures, or speaks of modes that are not there:\n%s", got)
	}
	results = append(results, Results{Mode: "u", Kernel: "6.1", Cases: map[string]Result{"good": proxied}},
		Results{Mode: "w", Kernel: "fake HNS", Model: true, Cases: map[string]Result{"good": modelled}})
	golden.Equal(t, filepath.Join("testdata", "page.txt"), Page(all, results, nil))
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
			{Mode: "a", Kernel: "6.1", All: &now}, {Mode: "b", Kernel: "6.1", All: last},
			{Mode: "w", Kernel: "fake HNS", Model: true}} // which sends no packets
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
