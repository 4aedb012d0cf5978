// Command mutants changes the code of packages at random places, one at a time, and runs the
// package's own tests: a change that no test notices is a survivor. users.txt names the packages
// whose tests also count, because they are those of what they use.
//
//	make mutants                                  each package for a minute
//	make mutants ARGS='-seed 7 -for 5m ./engine'  one package for longer, at other places
//
// The tree is not touched: the changed file is an overlay of `go test`. Changes that do not compile
// do not count, nor do those of equivalent.txt, which no test can notice. The program fails if
// fewer than -floor percent of all changes were noticed.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

//go:embed equivalent.txt
var equivalent string

//go:embed users.txt
var users string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	seed     uint64
	budget   time.Duration // for each package
	floor    float64       // percent
	only     *regexp.Regexp
	patterns []string
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.Uint64Var(&o.seed, "seed", 1, "chooses the places")
	flags.DurationVar(&o.budget, "for", time.Minute, "how long each package is tested")
	flags.Float64Var(&o.floor, "floor", 95, "least percentage of noticed changes")
	only := flags.String("only", "", "test only changes whose line of output matches this regular expression, such as "+
		"'loop.go:44:'")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.budget <= 0 || o.floor < 0 || o.floor > 100 {
		return o, fmt.Errorf("-for %v -floor %v: want a positive time, and 0 to 100", o.budget, o.floor)
	}
	var err error
	o.only, err = regexp.Compile(*only)
	if err != nil {
		return o, fmt.Errorf("-only %s: %w", *only, err)
	}
	o.patterns = flags.Args()
	if len(o.patterns) == 0 {
		o.patterns = []string{"./..."}
	}
	return o, nil
}

// tally counts outcomes.
type tally struct{ noticed, survived int }

func (t tally) percent() float64 {
	return 100 * float64(t.noticed) / float64(max(1, t.noticed+t.survived))
}

func (t tally) String() string {
	return fmt.Sprintf("%d of %d noticed (%.0f %%)", t.noticed, t.noticed+t.survived, t.percent())
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	packages, err := list(ctx, o.patterns)
	if err != nil {
		return err
	}
	var all tally
	for _, p := range packages {
		t, err := p.mutate(ctx, o, out)
		if err != nil {
			return fmt.Errorf("%s: %w", p.ImportPath, err)
		}
		all.noticed, all.survived = all.noticed+t.noticed, all.survived+t.survived
	}
	fmt.Fprintf(out, "all packages: %v, seed %d\n", all, o.seed)
	if all.noticed+all.survived > 0 && all.percent() < o.floor {
		return fmt.Errorf("%.1f %% of the changes were noticed, want %v %%: give each survivor a test, delete its "+
			"line, or list it in equivalent.txt with the reason", all.percent(), o.floor)
	}
	return nil
}

// pkg is a package with tests, as `go list` prints it.
type pkg struct {
	ImportPath, Dir      string
	GoFiles, TestGoFiles []string
	XTestGoFiles, Embed  []string
	Module               struct{ Path, Dir string }
}

// users returns the packages of users.txt whose tests also test this one.
func (p pkg) users() (all []string) {
	for line := range strings.Lines(users) {
		of, names, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if p.ImportPath != p.Module.Path+"/"+of {
			continue
		}
		for name := range strings.FieldsSeq(names) {
			all = append(all, p.Module.Path+"/"+name)
		}
	}
	return all
}

// list returns the packages that have tests.
func list(ctx context.Context, patterns []string) (all []pkg, err error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json"}, patterns...)...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for d := json.NewDecoder(strings.NewReader(string(text))); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("decode the output of go list: %w", err)
		}
		if len(p.GoFiles) > 0 && len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			all = append(all, p)
		}
	}
}

// mutate tests changes of a package until its time is over, or there is no other place.
func (p pkg) mutate(ctx context.Context, o options, out io.Writer) (t tally, err error) {
	var mutants []mutant
	for _, name := range p.GoFiles {
		of, err := mutantsOf(filepath.Join(p.Dir, name))
		if err != nil {
			return t, err
		}
		mutants = append(mutants, of...)
	}
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return t, err
	}
	defer os.RemoveAll(dir)
	begin := time.Now()
	outcome, text := p.test(ctx, dir, nil, 10*time.Minute)
	if outcome != survived {
		return t, fmt.Errorf("the tests fail without a change:\n%s", text)
	}
	took := time.Since(begin)
	limit := max(10*time.Second, 5*took)
	end := time.Now().Add(o.budget)
	rng := rand.New(rand.NewPCG(o.seed, uint64(len(p.ImportPath))))
	rng.Shuffle(len(mutants), func(i, j int) { mutants[i], mutants[j] = mutants[j], mutants[i] })
	for _, m := range mutants {
		if text := m.text(p.Module.Dir); m.known(p.Module.Dir) || !o.only.MatchString(text) {
			continue
		}
		if ctx.Err() != nil {
			return t, ctx.Err()
		}
		if time.Now().After(end) {
			break
		}
		switch outcome, _ := p.test(ctx, dir, &m, limit); outcome {
		case noticed:
			t.noticed++
		case survived:
			t.survived++
			fmt.Fprintf(out, "  survivor: %s\n", m.text(p.Module.Dir))
		}
	}
	fmt.Fprintf(out, "%s: %v, of %d places\n", p.ImportPath, t, len(mutants))
	return t, nil
}

// outcome is that of the tests of a changed package.
type outcome int

const (
	broken   outcome = iota // it does not compile
	noticed                 // a test failed, or did not end
	survived                // all tests passed
)

// test runs the package's tests with a change, or without one, and then those of its users.
func (p pkg) test(ctx context.Context, dir string, m *mutant, limit time.Duration) (outcome, string) {
	for _, name := range append([]string{p.ImportPath}, p.users()...) {
		if is, text := p.testOf(ctx, name, dir, m, limit); is != survived {
			return is, text
		}
	}
	return survived, ""
}

func (p pkg) testOf(ctx context.Context, name, dir string, m *mutant, limit time.Duration) (outcome, string) {
	args := []string{"test", "-short", "-failfast", "-count=1", "-vet=off", "-timeout=" + limit.String()}
	if m != nil {
		file, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
		replace, err := json.Marshal(map[string]map[string]string{"Replace": {m.path: file}})
		err = errors.Join(err, os.WriteFile(file, m.source, 0o600), os.WriteFile(overlay, replace, 0o600))
		if err != nil {
			return broken, err.Error()
		}
		args = append(args, "-overlay="+overlay)
	}
	ctx, cancel := context.WithTimeout(ctx, limit+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append(args, name)...)
	cmd.Dir = p.Dir
	cmd.WaitDelay = 10 * time.Second
	text, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return survived, string(text)
	case strings.Contains(string(text), "[build failed]") || strings.Contains(string(text), "[setup failed]"):
		return broken, string(text)
	}
	return noticed, string(text)
}
