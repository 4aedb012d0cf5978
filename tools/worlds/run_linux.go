package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// longest is how long an answer may take.
const longest = 2 * time.Second

// run plays worlds, and prints a summary.
func run(ctx context.Context, out io.Writer, o options) error {
	s := summary{begin: time.Now(), causes: map[string]*cause{}, kinds: map[string]*tally{},
		refused: map[string]int{},
		hedges:  map[string]int{}}
	fmt.Fprintf(out, "seed %d, modes %s\n", o.seed, strings.Join(o.modes, ","))
	for round := o.first; round < o.first+o.rounds && ctx.Err() == nil; round++ {
		if o.limit > 0 && time.Since(s.begin) > o.limit {
			break
		}
		w := newWorld(o.seed, round, o.modes)
		if o.only != nil {
			w = w.with(o.only)
		}
		err := s.round(ctx, out, o, w)
		if err != nil {
			s.broken++
			fmt.Fprintf(out, "round %d, mode %s: %v\n", round, w.mode, err)
		}
	}
	s.print(out)
	return s.verdict()
}

// with returns the world with some of its mutations.
func (w *world) with(only []int) *world {
	c := *w
	c.mutations = nil
	for _, i := range only {
		if i < len(w.mutations) {
			c.mutations = append(c.mutations, w.mutations[i])
		}
	}
	return &c
}

// try plays a world once.
func try(w *world, o options, query int) (results []result, refused []string, err error) {
	p, err := begin(w, o.program)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	refused = p.mutate()
	return p.run(query), refused, nil
}

// round plays a world, and makes each wrong answer small.
func (s *summary) round(ctx context.Context, out io.Writer, o options, w *world) error {
	results, refused, err := try(w, o, o.query)
	if err != nil {
		return err
	}
	s.rounds++
	for _, r := range refused {
		kind, why, _ := strings.Cut(r, ": ")
		s.refused[kind]++
		if o.verbose {
			fmt.Fprintf(out, "  not applied: %s: %s\n", kind, why)
		}
	}
	if o.verbose {
		s.show(out, w, results)
	}
	for i, r := range results {
		s.count(w, r)
		if r.verdict.class != "wrong" || ctx.Err() != nil {
			continue
		}
		n := i
		if o.query >= 0 {
			n = o.query
		}
		if err := s.shrink(out, o, w, n, r); err != nil {
			return err
		}
	}
	return nil
}

// shrink leaves out mutations while the answer stays wrong, and records what is left.
func (s *summary) shrink(out io.Writer, o options, w *world, n int, r result) error {
	left := o.only
	if left == nil {
		for i := range w.mutations {
			left = append(left, i)
		}
	}
	if s.known(w, r) {
		return nil
	}
	full := newWorld(w.seed, w.round, o.modes)
	steady := false
	tries := 1
	if r.query.port != 0 {
		tries = 3 // one connection, to a backend at random
	}
	wrongWith := func(only []int) (bool, error) {
		for range tries {
			results, _, err := try(full.with(only), o, n)
			if err != nil {
				return false, err
			}
			if len(results) == 1 && results[0].verdict.class == "wrong" {
				r, steady = results[0], true
				return true, nil
			}
		}
		return false, nil
	}
	if len(left) > 1 { // most need one mutation, and some none
		still, err := wrongWith(nil)
		if err != nil {
			return err
		}
		if still {
			left = nil
		}
	}
	for i := 0; i < len(left); {
		fewer := slices.Delete(slices.Clone(left), i, i+1)
		still, err := wrongWith(fewer)
		if err != nil {
			return err
		}
		if still {
			left = fewer
		} else {
			i++
		}
	}
	if !steady {
		if _, err := wrongWith(left); err != nil {
			return err
		}
	}
	f := finding{w: full.with(left), result: r, steady: steady, only: left, n: n, modes: o.modes}
	first := s.found(f)
	fmt.Fprintf(out, "round %d: %s: %s\n  %s\n", w.round, f.cause(), r.verdict.why, f.repeat())
	if first && o.findings != "" {
		return f.write(o.findings)
	}
	return nil
}

// finding is a wrong answer with the mutations that it needs.
type finding struct {
	w      *world
	result result
	steady bool // the second try was wrong too
	only   []int
	n      int
	modes  []string
}

