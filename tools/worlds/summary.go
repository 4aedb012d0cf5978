package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// tally counts verdicts.
type tally struct{ right, vague, wrong int }

func (t *tally) add(class string) {
	switch class {
	case "right":
		t.right++
	case "vague":
		t.vague++
	default:
		t.wrong++
	}
}

func (t *tally) all() int { return t.right + t.vague + t.wrong }

// cause is one of wrong answers.
type cause struct {
	count  int
	repeat string
	why    string
	kinds  []string // of the mutations
}

// summary is what all rounds came to.
type summary struct {
	begin   time.Time
	rounds  int
	broken  int // worlds that could not be made
	total   tally
	kinds   map[string]*tally // by mode, and by kind of a mutation
	causes  map[string]*cause
	refused map[string]int
	unsent  int
	hedges  map[string]int // reasons of vague answers
	slow    int
	slowest time.Duration
}

// count counts a result, for its mode and for each mutation of its world.
func (s *summary) count(w *world, r result) {
	if r.verdict == unsent {
		s.unsent++
		return
	}
	s.total.add(r.verdict.class)
	of := map[string]bool{"mode " + w.mode: true}
	for _, m := range w.mutations {
		of[m.kind] = true
	}
	for kind := range of {
		if s.kinds[kind] == nil {
			s.kinds[kind] = &tally{}
		}
		s.kinds[kind].add(r.verdict.class)
	}
	if r.verdict == vague {
		s.hedges[r.answer.hedge()]++
	}
	s.slowest = max(s.slowest, r.took)
	if r.took > longest {
		s.slow++
	}
}

// show prints a world with its results.
func (s *summary) show(out io.Writer, w *world, results []result) {
	fmt.Fprintf(out, "round %d: mode %s, bridge %t, flat %t, %s\n", w.round, w.mode, w.bridge, w.flat,
		strings.Join(w.flags, " "))
	for i, m := range w.mutations {
		fmt.Fprintf(out, "  mutation %d, %s, on %s:\n    %s\n", i, m.kind, m.host, strings.ReplaceAll(m.do, "\n",
			"\n    "))
	}
	for _, r := range results {
		by := ""
		if r.answer.Rest != nil {
			by = r.answer.Rest.Verdict + " " + r.answer.Rest.By
		}
		fmt.Fprintf(out, "  %s %s\n    %s\n    said %s, %s, exit code %d\n", r.verdict.class, r.verdict.why, r.query,
			r.answer.Verdict, by, r.answer.Exit)
		for _, line := range compact(r.seen) {
			fmt.Fprintf(out, "    %s\n", line)
		}
		if r.text != "" {
			fmt.Fprintf(out, "  %s\n", strings.ReplaceAll(strings.TrimSpace(r.text), "\n", "\n  "))
		}
	}
}

// print prints the table.
func (s *summary) print(out io.Writer) {
	fmt.Fprintf(out, "\n%-34s %8s %8s %8s %8s\n", "", "answers", "right", "vague", "wrong")
	line := func(name string, t *tally) {
		fmt.Fprintf(out, "%-34s %8d %7.1f%% %7.1f%% %8d\n", name, t.all(), share(t.right, t), share(t.vague, t),
			t.wrong)
	}
	for _, kind := range slices.Sorted(maps.Keys(s.kinds)) {
		line(kind, s.kinds[kind])
	}
	line(fmt.Sprintf("all, of %d worlds", s.rounds), &s.total)
	fmt.Fprintf(out, "slowest answer %s, %d above %s; %s\n", s.slowest.Round(time.Millisecond), s.slow, longest,
		time.Since(s.begin).Round(time.Second))
	for _, reason := range slices.SortedFunc(maps.Keys(s.hedges), func(a, b string) int {
		return s.hedges[b] - s.hedges[a]
	}) {
		fmt.Fprintf(out, "vague, %d: %s\n", s.hedges[reason], reason)
	}
	if s.unsent > 0 {
		fmt.Fprintf(out, "%d connections could not be made: the client has no such address or route\n", s.unsent)
	}
	for _, kind := range slices.Sorted(maps.Keys(s.refused)) {
		fmt.Fprintf(out, "not applied, because a program refused it: %s (%d)\n", kind, s.refused[kind])
	}
	for _, key := range slices.SortedFunc(maps.Keys(s.causes), func(a, b string) int {
		return s.causes[b].count - s.causes[a].count
	}) {
		fmt.Fprintf(out, "wrong, %d: %s\n  %s\n", s.causes[key].count, key, s.causes[key].repeat)
	}
}

func share(n int, t *tally) float64 { return 100 * float64(n) / float64(max(1, t.all())) }

// verdict is an error if the answers are not good enough.
func (s *summary) verdict() error {
	switch {
	case s.total.all() == 0:
		return errors.New("nothing was compared")
	case s.broken > 0:
		return fmt.Errorf("%d worlds could not be made", s.broken)
	case s.total.wrong > 0:
		return fmt.Errorf("%d of %d answers are wrong", s.total.wrong, s.total.all())
	case 10*s.total.vague > s.total.all() && s.total.all() >= 200: // fewer say little of a share
		return fmt.Errorf("%d of %d answers are vague, more than one in ten", s.total.vague, s.total.all())
	}
	return nil
}