// cause is the summary's name: what was done to the node, else the mode.
func (f finding) cause() string {
	var kinds []string
	for _, m := range f.w.mutations {
		kinds = append(kinds, m.kind)
	}
	slices.Sort(kinds)
	if len(kinds) == 0 {
		kinds = []string{"nothing done, mode " + f.w.mode}
	}
	if !f.steady {
		kinds = append(kinds, "not repeated")
	}
	return strings.Join(slices.Compact(kinds), " + ")
}

// key identifies the cause of a wrong answer.
func (f finding) key() string { return f.cause() + ": " + f.result.verdict.why }

// repeat is the command that plays it again.
func (f finding) repeat() string {
	only := strings.Trim(strings.ReplaceAll(fmt.Sprint(f.only), " ", ","), "[]")
	if only == "" {
		only = "none"
	}
	return fmt.Sprintf("make trace-worlds SEED=%d ROUNDS=1 MODES=%s ARGS='-round %d -only %s -query %d -v'", f.w.seed,
		strings.Join(f.modes, ","), f.w.round, only, f.n)
}

func (f finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cause:  %s\nwrong:  %s\nmode:   %s\nrepeat: %s\nsteady: %t\n", f.cause(),
		f.result.verdict.why, f.w.mode,
		f.repeat(), f.steady)
	fmt.Fprintf(&b, "\n== query\n%s\n\n== the kernel\n", f.result.query)
	for _, line := range compact(f.result.seen) {
		fmt.Fprintf(&b, "%s\n", line)
	}
	fmt.Fprintf(&b, "\n== trace -o wide\n%s\n== trace -o json (exit code %d, %s)\n%s\n", f.result.text,
		f.result.answer.Exit,
		f.result.took.Round(time.Millisecond), f.result.answer.Text)
	fmt.Fprintf(&b, "== mutations\n")
	for _, m := range f.w.mutations {
		fmt.Fprintf(&b, "# %s, on %s\n%s\n", m.kind, m.host, m.do)
	}
	fmt.Fprintf(&b, "\n== node\nbridge %t, pods flat on it %t, flags %s\n\n== services\n", f.w.bridge, f.w.flat,
		strings.Join(f.w.flags, " "))
	name, _, _ := strings.Cut(f.result.query.about, ",")
	for _, s := range f.w.services {
		if s.name == name {
			b.WriteString(s.manifest())
		}
	}
	return b.String()
}

// compact joins equal outcomes.
func compact(seen []outcome) []string {
	var order []string
	count := map[string]int{}
	for _, o := range seen {
		text := o.String()
		if count[text] == 0 {
			order = append(order, text)
		}
		count[text]++
	}
	for i, text := range order {
		order[i] = fmt.Sprintf("%2d × %s", count[text], text)
	}
	return order
}

// write adds a file to the folder, with the next free number, unless one has the cause.
func (f finding) write(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make the folder of findings: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(folder, "[0-9]*.txt"))
	if err != nil {
		return fmt.Errorf("list the findings: %w", err)
	}
	head, _, _ := strings.Cut(f.String(), "mode:")
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err == nil && strings.HasPrefix(string(text), head) {
			return nil
		}
	}
	for n := 1; ; n++ {
		file, err := os.OpenFile(filepath.Join(folder, fmt.Sprintf("%03d.txt", n)),
			os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write a finding: %w", err)
		}
		_, err = io.WriteString(file, f.String())
		return errors.Join(err, file.Close())
	}
}

// often is how many worlds of a cause are made small.
const often = 3

// known counts a wrong answer of a cause that was found often enough.
func (s *summary) known(w *world, r result) bool {
	for _, c := range s.causes {
		if c.count < often || len(c.kinds) == 0 || c.why != r.verdict.why {
			continue
		}
		if !slices.ContainsFunc(c.kinds, func(kind string) bool {
			return !slices.ContainsFunc(w.mutations, func(m mutation) bool { return m.kind == kind })
		}) {
			c.count++
			return true
		}
	}
	return false
}

// found counts a wrong answer, and reports whether it is the first of its cause.
func (s *summary) found(f finding) bool {
	c := s.causes[f.key()]
	if c == nil {
		c = &cause{count: 1, repeat: f.repeat(), why: f.result.verdict.why}
		for _, m := range f.w.mutations {
			c.kinds = append(c.kinds, m.kind)
		}
		s.causes[f.key()] = c
		return true
	}
	c.count++
	return false
}
